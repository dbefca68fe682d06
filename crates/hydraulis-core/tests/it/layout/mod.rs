//! Layouts and transfers.

mod movement;
mod transfers;
