//! The least cost of covering amounts by columns that an oracle supplies one at a time.
//!
//! The program is `min cost x` subject to `A x >= amounts`, `x >= 0`. The solver is the revised simplex method with a
//! dense inverse (Dantzig 1953), with column generation as in Gilmore and Gomory 1961. Programs here have at most a
//! few dozen rows, so a change of basis costs about a microsecond. A library was tried (docs/log.md): to solve the
//! same programs whole, it took ten times as long, and it gives no dual prices, from which the bounds are made.
//!
//! The bounds do not depend on this solver's correctness: callers compute their bounds from the columns or dual
//! prices themselves, and any columns and any dual prices give a valid bound. A program that stops early gives only a
//! weaker bound.

/// The least pivot. Division by a smaller pivot would divide by a rounding error.
const LEAST_PIVOT: f64 = 1e-9;
/// The threshold below which a dual price counts as negative and not as rounding.
const NEGATIVE: f64 = -1e-9;

/// A covering program in the state of a basic feasible solution.
#[derive(Clone, Debug)]
pub(crate) struct Covering {
    rows: usize,
    /// The inverse of the basis, column by column: all sums go along columns, of which many are zero.
    inverse: Vec<f64>,
    basis: Vec<Basic>,
    amounts: Vec<f64>,
    prices: Vec<f64>,
    direction: Vec<f64>,
}

/// The entry in one row of the basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basic {
    /// The row's own column: it covers the row's amounts at the penalty, or is the row's surplus.
    Own,
    /// The column that was entered under this number.
    Column(usize),
}

impl Covering {
    /// A program for `amounts`, in which a unit that no column covers costs `penalty`. A negative amount is a limit,
    /// and its row starts with its slack in the basis.
    pub(crate) fn new(amounts: &[f64], penalty: f64) -> Covering {
        let rows = amounts.len();
        let mut inverse = vec![0.0; rows * rows];
        let mut prices = vec![0.0; rows];
        for (row, &amount) in amounts.iter().enumerate() {
            let is_limit = amount < 0.0;
            inverse[row * rows + row] = if is_limit { -1.0 } else { 1.0 };
            prices[row] = if is_limit { 0.0 } else { penalty };
        }
        Covering {
            rows,
            inverse,
            basis: vec![Basic::Own; rows],
            amounts: amounts.iter().map(|amount| amount.abs()).collect(),
            prices,
            direction: vec![0.0; rows],
        }
    }

