//! The proposal of the Hydraulis paper: a dynamic program over ranks and lengths.
//!
//! Lengths are cut into intervals; equal replicas of one scheme serve each interval exclusively. Let `t(n, s)` be the
//! least time of the slowest replica when at most `n` ranks serve all sequences of up to `s` tokens. Then
//!
//! `t(n, s) = min over k, r, d of max(t(n - d g_k, r), C_k(r, s) / d)` and `t(n, 0) = 0`,
//!
//! for every scheme `k` on `g_k` ranks that admits `s`, every `r < s`, and every number `d` of replicas that
//! fit. `C_k(r, s)` is the sum of `a l^2 + b l + c` over the sequences of more than `r` and up to `s` tokens, plus the
//! time of the longest of them once more for each further stage. The strategies that lead to `t(N, s)` are the list
//! (Li et al., "Hydraulis", arXiv 2412.07894, and its artifact's strategy proposal).
//!
//! The optimum is exact, and found faster than by evaluating the recurrence directly: prefix sums give `C` in constant
//! time, and a binary search leaves two replica numbers, because `t(n - d g, r)` rises and `C / d` falls with `d`. The
//! program takes `N/N_STEP (S/S_STEP)^2 K log N` steps.
//!
//! The published program does not consider batches: it balances the whole data set, charges `c` for each sequence,
//! never lets intervals share replicas, and ignores whether the replicas find aligned ranks. Use
//! [`propose`](hydraulis_core::propose::propose()) for training runs.

use hydraulis_core::batch::LengthHistogram;
use hydraulis_core::construct::{nothing_fits, usable_schemes};
use hydraulis_core::cost::{ClassCost, CostModel};
use hydraulis_core::layout::place;
use hydraulis_core::spec::{Scheme, Strategy};
use hydraulis_core::{Error as CoreError, Millis, Tokens};

use crate::error::{Error, Result};
use crate::numbers::count;

/// More steps than any sensible grid of contexts and ranks has; a typing error stops here.
const MAX_STEPS: u64 = 1 << 14;

/// The grid of the dynamic program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperGrid {
    /// Ranks between two rows (`N_STEP`); ranks beyond the last whole step stay idle.
    pub gpu_step: u32,
    /// Tokens between two columns (`S_STEP`); the last column is the context.
    pub token_step: Tokens,
    /// Most tokens of a sequence to serve (`S`); the program omits longer sequences of the data set.
    pub context: Tokens,
}

/// A strategy of the list.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperStrategy {
    /// The strategy.
    pub strategy: Strategy,
    /// Greatest length of the grid for which it is the optimum.
    pub serves: Tokens,
    /// Time of its slowest replica over all sequences of the data set up to that length.
    pub ms: Millis,
}

/// The optimal strategy for each length of the grid, without duplicates and without those that find no aligned ranks.
///
/// Errors: a step of 0, more than 16,384 steps, or a context that no scheme admits.
pub fn paper_list(cost: &CostModel, data: &LengthHistogram, grid: PaperGrid) -> Result<Vec<PaperStrategy>> {
    grid.check(cost.cluster().gpus())?;
    let schemes = usable_schemes(cost);
    let costs = schemes.iter().map(|&scheme| cost.scheme(scheme)).collect::<hydraulis_core::Result<Vec<_>>>()?;
    let limit = costs.iter().map(|cost| cost.longest()).max().ok_or_else(|| nothing_fits(cost))?;
    if grid.context > limit {
        return Err(CoreError::ContextTooLong { context: grid.context, limit }.into());
    }
    let intervals = Intervals::new(&costs, data, grid);
    let table = Table::fill(&intervals, cost.cluster().gpus() / grid.gpu_step, u64::from(grid.gpu_step));
    let mut list: Vec<PaperStrategy> = Vec::new();
    for edge in (1..intervals.edges.len()).rev() {
        if let Some((strategy, ms)) = table.trace(edge, &intervals)?
            && place(&strategy, cost.cluster()).is_ok()
            && list.iter().all(|earlier| earlier.strategy != strategy)
        {
            list.push(PaperStrategy { strategy, serves: intervals.edges[edge], ms });
        }
    }
    list.reverse();
    Ok(list)
}

impl PaperGrid {
    fn check(self, gpus: u32) -> Result<()> {
        let refuse = |field, value, limit| Err(Error::PaperGrid { field, value, limit });
        if self.gpu_step == 0 || self.gpu_step > gpus || u64::from(gpus / self.gpu_step) > MAX_STEPS {
            let limit = format!("from 1 to {gpus}, the GPUs, and make at most {MAX_STEPS} steps");
            return refuse("gpu_step", self.gpu_step.into(), limit);
        }
        if self.context.0 == 0 {
            return refuse("context", 0, "at least 1".into());
        }
        if self.token_step.0 == 0 || self.context.0.div_ceil(self.token_step.0) > MAX_STEPS {
            let limit = format!("at least 1 and make at most {MAX_STEPS} steps to the context of {}", self.context);
            return refuse("token_step", self.token_step.0, limit);
        }
        Ok(())
    }
}

/// The work of each scheme for the sequences between two edges.
struct Intervals<'a> {
    schemes: &'a [&'a ClassCost],
    /// Edges of the intervals: 0, then one per step, then the context.
    edges: Vec<Tokens>,
    /// For each scheme and edge, the work of all sequences up to the edge.
    work: Vec<Vec<f64>>,
    /// For each edge, the longest length up to the edge in the data set.
    longest: Vec<Tokens>,
}

