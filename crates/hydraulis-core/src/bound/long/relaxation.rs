//! The linear program over patterns, by column generation.
//!
//! At a time `T` it maximises the served share of the batch, if replicas may be divided. Columns are assignments of the
//! sequences that are not long, and replicas with one pattern. Rows keep each class's work and tokens within the rest of
//! its replicas, the served share of each long group within the patterns, and replicas within the ranks.

use crate::bound::long::pattern::Pattern;
use crate::bound::long::program::{LongPrices, LongProgram};
use crate::bound::long::replica::Replica;
use crate::bound::relaxation::BETTER;
use crate::linear::Covering;
use crate::units::count;

/// The program at one time.
pub(super) struct LongRelaxation<'a> {
    program: &'a LongProgram<'a>,
    replicas: &'a [Replica],
    rows: Rows,
    covering: Covering,
    columns: Vec<Column>,
    /// Work and tokens are counted in units of the batch's own.
    units: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug)]
enum Column {
    Share,
    Replica(usize),
    More,
}

/// Indices of the rows; a class's work and tokens are rows `2 k` and `2 k + 1`, and the long groups follow.
struct Rows {
    long: usize,
    served: usize,
    ranks: usize,
    replicas: Vec<Option<usize>>,
    most: Vec<Option<usize>>,
    amounts: Vec<f64>,
}

/// The program's dual prices, and the replicas of each class in use, fractions included.
pub(super) struct LongSolution {
    pub(super) prices: LongPrices,
    pub(super) used: Vec<f64>,
    /// The dual price of a rank.
    pub(super) per_rank: f64,
}

