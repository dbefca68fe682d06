//! Least squares whose solution has no negative entry.

/// One equation: `features . x` should be `target`. The scale of the equation is its weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<const N: usize> {
    pub(crate) features: [f64; N],
    pub(crate) target: f64,
}

impl<const N: usize> Row<N> {
    /// The same equation in another scale.
    pub(crate) fn times(&self, scale: f64) -> Row<N> {
        Row { features: self.features.map(|feature| feature * scale), target: self.target * scale }
    }

    fn residual(&self, x: &[f64; N]) -> f64 {
        dot(&self.features, x) - self.target
    }
}

pub(crate) fn dot<const N: usize>(one: &[f64; N], other: &[f64; N]) -> f64 {
    one.iter().zip(other).map(|(left, right)| left * right).sum()
}

/// The `x >= 0` with the least sum of squared residuals.
///
/// The result is exact: with few unknowns every subset of them can be solved, and the optimum is the unconstrained
/// optimum over the unknowns above zero (Lawson and Hanson 1974, chapter 23). The result is `None` where the columns
/// depend on each other, so that the solution would not be unique.
pub(crate) fn non_negative<const N: usize>(rows: &[Row<N>]) -> Option<[f64; N]> {
    let normal = Normal::of(rows);
    let whole = normal.solve((1 << N) - 1)?;
    if whole.iter().all(|&entry| entry >= 0.0) {
        return Some(whole);
    }
    let candidates = (0_u32..(1 << N) - 1).filter_map(|subset| normal.solve(subset));
    let feasible = candidates.filter(|x| x.iter().all(|&entry| entry >= 0.0));
    feasible.min_by(|one, other| squares(rows, one).total_cmp(&squares(rows, other)))
}

/// The inverse of the normal matrix, which is the covariance of the unconstrained solution up to the noise's
/// variance. The result is `None` where the columns depend on each other.
pub(crate) fn inverse<const N: usize>(rows: &[Row<N>]) -> Option<[[f64; N]; N]> {
    let normal = Normal::of(rows);
    let mut columns = [[0.0; N]; N];
    for (unit, column) in columns.iter_mut().enumerate() {
        let mut right = [0.0; N];
        right[unit] = 1.0;
        *column = Normal { matrix: normal.matrix, right }.solve((1 << N) - 1)?;
    }
    Some(columns)
}

fn squares<const N: usize>(rows: &[Row<N>], x: &[f64; N]) -> f64 {
    rows.iter().map(|row| row.residual(x)).map(|residual| residual * residual).sum()
}

/// The normal equations of some rows.
struct Normal<const N: usize> {
    matrix: [[f64; N]; N],
    right: [f64; N],
}

impl<const N: usize> Normal<N> {
    fn of(rows: &[Row<N>]) -> Normal<N> {
        let mut normal = Normal { matrix: [[0.0; N]; N], right: [0.0; N] };
        for row in rows {
            for i in 0..N {
                for j in 0..N {
                    normal.matrix[i][j] += row.features[i] * row.features[j];
                }
                normal.right[i] += row.features[i] * row.target;
            }
        }
        normal
    }

    /// The unconstrained optimum over the unknowns of `subset` (a bit mask), with the other unknowns 0.
    fn solve(&self, subset: u32) -> Option<[f64; N]> {
        let chosen: Vec<usize> = (0..N).filter(|column| subset & (1 << column) != 0).collect();
        let scale: Vec<f64> = chosen.iter().map(|&column| self.matrix[column][column].sqrt()).collect();
        if scale.iter().any(|&scale| scale <= 0.0) {
            return None;
        }
        let mut system: Vec<Vec<f64>> = Vec::with_capacity(chosen.len());
        for (i, &row) in chosen.iter().enumerate() {
            let scaled = chosen.iter().zip(&scale).map(|(&column, other)| self.matrix[row][column] / scale[i] / other);
            system.push(scaled.chain([self.right[row] / scale[i]]).collect());
        }
        eliminate(&mut system)?;
        let mut x = [0.0; N];
        let mut solution = vec![0.0; chosen.len()];
        for i in (0..chosen.len()).rev() {
            let known: f64 = (i + 1..chosen.len()).map(|j| system[i][j] * solution[j]).sum();
            solution[i] = (system[i][chosen.len()] - known) / system[i][i];
            x[chosen[i]] = solution[i] / scale[i];
        }
        Some(x)
    }
}

/// Brings a symmetric system with ones on its diagonal to triangular form; `None` where its columns depend on each
/// other.
fn eliminate(system: &mut [Vec<f64>]) -> Option<()> {
    let n = system.len();
    for pivot in 0..n {
        let (above, below) = system.split_at_mut(pivot + 1);
        let row = &above[pivot];
        // The pivot is the share of a column that the other columns do not explain; a share below this limit is
        // rounding error.
        if row[pivot] < 1e-11 {
            return None;
        }
        for other in below {
            let factor = other[pivot] / row[pivot];
            for column in pivot..=n {
                other[column] -= factor * row[column];
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(features: [f64; 3], target: f64) -> Row<3> {
        Row { features, target }
    }

    #[test]
    fn columns_that_depend_on_each_other_have_no_solution() {
        let rows = [1.0, 2.0, 3.0, 4.0].map(|x| row([x, 2.0 * x, 1.0], x));
        assert_eq!(non_negative(&rows), None);
        assert_eq!(inverse(&rows), None);
        assert_eq!(non_negative(&[row([1.0, 0.0, 1.0], 1.0), row([2.0, 0.0, 1.0], 1.0)]), None);
    }

    #[test]
    fn the_inverse_is_one() {
        let rows = [row([2.0, 0.0, 0.0], 1.0), row([0.0, 4.0, 0.0], 1.0), row([0.0, 0.0, 1.0], 1.0)];
        assert_eq!(inverse(&rows), Some([[0.25, 0.0, 0.0], [0.0, 0.0625, 0.0], [0.0, 0.0, 1.0]]));
    }

    proptest! {
        /// The conditions of Karush, Kuhn and Tucker: no entry is below 0, and no gradient points inside.
        #[test]
        fn the_solution_is_the_constrained_optimum(
            points in proptest::collection::vec((proptest::array::uniform3(-1.0..1.0_f64), -1.0..1.0_f64), 4..12),
        ) {
            let rows: Vec<Row<3>> = points.into_iter().map(|(features, target)| row(features, target)).collect();
            let Some(x) = non_negative(&rows) else { return Ok(()) };
            for column in 0..3 {
                let gradient: f64 = rows.iter().map(|row| row.residual(&x) * row.features[column]).sum();
                prop_assert!(x[column] >= 0.0);
                prop_assert!(gradient > -1e-6, "{gradient}");
                prop_assert!(x[column] == 0.0 || gradient.abs() < 1e-6, "{gradient}");
            }
        }
    }
}
