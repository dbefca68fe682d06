//! A replica's sums, for estimates of a change of one sequence.

use crate::construct::dispatch::Assignment;
use crate::construct::pack::Packer;
use crate::units::{Millis, Tokens};

/// A replica's sums, for estimates of a change of one sequence.
pub(super) struct Totals<'a> {
    pub(super) packer: &'a Packer<'a>,
    /// Longest first.
    pub(super) sequences: &'a [usize],
    pub(super) tokens: &'a [Tokens],
    pub(super) time: Millis,
    load: Millis,
    assigned: Tokens,
    /// Excess of the packed time over the estimate.
    excess: Millis,
}

impl<'a> Totals<'a> {
    pub(super) fn of(assignment: &'a Assignment, tokens: &'a [Tokens], replica: usize) -> Totals<'a> {
        let (packer, sequences) = (assignment.packer_of(replica), assignment.sequences[replica].as_slice());
        let (time, assigned) = (assignment.times[replica], sequences.iter().map(|&id| tokens[id]).sum());
        let load = sequences.iter().map(|&id| packer.sequence_ms()[id]).sum();
        let totals = Totals { packer, sequences, tokens, time, load, assigned, excess: Millis::ZERO };
        // Without a pipeline the estimate is off only by a micro-batch that the packer could not avoid, and a change
        // may well avoid it.
        let excess = if packer.cost().scheme().pp() > 1 { time - totals.exchanged(None, None) } else { Millis::ZERO };
        Totals { excess, ..totals }
    }

    /// Estimated time of the replica without one sequence and with another.
    pub(super) fn exchanged(&self, leaves: Option<usize>, enters: Option<usize>) -> Millis {
        let ms = |id: Option<usize>| id.map(|id| self.packer.sequence_ms()[id]).unwrap_or_default();
        let assigned = |id: Option<usize>| id.map(|id| self.tokens[id]).unwrap_or_default();
        let longest = self.sequences.iter().copied().find(|&id| Some(id) != leaves);
        let longest = ms(longest).max(ms(enters));
        let load = self.load - ms(leaves) + ms(enters);
        self.packer.estimate(load, self.assigned + assigned(enters) - assigned(leaves), longest) + self.excess
    }
}
