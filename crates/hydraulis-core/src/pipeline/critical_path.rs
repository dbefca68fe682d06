//! The critical path of a pipeline: the longest sequence of computations, each waiting for the one before it.

use crate::pipeline::Compute;
use crate::pipeline::one_f_one_b::computation;

/// The computations of a replica, each after those that it waits for.
#[derive(Clone, Debug)]
pub(crate) struct CriticalPath {
    nodes: Vec<Node>,
    /// The end of each computation, and 0 in the last place.
    ends: Vec<f64>,
    /// The computation that each node waited for.
    waited_for: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    micro_batch: u32,
    /// Share of the micro-batch's time on a stage of multiplier 1, times the stage's multiplier.
    share: f64,
    /// The previous computation on the same stage; the number of computations if there is none.
    before: u32,
    /// The computation on the neighbouring stage that gives its input; the number of computations if there is none.
    input: u32,
}

impl CriticalPath {
    /// The computations of `micro_batches` on stages of these multipliers, in 1F1B order.
    pub(crate) fn new(stage_multipliers: &[f64], forward_share: f64, micro_batches: usize) -> CriticalPath {
        let stages = stage_multipliers.len();
        let total = 2 * stages * micro_batches;
        let number = |of: usize| u32::try_from(of).expect("a table of capacities has few micro-batches");
        let mut nodes: Vec<Node> = Vec::with_capacity(total);
        let mut forwards = vec![None; stages * micro_batches];
        let mut backwards = forwards.clone();
        let mut done = vec![0; stages];
        let mut last = vec![total; stages];
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
                    let (before, input) = (number(last[stage]), number(input.flatten().unwrap_or(total)));
                    last[stage] = nodes.len();
                    nodes.push(Node { micro_batch: number(micro_batch), share, before, input });
                    done[stage] += 1;
                }
            }
        }
        CriticalPath { nodes, ends: vec![0.0; total + 1], waited_for: vec![0; total] }
    }

    /// Returns the length of the critical path for these times, and writes to `visits` how much of each micro-batch's
    /// time it contains.
    pub(crate) fn longest(&mut self, times: &[f64], visits: &mut [f64]) -> f64 {
        let none = self.nodes.len();
        let (mut length, mut at) = (0.0, none);
        for (index, (node, waited_for)) in self.nodes.iter().zip(&mut self.waited_for).enumerate() {
            let before = self.ends[node.before as usize];
            let input = self.ends[node.input as usize];
            let is_later = input > before;
            *waited_for = if is_later { node.input } else { node.before };
            let end = (if is_later { input } else { before }) + times[node.micro_batch as usize] * node.share;
            self.ends[index] = end;
            if end > length {
                (length, at) = (end, index);
            }
        }
        visits.fill(0.0);
        while at < none {
            visits[self.nodes[at].micro_batch as usize] += self.nodes[at].share;
            at = self.waited_for[at] as usize;
        }
        length
    }
}