impl<'a> Intervals<'a> {
    fn new(schemes: &'a [&'a ClassCost], data: &LengthHistogram, grid: PaperGrid) -> Intervals<'a> {
        let steps = grid.context.0.div_ceil(grid.token_step.0);
        let edges: Vec<Tokens> =
            (0..=steps).map(|step| Tokens((step * grid.token_step.0).min(grid.context.0))).collect();
        let mut work = vec![vec![0.0]; schemes.len()];
        let mut longest = vec![Tokens(0)];
        let mut entries = data.entries().peekable();
        for &edge in &edges[1..] {
            let mut totals: Vec<f64> = work.iter().map(|sums| sums[sums.len() - 1]).collect();
            let mut longest_here = longest[longest.len() - 1];
            while let Some((length, sequences)) = entries.next_if(|(length, _)| *length <= edge) {
                for (total, cost) in totals.iter_mut().zip(schemes) {
                    *total += count(sequences) * alone(cost, length).0;
                }
                longest_here = length;
            }
            work.iter_mut().zip(totals).for_each(|(sums, total)| sums.push(total));
            longest.push(longest_here);
        }
        Intervals { schemes, edges, work, longest }
    }

    /// `C_k` of the sequences above the edge `from` and up to the edge `to`.
    fn cost(&self, scheme: usize, from: usize, to: usize) -> Millis {
        if self.longest[to] <= self.edges[from] {
            return Millis::ZERO;
        }
        let cost = self.schemes[scheme];
        let fill = alone(cost, self.longest[to]) * count(cost.scheme().stages() - 1);
        Millis(self.work[scheme][to] - self.work[scheme][from]) + fill
    }
}

/// The time of a micro-batch with this sequence alone on one stage.
fn alone(cost: &ClassCost, tokens: Tokens) -> Millis {
    cost.micro_batch_ms([tokens].into_iter())
}

/// `t(n, s)`, by edge and then by step of ranks, each with its last interval.
struct Table {
    cells: Vec<Vec<Cell>>,
    gpu_step: u64,
}

#[derive(Clone, Copy)]
struct Cell {
    ms: Millis,
    /// The last interval's replicas; none if one step of ranks less gives the same time.
    last: Option<Share>,
}

/// Equal replicas for the sequences above an edge.
#[derive(Clone, Copy)]
struct Share {
    scheme: usize,
    from: usize,
    replicas: u64,
}

impl Table {
    fn fill(intervals: &Intervals, rows: u32, gpu_step: u64) -> Table {
        let rows = rows as usize + 1;
        let mut table = Table { cells: vec![vec![Cell { ms: Millis::ZERO, last: None }; rows]], gpu_step };
        for edge in 1..intervals.edges.len() {
            let column = table.column(edge, rows, intervals);
            table.cells.push(column);
        }
        table
    }

    /// All `t(n, s)` of the edge `s`. A cell takes the value of fewer ranks if it is not better, so `t` never rises
    /// with `n`.
    fn column(&self, edge: usize, rows: usize, intervals: &Intervals) -> Vec<Cell> {
        let mut column = vec![Cell { ms: Millis::INFINITY, last: None }; rows];
        for (scheme, cost) in intervals.schemes.iter().enumerate() {
            if !cost.admits(intervals.edges[edge]) {
                continue;
            }
            for from in 0..edge {
                let work = intervals.cost(scheme, from, edge);
                for (row, cell) in column.iter_mut().enumerate() {
                    let (ms, replicas) = self.shared(row, from, cost.scheme(), work);
                    if ms < cell.ms {
                        *cell = Cell { ms, last: Some(Share { scheme, from, replicas }) };
                    }
                }
            }
        }
        for row in 1..rows {
            if column[row - 1].ms <= column[row].ms {
                column[row] = Cell { last: None, ..column[row - 1] };
            }
        }
        column
    }

    /// The best time, and number of replicas, for `work` when the other ranks serve all sequences up to the edge
    /// `from`.
    fn shared(&self, row: usize, from: usize, scheme: Scheme, work: Millis) -> (Millis, u64) {
        let most = row as u64 * self.gpu_step / scheme.ranks();
        let others = |replicas: u64| self.cells[from][self.row_left(row, replicas, scheme)].ms;
        let own = |replicas: u64| work * (1.0 / count(replicas));
        // The least number of replicas at which the other ranks take at least as long as these replicas.
        let (mut low, mut high) = (1, most + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if others(middle) >= own(middle) { high = middle } else { low = middle + 1 }
        }
        let around = low.saturating_sub(1).max(1)..=low.min(most);
        let times = around.map(|replicas| (others(replicas).max(own(replicas)), replicas));
        times.min().unwrap_or((Millis::INFINITY, 0))
    }

    fn row_left(&self, row: usize, replicas: u64, scheme: Scheme) -> usize {
        let left = (row as u64 * self.gpu_step).saturating_sub(replicas * scheme.ranks());
        usize::try_from(left / self.gpu_step).unwrap_or_default()
    }

    /// The strategy that leads to `t(N, s)` of the edge `s`; none if its sequences cannot be served.
    fn trace(&self, edge: usize, intervals: &Intervals) -> Result<Option<(Strategy, Millis)>> {
        let (mut edge, mut row) = (edge, self.cells[edge].len() - 1);
        let ms = self.cells[edge][row].ms;
        if ms == Millis::INFINITY {
            return Ok(None);
        }
        let mut schemes = Vec::new();
        while edge > 0 {
            match self.cells[edge][row].last {
                None => row -= 1,
                Some(Share { scheme, from, replicas }) => {
                    let scheme = intervals.schemes[scheme].scheme();
                    schemes.extend((0..replicas).map(|_| scheme));
                    row = self.row_left(row, replicas, scheme);
                    edge = from;
                }
            }
        }
        Ok(Some((Strategy::new(schemes)?, ms)))
    }
}
