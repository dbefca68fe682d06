//! Copies to whoever needs them.

use crate::error::{LayoutError, Result};
use crate::layout::Holding;
use crate::layout::movement::copies::Copies;
use crate::layout::movement::nodes::Nodes;
use crate::layout::movement::sweep::sweep;
use crate::layout::movement::{Movement, Put, Round, Side};

/// What brings every target its elements from sources that hold copies of them, with the least that can be sent and the
/// least of it between nodes.
///
/// Whoever has none of an element has to receive it, and so has each node where nobody has one: no movement sends less than
/// once for each such rank, or less between nodes than once for each such node. Here each receives it exactly once: in a
/// node that has it from there, in another from the one rank of it that received it from afar.
///
/// A target that its rank holds elsewhere is a move from that rank to itself. Refused with `element_unheld` where a target
/// has elements that no source holds.
pub fn spread(sources: &[Holding], targets: &[Holding], gpus_per_node: u32) -> Result<Movement> {
    let mut copies = Copies::new(Nodes::new(gpus_per_node));
    sweep(sources, targets, |interval, from, to| {
        if from.is_empty() {
            return Err(LayoutError::ElementUnheld { rank: to[0].rank, element: interval.start });
        }
        copies.bring(&interval, from, to);
        Ok(())
    })?;
    Ok(Movement::of([
        Round::of(Side::Sources, Put::Replace, copies.direct),
        Round::of(Side::Targets, Put::Replace, copies.relayed),
    ]))
}
