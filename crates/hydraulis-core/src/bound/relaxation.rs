//! The linear program whose dual prices prove the strongest bound.
//!
//! At a time `T`, the program maximises the served share of the batch if sequences and replicas may be divided. Columns
//! are assignments of the batch, and replicas with one number of micro-batches. Rows keep each class's work and tokens
//! within the capacity of its replicas, and replicas within the ranks. If the served share is below the whole batch,
//! the program's dual prices prove `T` impossible.

use crate::bound::dual_program::{ClassPrices, DualProgram, ReplicaCapacity, Slots};
use crate::capacity::Level;
use crate::linear::Covering;
use crate::units::count;

/// A column enters if it is better than the prices by at least this much.
pub(super) const BETTER: f64 = 1e-7;

/// A replica without work.
const NOTHING: Level = Level { micro_batches: 0, work_ms: 0.0, tokens: 0.0 };

/// The program at one time.
pub(super) struct Relaxation<'a> {
    dual: &'a DualProgram<'a>,
    capacities: Vec<ReplicaCapacity>,
    rows: Rows,
    program: Covering,
    columns: Vec<Column>,
    /// Work and tokens are counted in units of the batch's own, so that entries are near 1.
    units: Vec<(f64, f64)>,
}

/// The meaning of a column.
#[derive(Clone, Copy, Debug)]
enum Column {
    Share,
    Replica { index: usize, micro_batches: usize },
    More,
}

/// Indices of the rows; a class's work and tokens are rows `2 k` and `2 k + 1`.
struct Rows {
    served: usize,
    /// The first row of ranks, of the slowest level; a row for each faster level follows.
    gpus: Option<usize>,
    slots: Vec<Option<usize>>,
    replicas: Vec<Option<usize>>,
    most: Vec<Option<usize>>,
    many: Vec<Option<usize>>,
    few: Vec<Option<usize>>,
    amounts: Vec<f64>,
}

/// The program's solution.
pub(super) struct Solution {
    pub(super) prices: Vec<ClassPrices>,
    /// Replicas and micro-batches of each class in use, fractions included.
    pub(super) used: Vec<(f64, f64)>,
    /// The dual price of a rank of each level: it counts at its level and at every slower one.
    pub(super) per_rank: Vec<f64>,
}

