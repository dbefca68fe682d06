//! The bound of batches in which few long sequences decide.
//!
//! The dual program divides sequences, so a replica may hold 1.4 of them. Here each long sequence is whole: a replica
//! holds a *pattern*, the set of its long sequences, and the other sequences fill the rest of its work and tokens
//! (Gilmore and Gomory 1961). Let a sequence of long group `j` cost `L_j` on every class, and the others as in
//! `dual_program`. A replica of a class that ends by `T` with `v` micro-batches is worth at most
//! `max over patterns P of A (U_v - w(P)) + B (S_v - s(P)) + sum over P of L_j`. If the sequences cost more than all
//! replicas are worth, no plan ends by `T`, for any prices. Groups round lengths down, so that their sequences take no
//! more than in any plan.
//!
//! A pattern must satisfy what any packing of its sequences does (`replica`): its work, its tokens, the number of
//! sequences that share a micro-batch, and in a pipeline the way of its longest sequences through the stages (`stages`).

mod branch;
mod items;
mod part;
mod pattern;
mod program;
mod relaxation;
mod replica;
mod stages;

pub(super) use branch::latest_impossible;
pub(super) use items::LongSequences;
pub(super) use program::LongProgram;
