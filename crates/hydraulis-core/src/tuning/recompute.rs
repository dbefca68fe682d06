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
    /// The least time of the whole chain by memory.
    times: Vec<f64>,
}

impl RecomputeTable {
    /// The least time of the whole chain with this memory in addition to its input; none if it does not fit, or the table
    /// ends below it.
    pub fn time(&self, memory: u64) -> Option<f64> {
        self.times.get(usize::try_from(memory).ok()?).copied().filter(|time| time.is_finite())
    }
}

/// The least times of a chain for all memory limits up to `most`.
pub fn recompute(chain: &Chain, most: u64) -> RecomputeTable {
    let program = Program::new(chain, most);
    // The parts that begin after `first`, by first stage from the last one on, and by number of stages.
    let mut later: Vec<Vec<Row>> = Vec::new();
    for first in (0..program.stages).rev() {
        let mut own = vec![program.alone(first)];
        for last in first + 1..program.stages {
            let part = program.part(first, last, &own, &later);
            own.push(part);
        }
        later.push(own);
    }
    let whole = later.pop().and_then(|mut own| own.pop());
    RecomputeTable { times: whole.map(|row| row.times).unwrap_or_default() }
}

/// The least times of a part of the chain by memory: infinite below the least memory, and never longer with more.
struct Row {
    times: Vec<f64>,
    /// The least memory with a time; the number of entries if there is none.
    least: usize,
}

impl Row {
    fn new(times: Vec<f64>) -> Row {
        let least = times.partition_point(|time| time.is_infinite());
        Row { times, least }
    }
}

/// A way through a part: some forwards, the later layers with `taken` less memory, then the earlier ones.
struct Way<'a> {
    taken: usize,
    forwards: f64,
    after: &'a Row,
    before: &'a Row,
}

impl Way<'_> {
    /// Shortens the times of memories from `passing` up to `end` where this way is faster.
    fn improve(&self, times: &mut [f64], passing: usize, end: usize) {
        let from = passing.max(self.before.least).max(self.taken + self.after.least);
        if from < end {
            self.improve_range(times, from, end);
        }
    }

    /// Shortens the times of a range, or of both its halves: no time falls below that of the last memory.
    fn improve_range(&self, times: &mut [f64], from: usize, end: usize) {
        if self.time(end - 1) >= times[from] {
            return;
        }
        if end - from > SHORT {
            let middle = usize::midpoint(from, end);
            self.improve_range(times, from, middle);
            self.improve_range(times, middle, end);
            return;
        }
        let after = &self.after.times[from - self.taken..];
        for ((best, after), before) in times[from..end].iter_mut().zip(after).zip(&self.before.times[from..end]) {
            let time = self.forwards + after + before;
            *best = if time < *best { time } else { *best };
        }
    }

    fn time(&self, memory: usize) -> f64 {
        self.forwards + self.after.times[memory - self.taken] + self.before.times[memory]
    }
}

/// Most memories of a range that is not halved.
const SHORT: usize = 16;
/// Rounding of a sum of times.
const ROUNDING: f64 = 1e-12;

/// The chain with the loss as its last stage, whose output, forward and saved memory are zero.
struct Program<'a> {
    chain: &'a Chain,
    stages: usize,
    /// Number of memory limits.
    limits: usize,
}

impl<'a> Program<'a> {
    fn new(chain: &'a Chain, most: u64) -> Program<'a> {
        let limits = usize::try_from(most).expect("tables fit into memory") + 1;
        Program { chain, stages: chain.forward.len() + 1, limits }
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

    /// One stage: forward and backward, if its output, its saved memory and the memory of either pass fit.
    fn alone(&self, stage: usize) -> Row {
        let extra = self.forward_extra(stage).max(self.chain.backward_extra[stage]);
        let needed = self.place(self.input(stage + 1) + self.saved(stage + 1) + extra);
        let mut times = vec![f64::INFINITY; needed];
        times.resize(self.limits, self.forward(stage) + self.chain.backward[stage]);
        Row::new(times)
    }

    /// The place of a memory among the limits; their number if it is above all.
    fn place(&self, memory: u64) -> usize {
        usize::try_from(memory).map_or(self.limits, |memory| memory.min(self.limits))
    }

    /// A part from the shorter ones that begin with the same stage, and all that begin later.
    fn part(&self, first: usize, last: usize, own: &[Row], later: &[Vec<Row>]) -> Row {
        let rest = |next: usize| &later[self.stages - 1 - next][last - next];
        let passing = self.place(self.passing(first, last));
        let mut times = vec![f64::INFINITY; self.limits];
        let saved =
            Way { taken: self.place(self.saved(first + 1)), forwards: 0.0, after: rest(first + 1), before: &own[0] };
        saved.improve(&mut times, passing, self.limits);
        let once: f64 = (first..=last).map(|stage| self.forward(stage) + self.chain.backward[stage]).sum();
        let (mut forwards, mut end) = (0.0, self.limits);
        for next in first + 1..=last {
            forwards += self.forward(next - 1);
            // Each way takes at least one forward and backward of all stages, and the forwards up to the saved input.
            let least = (once + forwards) * (1.0 - ROUNDING);
            while end > passing && times[end - 1] <= least {
                end -= 1;
            }
            let taken = self.place(self.input(next));
            let way = Way { taken, forwards, after: rest(next), before: &own[next - 1 - first] };
            way.improve(&mut times, passing, end);
        }
        Row::new(times)
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
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The least time of a part by the recurrence itself.
    fn direct(program: &Program, first: usize, last: usize, memory: u64) -> f64 {
        if first == last {
            return program.alone(first).times[usize::try_from(memory).unwrap()];
        }
        if memory < program.passing(first, last) {
            return f64::INFINITY;
        }
        let with = |taken: u64, first: usize| {
            memory.checked_sub(taken).map_or(f64::INFINITY, |left| direct(program, first, last, left))
        };
        let whole = direct(program, first, first, memory) + with(program.saved(first + 1), first + 1);
        let ways = (first + 1..=last).map(|next| {
            let forwards: f64 = (first..next).map(|stage| program.forward(stage)).sum();
            forwards + with(program.input(next), next) + direct(program, first, next - 1, memory)
        });
        ways.fold(whole, f64::min)
    }

    proptest! {
        #[test]
        fn times_are_those_of_the_recurrence(
            (times, memories) in (1..5_usize).prop_flat_map(|layers| (
                vec((0..9_u32, 0..9_u32), layers + 1), vec((0..4_u64, 0..6_u64, 0..3_u64, 0..3_u64), layers + 1),
            )),
        ) {
            let layers = times.len() - 1;
            let chain = Chain {
                forward: times[..layers].iter().map(|(forward, _)| f64::from(*forward)).collect(),
                backward: times.iter().map(|(_, backward)| f64::from(*backward)).collect(),
                inputs: memories.iter().map(|one| one.0).collect(),
                saved: memories.iter().map(|one| one.1).collect(),
                forward_extra: memories[..layers].iter().map(|one| one.2).collect(),
                backward_extra: memories.iter().map(|one| one.3).collect(),
            };
            let (program, table) = (Program::new(&chain, 40), recompute(&chain, 40));
            for memory in 0..=40 {
                let time = direct(&program, 0, layers, memory);
                let found = table.time(memory).unwrap_or(f64::INFINITY);
                prop_assert_eq!(found.to_bits(), time.to_bits(), "memory {}: {} and {}", memory, found, time);
            }
        }
    }

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
