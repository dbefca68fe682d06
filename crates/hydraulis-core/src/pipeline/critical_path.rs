//! The critical path of a pipeline: the longest sequence of computations, each waiting for the one before it.

use crate::pipeline::Compute;
use crate::pipeline::one_f_one_b::computation;

/// The computations of a replica, each after those that it waits for.
#[derive(Clone, Debug)]
pub(crate) struct CriticalPath {
    nodes: Vec<Node>,
    ends: Vec<f64>,
    /// The computation that each node waited for.
    waited_for: Vec<Option<usize>>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    micro_batch: usize,
    /// Share of the micro-batch's time on a stage of multiplier 1, times the stage's multiplier.
    share: f64,
    /// The previous computation on the same stage.
    before: Option<usize>,
    /// The computation on the neighbouring stage that gives its input.
    input: Option<usize>,
}

impl CriticalPath {
    /// The computations of `micro_batches` on stages of these multipliers, in 1F1B order.
    pub(crate) fn new(stage_multipliers: &[f64], forward_share: f64, micro_batches: usize) -> CriticalPath {
        let stages = stage_multipliers.len();
        let total = 2 * stages * micro_batches;
        let mut nodes: Vec<Node> = Vec::with_capacity(total);
        let mut forwards = vec![None; stages * micro_batches];
        let mut backwards = forwards.clone();
        let mut done = vec![0; stages];
        let mut last = vec![None; stages];
        while nodes.len() < total {
            for (stage, &multiplier) in stage_multipliers.iter().enumerate() {
                while done[stage] < 2 * micro_batches {
                    let (is_forward, micro_batch) = match computation(done[stage], stage, stages, micro_batches) {
                        Compute::Forward(micro_batch) => (true, micro_batch),
                        Compute::Backward(micro_batch) => (false, micro_batch),
                    };
                    let giver =
                        if is_forward { stage.checked_sub(1) } else { Some(stage + 1).filter(|&next| next < stages) };
                    let given = if is_forward { &forwards } else { &backwards };
                    let input = giver.map(|giver| given[giver * micro_batches + micro_batch]);
                    if input == Some(None) {
                        break;
                    }
                    let share = multiplier * if is_forward { forward_share } else { 1.0 - forward_share };
                    let made = if is_forward { &mut forwards } else { &mut backwards };
                    made[stage * micro_batches + micro_batch] = Some(nodes.len());
                    nodes.push(Node { micro_batch, share, before: last[stage], input: input.flatten() });
                    last[stage] = Some(nodes.len() - 1);
                    done[stage] += 1;
                }
            }
        }
        CriticalPath { nodes, ends: vec![0.0; total], waited_for: vec![None; total] }
    }

    /// Returns the length of the critical path for these times, and writes to `visits` how much of each micro-batch's
    /// time it contains.
    pub(crate) fn longest(&mut self, times: &[f64], visits: &mut [f64]) -> f64 {
        let (mut length, mut at) = (0.0, None);
        for (index, node) in self.nodes.iter().enumerate() {
            let before = node.before.map_or(0.0, |before| self.ends[before]);
            let input = node.input.map_or(0.0, |input| self.ends[input]);
            self.waited_for[index] = if input > before { node.input } else { node.before };
            self.ends[index] = before.max(input) + times[node.micro_batch] * node.share;
            if self.ends[index] > length {
                (length, at) = (self.ends[index], Some(index));
            }
        }
        visits.fill(0.0);
        while let Some(index) = at {
            visits[self.nodes[index].micro_batch] += self.nodes[index].share;
            at = self.waited_for[index];
        }
        length
    }
}
