//! Layouts and transfers.

mod transfers;
