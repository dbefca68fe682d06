//! The cheapest schedule of a chain of layers within each memory limit.
//!
//! Layer `i` turns the input `x[i]` into `x[i + 1]`. Its forward saves everything that its backward needs (`saved[i + 1]`,
//! which contains its output), its input alone, or nothing; inputs that were not saved are computed again from the last
//! saved one. `cost(i, j, m)` is the least time to compute the gradients of layers `i` to `j` from `x[i]` and the gradient
//! of `x[j + 1]` with `m` memory in addition to both:
//!
//! - save layer `i` whole: its forward and backward, and `cost(i + 1, j, m - saved[i + 1])`;
//! - save the input of a later layer `k` alone: the forwards of `i` to `k - 1`, `cost(k, j, m - x[k])`, and then
//!   `cost(i, k - 1, m)`.
//!
//! This is the dynamic program of Rotor (Beaumont, Eyraud-Dubois, Hermann, Joly and Shilova 2020) for persistent
//! checkpoints.

/// A chain of `n` layers and the loss after them. Memory is in whole units.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Forward time of each layer, `[n]`.
    pub forward: Vec<f64>,
    /// Backward time of each layer and of the loss, `[n + 1]`.
    pub backward: Vec<f64>,
    /// Memory of the input of each layer and of the loss, `[n + 1]`.
    pub inputs: Vec<u64>,
    /// Memory of everything that backward needs of each layer; the first entry stands for the model's input, `[n + 1]`.
    pub saved: Vec<u64>,
    /// Memory that a forward needs while it runs, `[n]`.
    pub forward_extra: Vec<u64>,
    /// Memory that a backward needs while it runs, `[n + 1]`.
    pub backward_extra: Vec<u64>,
}

/// The least times of a chain for every memory limit up to the greatest.
#[derive(Clone, Debug)]
pub struct RecomputeTable {
    stages: usize,
    /// `costs[m]` holds the least time of every part of the chain with memory `m`.
    costs: Vec<Vec<f64>>,
}

impl RecomputeTable {
    /// The least time of the whole chain with this memory in addition to its input; none if it does not fit, or the table
    /// ends below it.
    pub fn time(&self, memory: u64) -> Option<f64> {
        let costs = self.costs.get(usize::try_from(memory).ok()?)?;
        Some(costs[self.stages - 1]).filter(|time| time.is_finite())
    }
}

/// The least times of a chain for all memory limits up to `most`.
pub fn recompute(chain: &Chain, most: u64) -> RecomputeTable {
    let stages = chain.forward.len() + 1;
    let program = Program::new(chain);
    let mut costs: Vec<Vec<f64>> = Vec::new();
    for memory in 0..=most {
        let own = program.costs(memory, &costs);
        costs.push(own);
    }
    RecomputeTable { stages, costs }
}

/// The chain with the loss as its last stage, whose output, forward and saved memory are zero.
struct Program<'a> {
    chain: &'a Chain,
    stages: usize,
}

impl<'a> Program<'a> {
    fn new(chain: &'a Chain) -> Program<'a> {
        Program { chain, stages: chain.forward.len() + 1 }
    }

    fn forward(&self, stage: usize) -> f64 {
        self.chain.forward.get(stage).copied().unwrap_or_default()
    }

    fn input(&self, stage: usize) -> u64 {
        self.chain.inputs.get(stage).copied().unwrap_or_default()
    }

    fn saved(&self, stage: usize) -> u64 {
        self.chain.saved.get(stage).copied().unwrap_or_default()
    }

    fn forward_extra(&self, stage: usize) -> u64 {
        self.chain.forward_extra.get(stage).copied().unwrap_or_default()
    }

    /// The least times of all parts with `memory`, from those with less; part `(i, j)` is at `i * stages + j`.
    fn costs(&self, memory: u64, less: &[Vec<f64>]) -> Vec<f64> {
        let stages = self.stages;
        let mut own = vec![f64::INFINITY; stages * stages];
        for first in (0..stages).rev() {
            own[first * stages + first] = self.alone(first, memory);
            for last in first + 1..stages {
                own[first * stages + last] = self.part(first, last, memory, &own, less);
            }
        }
        own
    }

    /// One stage: forward and backward, if its output, its saved memory and the memory of either pass fit.
    fn alone(&self, stage: usize, memory: u64) -> f64 {
        let extra = self.forward_extra(stage).max(self.chain.backward_extra[stage]);
        let needed = self.input(stage + 1) + self.saved(stage + 1) + extra;
        if memory < needed { f64::INFINITY } else { self.forward(stage) + self.chain.backward[stage] }
    }

    fn part(&self, first: usize, last: usize, memory: u64, own: &[f64], less: &[Vec<f64>]) -> f64 {
        let at = |first: usize, last: usize| first * self.stages + last;
        if memory < self.passing(first, last) {
            return f64::INFINITY;
        }
        let with = |taken: u64, place: usize| match memory.checked_sub(taken) {
            None => f64::INFINITY,
            Some(left) if taken == 0 => {
                debug_assert_eq!(left, memory);
                own[place]
            }
            Some(left) => less[usize::try_from(left).expect("below the number of tables")][place],
        };
        let whole = own[at(first, first)] + with(self.saved(first + 1), at(first + 1, last));
        let mut forwards = 0.0;
        let mut best = whole;
        for next in first + 1..=last {
            forwards += self.forward(next - 1);
            best = best.min(forwards + with(self.input(next), at(next, last)) + own[at(first, next - 1)]);
        }
        best
    }

    /// Memory without which not even the forwards of these stages run.
    fn passing(&self, first: usize, last: usize) -> u64 {
        let gradient = self.input(last + 1);
        let inner =
            (first + 1..last).map(|stage| self.input(stage) + self.input(stage + 1) + self.forward_extra(stage));
        let start = self.input(first + 1) + self.forward_extra(first);
        gradient + inner.max().unwrap_or_default().max(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(layers: usize) -> Chain {
        let mut backward = vec![8.0; layers];
        backward.push(0.0);
        let (mut saved, mut backward_extra) = (vec![6; layers + 1], vec![2; layers]);
        saved[0] = 1;
        backward_extra.push(0);
        Chain {
            forward: vec![4.0; layers],
            backward,
            inputs: vec![1; layers + 1],
            saved,
            forward_extra: vec![1; layers],
            backward_extra,
        }
    }

    #[test]
    fn more_memory_never_takes_longer() {
        let table = recompute(&chain(6), 60);
        let times: Vec<f64> = (0..=60).map(|memory| table.time(memory).unwrap_or(f64::INFINITY)).collect();
        assert!(times.is_sorted_by(|one, other| one >= other), "{times:?}");
        assert_eq!(table.time(60), Some(6.0 * 12.0), "nothing is computed twice");
        assert_eq!(table.time(61), None);
    }

    /// With memory for one layer, every backward recomputes all layers before its own: `4 (0 + 1 + 2)` more.
    #[test]
    fn the_least_memory_computes_each_layer_again_from_the_start() {
        let table = recompute(&chain(3), 12);
        let least = (0..=12).find(|&memory| table.time(memory).is_some()).unwrap();
        assert_eq!(table.time(least), Some(3.0 * 12.0 + 4.0 * 3.0));
    }
}