impl<'a> Relaxation<'a> {
    /// The program of a replica's capacities by its time.
    pub(super) fn new(dual: &'a DualProgram<'a>, capacities: Vec<ReplicaCapacity>, slots: Slots) -> Relaxation<'a> {
        let rows = Rows::new(dual, &capacities, slots);
        let load = dual.batch.total();
        let units = dual.classes.iter().map(|class| {
            let cost = class.capacity.cost();
            let work = load.work(cost.quadratic_ms_per_token2(), cost.linear_ms_per_token());
            (1.0 / work, 1.0 / load.tokens)
        });
        let program = Covering::new(&rows.amounts, 1.0);
        Relaxation { dual, capacities, rows, program, columns: Vec::new(), units: units.collect() }
    }

    /// Solves the program.
    pub(super) fn solve(mut self) -> Solution {
        let mut budget = self.dual.budget.pivots;
        let mut column = vec![0.0; self.rows.amounts.len()];
        while budget > 0 && self.program.settle(&mut budget) {
            budget = budget.saturating_sub(1);
            let entered =
                self.enter_replica(&mut column) || self.enter_more(&mut column) || self.enter_share(&mut column);
            if !entered {
                break;
            }
        }
        Solution { prices: self.prices(), used: self.used(), per_rank: self.per_rank() }
    }

    fn prices(&self) -> Vec<ClassPrices> {
        let prices = self.program.prices();
        let price = |row: Option<usize>| row.map_or(0.0, |row| prices[row].max(0.0));
        let index = |(index, &(work, tokens)): (usize, &(f64, f64))| ClassPrices {
            work: prices[2 * index].max(0.0) * work,
            tokens: prices[2 * index + 1].max(0.0) * tokens,
            micro_batch: price(self.rows.few[index]) - price(self.rows.many[index]),
            slot: price(self.rows.slots[index]),
        };
        self.units.iter().enumerate().map(index).collect()
    }

    fn per_rank(&self) -> Vec<f64> {
        let Some(first) = self.rows.gpus else { return vec![0.0; self.dual.ranks.len()] };
        let rows = &self.program.prices()[first..first + self.dual.ranks.len()];
        let mut sum = 0.0;
        let up_to = |price: &f64| {
            sum += price.max(0.0);
            sum
        };
        rows.iter().map(up_to).collect()
    }

    fn used(&self) -> Vec<(f64, f64)> {
        let mut used = vec![(0.0, 0.0); self.units.len()];
        for (number, amount) in self.program.columns() {
            if let Column::Replica { index, micro_batches } = self.columns[number] {
                used[index].0 += amount;
                used[index].1 += amount * count(micro_batches);
            }
        }
        used
    }

    /// Enters the replica whose value is furthest above its price.
    fn enter_replica(&mut self, column: &mut [f64]) -> bool {
        let mut best: Option<(f64, usize, Level)> = None;
        for (index, by_end) in self.capacities.iter().enumerate() {
            let [work, tokens, micro_batch, other] = self.own_prices(index);
            for &level in &by_end.levels {
                let value = work * level.work_ms + tokens * level.tokens + micro_batch * count(level.micro_batches);
                if best.is_none_or(|(most, ..)| value + other >= most) {
                    best = Some((value + other, index, level));
                }
            }
        }
        let Some((value, index, level)) = best else { return false };
        if value <= BETTER {
            return false;
        }
        column.fill(0.0);
        self.replica_entries(index, level).for_each(|(row, entry)| column[row] = entry);
        self.enter(Column::Replica { index, micro_batches: level.micro_batches }, column)
    }

    /// The value of a unit of work, of a token and of a micro-batch of a replica, and that of its other entries.
    fn own_prices(&self, index: usize) -> [f64; 4] {
        let (prices, (work, tokens)) = (self.program.prices(), self.units[index]);
        let [_, _, ranks, slot, ..] = self.own_entries(index, NOTHING);
        let own = [ranks, slot].into_iter().flatten().chain(self.faster_entries(index));
        let of_row = |row: Option<usize>| row.map_or(0.0, |row| prices[row]);
        [
            prices[2 * index] * work,
            prices[2 * index + 1] * tokens,
            of_row(self.rows.many[index]) - of_row(self.rows.few[index]),
            own.map(|(row, entry)| prices[row] * entry).sum(),
        ]
    }

    fn replica_entries(&self, index: usize, level: Level) -> impl Iterator<Item = (usize, f64)> {
        self.own_entries(index, level).into_iter().flatten().chain(self.faster_entries(index))
    }

    /// The entries of a replica, with its ranks in the row of the slowest level alone.
    fn own_entries(&self, index: usize, level: Level) -> [Option<(usize, f64)>; 6] {
        let (work, tokens) = self.units[index];
        let own = self.rows.replicas[index].map(|row| (row, -1.0));
        let ranks = || self.rows.gpus.map(|row| (row, -self.dual.classes[index].ranks()));
        let micro_batches = count(level.micro_batches);
        [
            Some((2 * index, level.work_ms * work)),
            Some((2 * index + 1, level.tokens * tokens)),
            own.or_else(ranks),
            self.rows.slots[index].map(|row| (row, 1.0)),
            self.rows.few[index].map(|row| (row, -micro_batches)),
            self.rows.many[index].map(|row| (row, micro_batches)),
        ]
    }

    /// The ranks of a replica in the rows of levels faster than the slowest, up to its own; none if its class has a row
    /// of its own, which takes the ranks.
    fn faster_entries(&self, index: usize) -> impl Iterator<Item = (usize, f64)> + use<> {
        let is_open = self.rows.replicas[index].is_none();
        self.rank_entries(index).filter(move |_| is_open).skip(1)
    }

    /// The ranks of a replica in the row of the slowest level and of each faster one up to its own.
    fn rank_entries(&self, index: usize) -> impl Iterator<Item = (usize, f64)> + use<> {
        let class = &self.dual.classes[index];
        let ranks = -class.ranks();
        let rows = self.rows.gpus.map(|row| row..=row + class.level);
        rows.into_iter().flatten().map(move |row| (row, ranks))
    }

    /// Enters a replica above the least number, of a class whose number is limited.
    fn enter_more(&mut self, column: &mut [f64]) -> bool {
        if self.rows.gpus.is_none() {
            return false;
        }
        let prices = self.program.prices();
        let found = (0..self.units.len()).find_map(|index| {
            let (replicas, most) = (self.rows.replicas[index]?, self.rows.most[index]);
            let for_ranks: f64 = self.rank_entries(index).map(|(row, ranks)| prices[row] * -ranks).sum();
            let price = for_ranks + most.map_or(0.0, |row| prices[row]);
            let is_open = self.dual.classes[index].most > self.dual.classes[index].least;
            (is_open && prices[replicas] > price + BETTER).then_some((index, replicas, most))
        });
        let Some((index, replicas, most)) = found else { return false };
        column.fill(0.0);
        column[replicas] = 1.0;
        self.rank_entries(index).for_each(|(row, ranks)| column[row] = ranks);
        if let Some(row) = most {
            column[row] = -1.0;
        }
        self.enter(Column::More, column)
    }

    /// Enters the cheapest assignment of the batch.
    fn enter_share(&mut self, column: &mut [f64]) -> bool {
        let Some((batch_price, loads)) = self.dual.batch_price(&self.prices(), &self.capacities) else { return false };
        if batch_price >= self.program.prices()[self.rows.served] - BETTER {
            return false;
        }
        column.fill(0.0);
        column[self.rows.served] = 1.0;
        for (index, load) in loads.iter().enumerate() {
            let cost = self.dual.classes[index].capacity.cost();
            let work = load.work(cost.quadratic_ms_per_token2(), cost.linear_ms_per_token());
            column[2 * index] = -work * self.units[index].0;
            column[2 * index + 1] = -load.tokens * self.units[index].1;
            if let Some(row) = self.rows.slots[index] {
                column[row] = -load.large;
            }
        }
        self.enter(Column::Share, column)
    }

    fn enter(&mut self, what: Column, column: &[f64]) -> bool {
        self.columns.push(what);
        self.program.enter(self.columns.len() - 1, column, 0.0)
    }
}

