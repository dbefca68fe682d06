//! A small linear program whose columns are found while it is solved.

mod covering;

pub(crate) use covering::Covering;