    /// The dual prices: the marginal cost of a unit of each row's amounts.
    pub(crate) fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// The columns in use, by number, with their amounts.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.basis.iter().zip(&self.amounts).filter_map(|(basic, &amount)| match basic {
            Basic::Column(number) => Some((*number, amount)),
            Basic::Own => None,
        })
    }

    /// Takes surplus into the basis until no dual price is negative; returns false if `budget` ends first.
    pub(crate) fn settle(&mut self, budget: &mut usize) -> bool {
        while let Some(row) = self.most_negative() {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let column = &self.inverse[row * self.rows..(row + 1) * self.rows];
            self.direction.iter_mut().zip(column).for_each(|(direction, entry)| *direction = -entry);
            let reduced = self.prices[row];
            if !self.pivot(reduced, Basic::Own) {
                return false;
            }
        }
        true
    }

    /// Takes a column into the basis; returns false where the column would not lower the cost.
    pub(crate) fn enter(&mut self, number: usize, column: &[f64], cost: f64) -> bool {
        let reduced = cost - column.iter().zip(&self.prices).map(|(entry, price)| entry * price).sum::<f64>();
        if reduced >= 0.0 {
            return false;
        }
        self.direction.fill(0.0);
        for (inverse, &entry) in self.inverse.chunks_exact(self.rows).zip(column) {
            if entry != 0.0 {
                self.direction.iter_mut().zip(inverse).for_each(|(direction, inverse)| *direction += inverse * entry);
            }
        }
        self.pivot(reduced, Basic::Column(number))
    }

    fn most_negative(&self) -> Option<usize> {
        let negative = (0..self.rows).filter(|&row| self.prices[row] < NEGATIVE);
        negative.min_by(|&one, &other| self.prices[one].total_cmp(&self.prices[other]))
    }

    /// Exchanges the entering column, whose form in the basis is `direction`, for the first basic column that it
    /// drives to 0.
    fn pivot(&mut self, reduced: f64, entering: Basic) -> bool {
        let Some(leaving) = self.leaving() else { return false };
        let scale = 1.0 / self.direction[leaving];
        let amount = self.amounts[leaving] * scale;
        for (amounts, factor) in self.amounts.iter_mut().zip(&self.direction) {
            *amounts = (*amounts - factor * amount).max(0.0);
        }
        for (inverse, price) in self.inverse.chunks_exact_mut(self.rows).zip(&mut self.prices) {
            let pivot = inverse[leaving] * scale;
            if pivot != 0.0 {
                inverse.iter_mut().zip(&self.direction).for_each(|(entry, factor)| *entry -= factor * pivot);
                inverse[leaving] = pivot;
                *price += reduced * pivot;
            }
        }
        self.amounts[leaving] = amount;
        self.basis[leaving] = entering;
        true
    }

    fn leaving(&self) -> Option<usize> {
        let candidates = (0..self.rows).filter(|&place| self.direction[place] > LEAST_PIVOT);
        let ratio = |place: usize| self.amounts[place] / self.direction[place];
        // Among equal ratios the largest pivot is the most exact.
        candidates.min_by(|&one, &other| {
            ratio(one).total_cmp(&ratio(other)).then(self.direction[other].total_cmp(&self.direction[one]))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cover of `rows` rows by these columns; columns enter as long as they lower the cost.
    fn cover(rows: usize, most: f64, columns: &[(Vec<f64>, f64)]) -> (Covering, Vec<f64>) {
        let mut program = Covering::new(&vec![1.0; rows], most);
        let mut budget = 10_000;
        while program.settle(&mut budget) && budget > 0 {
            let prices = program.prices().to_vec();
            let value = |(column, cost): &(Vec<f64>, f64)| -> f64 {
                column.iter().zip(&prices).map(|(entry, price)| entry * price).sum::<f64>() - cost
            };
            let best =
                (0..columns.len()).max_by(|&one, &other| value(&columns[one]).total_cmp(&value(&columns[other])));
            match best {
                Some(best) if value(&columns[best]) > 1e-9 => {
                    program.enter(best, &columns[best].0, columns[best].1);
                }
                _ => break,
            }
        }
        let prices = program.prices().to_vec();
        (program, prices)
    }

    proptest! {
        #[test]
        fn primal_and_dual_agree(
            columns in prop::collection::vec((prop::collection::vec(0.0..2.0_f64, 3), 0.2..3.0_f64), 1..8),
        ) {
            let most = 5.0;
            let (program, prices) = cover(3, most, &columns);
            let mut covered = [0.0; 3];
            let mut cost = 0.0;
            for (number, amount) in program.columns() {
                prop_assert!(amount >= -1e-6);
                cost += amount * columns[number].1;
                covered.iter_mut().zip(&columns[number].0).for_each(|(covered, entry)| *covered += amount * entry);
            }
            // The amounts that are not covered cost the penalty, `most` per unit.
            cost += most * covered.iter().map(|covered| (1.0 - covered).max(0.0)).sum::<f64>();
            let value: f64 = prices.iter().sum();
            prop_assert!((cost - value).abs() <= 1e-6 * cost.max(1.0), "{cost} {value}");
            for (column, cost) in &columns {
                let value: f64 = column.iter().zip(&prices).map(|(entry, price)| entry * price).sum();
                prop_assert!(value <= cost + 1e-6);
            }
            prop_assert!(prices.iter().all(|price| *price >= -1e-6));
        }
    }
}
