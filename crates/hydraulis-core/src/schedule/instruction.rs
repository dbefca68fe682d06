//! What a rank does, step by step.

use crate::schedule::one_f_one_b::warm_up;

/// One instruction of a rank's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Run the stage's layers forward on a micro-batch.
    Forward {
        /// Position in the replica's packing.
        micro_batch: usize,
    },
    /// Run them backward.
    Backward {
        /// Position in the replica's packing.
        micro_batch: usize,
    },
    /// Trade tensors with the rank of the same tensor index in a neighbouring stage, as one batch.
    ///
    /// With the next stage, activations are sent and gradients received; with the previous one, gradients
    /// are sent and activations received. Sending and receiving are one instruction, because two ranks that
    /// each sent first and waited would wait for ever.
    Exchange {
        /// The stage traded with.
        neighbour: Neighbour,
        /// The micro-batch whose tensor leaves, if one does.
        send: Option<usize>,
        /// The micro-batch whose tensor arrives, if one does.
        receive: Option<usize>,
    },
}

/// A stage beside this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// The stage before.
    Previous,
    /// The stage after.
    Next,
}

/// The instruction list of every rank of stage `stage` of `stages`, for `micro_batches` in 1F1B order.
pub fn instructions(stage: usize, stages: usize, micro_batches: usize) -> Vec<Instruction> {
    let mut list = StageList { stage, stages, instructions: Vec::new() };
    let warm = warm_up(stage, stages, micro_batches);
    for micro_batch in 0..warm {
        list.previous(None, Some(micro_batch));
        list.forward(micro_batch);
        list.next(Some(micro_batch), None);
    }
    if warm < micro_batches {
        list.previous(None, Some(warm));
    }
    for micro_batch in warm..micro_batches {
        let oldest = micro_batch - warm;
        let following = (micro_batch + 1 < micro_batches).then_some(micro_batch + 1);
        list.forward(micro_batch);
        list.next(Some(micro_batch), Some(oldest));
        list.backward(oldest);
        list.previous(Some(oldest), following);
    }
    for oldest in micro_batches - warm..micro_batches {
        list.next(None, Some(oldest));
        list.backward(oldest);
        list.previous(Some(oldest), None);
    }
    list.instructions
}

/// A list being written; exchanges past either end of the pipeline fall away.
struct StageList {
    stage: usize,
    stages: usize,
    instructions: Vec<Instruction>,
}

impl StageList {
    fn forward(&mut self, micro_batch: usize) {
        self.instructions.push(Instruction::Forward { micro_batch });
    }

    fn backward(&mut self, micro_batch: usize) {
        self.instructions.push(Instruction::Backward { micro_batch });
    }

    fn previous(&mut self, send: Option<usize>, receive: Option<usize>) {
        if self.stage > 0 {
            self.instructions.push(Instruction::Exchange { neighbour: Neighbour::Previous, send, receive });
        }
    }

    fn next(&mut self, send: Option<usize>, receive: Option<usize>) {
        if self.stage + 1 < self.stages {
            self.instructions.push(Instruction::Exchange { neighbour: Neighbour::Next, send, receive });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Compute, compute_order};

    #[test]
    fn lists_compute_in_1f1b_order() {
        for (stages, micro_batches) in (1..6).flat_map(|p| (0..9).map(move |v| (p, v))) {
            for stage in 0..stages {
                let computed = instructions(stage, stages, micro_batches).into_iter().filter_map(|step| match step {
                    Instruction::Forward { micro_batch } => Some(Compute::Forward(micro_batch)),
                    Instruction::Backward { micro_batch } => Some(Compute::Backward(micro_batch)),
                    Instruction::Exchange { .. } => None,
                });
                assert!(
                    computed.eq(compute_order(stage, stages, micro_batches)),
                    "{stage} of {stages}, {micro_batches}"
                );
            }
        }
    }

    #[test]
    fn no_exchange_is_empty() {
        for list in (0..4).map(|stage| instructions(stage, 4, 6)) {
            let empty = |step: &&Instruction| matches!(step, Instruction::Exchange { send: None, receive: None, .. });
            assert_eq!(list.iter().find(empty), None);
        }
    }
}
