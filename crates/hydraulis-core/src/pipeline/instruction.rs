//! The instruction lists of ranks.

use crate::pipeline::{Compute, compute_order};

/// One instruction of a rank's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Run the stage's layers forward on a micro-batch.
    Forward {
        /// Position in the replica's packing.
        micro_batch: usize,
    },
    /// Run the stage's layers backward on a micro-batch.
    Backward {
        /// Position in the replica's packing.
        micro_batch: usize,
    },
    /// Send to and receive from the rank of the same tensor index in a neighbouring stage, as one batch.
    ///
    /// With the next stage, activations are sent and gradients received; with the previous one, gradients are sent and
    /// activations received. Sending and receiving are one instruction, because two ranks that each sent first and
    /// waited would wait for ever.
    SendReceive {
        /// The stage of the partner.
        neighbour: Neighbour,
        /// The micro-batch whose tensor is sent, if any.
        send: Option<usize>,
        /// The micro-batch whose tensor is received, if any.
        receive: Option<usize>,
    },
}

/// A neighbouring stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// The stage before.
    Previous,
    /// The stage after.
    Next,
}

/// The instruction list of every rank of stage `stage` of `stages`, for `micro_batches` in 1F1B order.
///
/// Before a computation its input is received, after it its output is sent; in the steady state a send and the receive
/// that follows it are one exchange, on both sides of it.
pub fn instructions(stage: usize, stages: usize, micro_batches: usize) -> Vec<Instruction> {
    let mut list = StageList { stage, stages, instructions: Vec::new() };
    for compute in compute_order(stage, stages, micro_batches) {
        match compute {
            Compute::Forward(micro_batch) => {
                list.receive(Neighbour::Previous, micro_batch);
                list.instructions.push(Instruction::Forward { micro_batch });
                list.send(Neighbour::Next, micro_batch);
            }
            Compute::Backward(micro_batch) => {
                list.receive(Neighbour::Next, micro_batch);
                list.instructions.push(Instruction::Backward { micro_batch });
                list.send(Neighbour::Previous, micro_batch);
            }
        }
    }
    list.instructions
}

/// A list under construction.
struct StageList {
    stage: usize,
    stages: usize,
    instructions: Vec<Instruction>,
}

impl StageList {
    fn send(&mut self, neighbour: Neighbour, micro_batch: usize) {
        if self.has(neighbour) {
            let send = Some(micro_batch);
            self.instructions.push(Instruction::SendReceive { neighbour, send, receive: None });
        }
    }

    fn receive(&mut self, neighbour: Neighbour, micro_batch: usize) {
        if !self.has(neighbour) {
            return;
        }
        let arriving = Some(micro_batch);
        if let Some(Instruction::SendReceive { neighbour: last, send: Some(leaving), receive }) =
            self.instructions.last_mut()
            && *last == neighbour
            && exchanges(self.stage, self.stages, neighbour, *leaving, micro_batch)
        {
            *receive = arriving;
            return;
        }
        self.instructions.push(Instruction::SendReceive { neighbour, send: None, receive: arriving });
    }

    /// Whether the pipeline has a stage in that direction.
    fn has(&self, neighbour: Neighbour) -> bool {
        match neighbour {
            Neighbour::Previous => self.stage > 0,
            Neighbour::Next => self.stage + 1 < self.stages,
        }
    }
}

/// Whether these two tensors cross each other: between two stages, the activation sent by the upper one is as many
/// micro-batches ahead of the returning gradient as the upper stage runs forwards ahead.
fn exchanges(stage: usize, stages: usize, neighbour: Neighbour, leaving: usize, arriving: usize) -> bool {
    match neighbour {
        Neighbour::Next => leaving == arriving + stages - 1 - stage,
        Neighbour::Previous => arriving == leaving + stages - stage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_compute_in_1f1b_order() {
        for (stages, micro_batches) in (1..6).flat_map(|p| (0..9).map(move |v| (p, v))) {
            for stage in 0..stages {
                let computed = instructions(stage, stages, micro_batches).into_iter().filter_map(|step| match step {
                    Instruction::Forward { micro_batch } => Some(Compute::Forward(micro_batch)),
                    Instruction::Backward { micro_batch } => Some(Compute::Backward(micro_batch)),
                    Instruction::SendReceive { .. } => None,
                });
                assert!(
                    computed.eq(compute_order(stage, stages, micro_batches)),
                    "{stage} of {stages}, {micro_batches}"
                );
            }
        }
    }

    #[test]
    fn no_send_receive_is_empty() {
        for list in (0..4).map(|stage| instructions(stage, 4, 6)) {
            let empty =
                |step: &&Instruction| matches!(step, Instruction::SendReceive { send: None, receive: None, .. });
            assert_eq!(list.iter().find(empty), None);
        }
    }
}