impl Rows {
    fn new(dual: &DualProgram, capacities: &[ReplicaCapacity], slots: Slots) -> Rows {
        let classes = dual.classes.len();
        let mut amounts = vec![0.0; 2 * classes];
        let mut row = |amount: f64| {
            amounts.push(amount);
            amounts.len() - 1
        };
        let served = row(1.0);
        let is_open = dual.classes.iter().any(|class| class.most > class.least);
        let mut gpus = None;
        for (level, &ranks) in dual.ranks.iter().enumerate().filter(|_| is_open) {
            let of_level = dual.classes.iter().filter(|class| class.level >= level);
            let taken: f64 = of_level.map(|class| class.ranks() * count(class.least)).sum();
            let left = row(-(f64::from(ranks) - taken).max(0.0));
            gpus = gpus.or(Some(left));
        }
        let mut rows = Rows {
            served,
            gpus,
            slots: vec![None; classes],
            replicas: vec![None; classes],
            most: vec![None; classes],
            many: vec![None; classes],
            few: vec![None; classes],
            amounts: Vec::new(),
        };
        for (index, class) in dual.classes.iter().enumerate() {
            let most_by_ranks = f64::from(dual.ranks[class.level]) / class.ranks();
            let is_limited = class.least == class.most || count(class.most) < most_by_ranks;
            if class.least > 0 || is_limited {
                rows.replicas[index] = Some(row(-count(class.least)));
                rows.most[index] =
                    (is_limited && class.most > class.least).then(|| row(-count(class.most - class.least)));
            }
            let has_large = capacities[index].large < capacities[index].limit.min(dual.batch.longest());
            rows.slots[index] = (slots == Slots::Counted && has_large).then(|| row(0.0));
            rows.many[index] = (class.least_micro_batches > 0).then(|| row(count(class.least_micro_batches)));
            rows.few[index] = (class.most_micro_batches < usize::MAX).then(|| row(-count(class.most_micro_batches)));
        }
        rows.amounts = amounts;
        rows
    }
}