impl<'a> LongRelaxation<'a> {
    pub(super) fn new(program: &'a LongProgram<'a>, replicas: &'a [Replica]) -> LongRelaxation<'a> {
        let rows = Rows::new(program);
        let load = program.batch.total();
        let units = program.classes.iter().map(|class| {
            let cost = class.capacity.cost();
            let work = load.work(cost.quadratic_ms_per_token2(), cost.linear_ms_per_token());
            (1.0 / work, 1.0 / load.tokens)
        });
        let (units, covering) = (units.collect(), Covering::new(&rows.amounts, 1.0));
        LongRelaxation { program, replicas, rows, covering, columns: Vec::new(), units }
    }

    /// Solves the program.
    pub(super) fn solve(mut self) -> LongSolution {
        let mut budget = self.program.budget.pivots;
        let mut column = vec![0.0; self.rows.amounts.len()];
        while budget > 0 && self.covering.settle(&mut budget) {
            budget = budget.saturating_sub(1);
            let entered =
                self.enter_share(&mut column) || self.enter_more(&mut column) || self.enter_replicas(&mut column);
            if !entered {
                break;
            }
        }
        let per_rank = self.covering.prices()[self.rows.ranks].max(0.0);
        LongSolution { prices: self.prices(), used: self.used(), per_rank }
    }

    fn prices(&self) -> LongPrices {
        let prices = self.covering.prices();
        let of_class = |(class, &(work, tokens)): (usize, &(f64, f64))| {
            (prices[2 * class].max(0.0) * work, prices[2 * class + 1].max(0.0) * tokens)
        };
        let long = self.program.long.groups.iter().enumerate();
        LongPrices {
            classes: self.units.iter().enumerate().map(of_class).collect(),
            long: long.map(|(group, own)| prices[self.rows.long + group].max(0.0) / count(own.number)).collect(),
        }
    }

    fn used(&self) -> Vec<f64> {
        let mut used = vec![0.0; self.units.len()];
        for (number, amount) in self.covering.columns() {
            if let Column::Replica(class) = self.columns[number] {
                used[class] += amount;
            }
        }
        used
    }

    /// Enters the best replica of each class that is worth more than its price.
    fn enter_replicas(&mut self, column: &mut [f64]) -> bool {
        let prices = self.prices();
        let mut entered = false;
        for (class, replica) in self.replicas.iter().enumerate().filter(|(_, replica)| !replica.rooms.is_empty()) {
            let price = self.price_of_replica(class) + BETTER;
            let pattern = self.program.pattern(class, replica, &prices, price);
            if pattern.value > price {
                self.fill_replica(class, &pattern, column);
                entered |= self.enter(Column::Replica(class), column);
            }
        }
        entered
    }

    fn fill_replica(&self, class: usize, pattern: &Pattern, column: &mut [f64]) {
        column.fill(0.0);
        column[2 * class] = pattern.left.0 * self.units[class].0;
        column[2 * class + 1] = pattern.left.1 * self.units[class].1;
        for &group in &pattern.groups {
            column[self.rows.long + group] += 1.0 / count(self.program.long.groups[group].number);
        }
        match self.rows.replicas[class] {
            Some(row) => column[row] = -1.0,
            None => column[self.rows.ranks] = -self.program.classes[class].ranks(),
        }
    }

    /// The price of a replica of the class: of its row, or of its ranks.
    fn price_of_replica(&self, class: usize) -> f64 {
        let prices = self.covering.prices();
        match self.rows.replicas[class] {
            Some(row) => prices[row],
            None => prices[self.rows.ranks] * self.program.classes[class].ranks(),
        }
    }

    /// Enters a replica above the least number, of a class whose number is limited.
    fn enter_more(&mut self, column: &mut [f64]) -> bool {
        let prices = self.covering.prices();
        let found = self.program.classes.iter().enumerate().find_map(|(class, limits)| {
            let (row, most) = (self.rows.replicas[class]?, self.rows.most[class]);
            let price = prices[self.rows.ranks] * limits.ranks() + most.map_or(0.0, |row| prices[row]);
            (limits.most > limits.least && prices[row] > price + BETTER).then_some((row, most, limits.ranks()))
        });
        let Some((row, most, ranks)) = found else { return false };
        column.fill(0.0);
        column[row] = 1.0;
        column[self.rows.ranks] = -ranks;
        if let Some(row) = most {
            column[row] = -1.0;
        }
        self.enter(Column::More, column)
    }

    /// Enters the cheapest assignment of the batch.
    fn enter_share(&mut self, column: &mut [f64]) -> bool {
        let prices = self.prices();
        let Some((others, loads)) = self.program.asked_by_others(&prices, self.replicas) else { return false };
        let groups = &self.program.long.groups;
        let long: f64 = groups.iter().zip(&prices.long).map(|(group, price)| count(group.number) * price).sum();
        if others + long >= self.covering.prices()[self.rows.served] - BETTER {
            return false;
        }
        column.fill(0.0);
        column[self.rows.served] = 1.0;
        column[self.rows.long..self.rows.long + groups.len()].fill(-1.0);
        for (class, load) in loads.iter().enumerate() {
            let cost = self.program.classes[class].capacity.cost();
            let work = load.work(cost.quadratic_ms_per_token2(), cost.linear_ms_per_token());
            column[2 * class] = -work * self.units[class].0;
            column[2 * class + 1] = -load.tokens * self.units[class].1;
        }
        self.enter(Column::Share, column)
    }

    fn enter(&mut self, what: Column, column: &[f64]) -> bool {
        self.columns.push(what);
        self.covering.enter(self.columns.len() - 1, column, 0.0)
    }
}

impl Rows {
    fn new(program: &LongProgram) -> Rows {
        let classes = program.classes.len();
        let long = 2 * classes;
        let served = long + program.long.groups.len();
        let mut amounts = vec![0.0; served];
        let mut row = |amount: f64| {
            amounts.push(amount);
            amounts.len() - 1
        };
        let served = row(1.0);
        let taken: f64 = program.classes.iter().map(|class| class.ranks() * count(class.least)).sum();
        let ranks = row(-(f64::from(program.ranks) - taken).max(0.0));
        let (mut replicas, mut most) = (vec![None; classes], vec![None; classes]);
        for (index, class) in program.classes.iter().enumerate() {
            let is_limited = class.least == class.most || count(class.most) < f64::from(program.ranks) / class.ranks();
            if class.least > 0 || is_limited {
                replicas[index] = Some(row(-count(class.least)));
                most[index] = (is_limited && class.most > class.least).then(|| row(-count(class.most - class.least)));
            }
        }
        Rows { long, served, ranks, replicas, most, amounts }
    }
}
