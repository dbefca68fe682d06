//! Polynomials of least squared distance to points.

/// The coefficients of the polynomial with `N` terms, from the constant on.
///
/// Householder-free: the columns are powers of `x` over the greatest `x`, made orthogonal one after the other (modified
/// Gram-Schmidt), so that lengths up to 32,768 lose no digits to their fourth powers.
pub(super) fn polynomial<const N: usize>(points: &[(f64, f64)]) -> [f64; N] {
    let scale = points.iter().map(|point| point.0.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let mut columns: Vec<Vec<f64>> =
        powers::<N>().map(|power| points.iter().map(|(x, _)| (x / scale).powi(power)).collect()).collect();
    let mut triangle = [[0.0; N]; N];
    let mut projected = [0.0; N];
    let mut rest: Vec<f64> = points.iter().map(|point| point.1).collect();
    for column in 0..N {
        let norm = dot(&columns[column], &columns[column]).sqrt();
        triangle[column][column] = norm;
        columns[column].iter_mut().for_each(|x| *x /= norm);
        let unit = columns[column].clone();
        for later in column + 1..N {
            triangle[column][later] = dot(&unit, &columns[later]);
            subtract(&mut columns[later], &unit, triangle[column][later]);
        }
        projected[column] = dot(&unit, &rest);
        subtract(&mut rest, &unit, projected[column]);
    }
    let mut terms = [0.0; N];
    for row in (0..N).rev() {
        let known: f64 = (row + 1..N).map(|later| triangle[row][later] * terms[later]).sum();
        terms[row] = (projected[row] - known) / triangle[row][row];
    }
    for (term, power) in terms.iter_mut().zip(powers::<N>()) {
        *term /= scale.powi(power);
    }
    terms
}

fn powers<const N: usize>() -> impl Iterator<Item = i32> {
    (0..).take(N)
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(x, y)| x * y).sum()
}

fn subtract(from: &mut [f64], unit: &[f64], times: f64) {
    from.iter_mut().zip(unit).for_each(|(x, y)| *x -= times * y);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polynomial_is_found_again_and_residuals_are_orthogonal() {
        let lengths = [4096.0, 8192.0, 16_384.0, 32_768.0_f64];
        let exact: Vec<(f64, f64)> = lengths.map(|x| (x, (2e-9 * x + 3e-3) * x - 5.0)).into();
        for (found, expected) in polynomial::<3>(&exact).into_iter().zip([-5.0, 3e-3, 2e-9]) {
            assert!((found - expected).abs() <= 1e-10 * expected.abs(), "{found}, {expected}");
        }
        let noisy = [(0.0, 1.0), (1.0, 0.0), (2.0, 5.0)];
        let [constant, slope] = polynomial::<2>(&noisy);
        assert!((slope - 2.0).abs() < 1e-12 && constant.abs() < 1e-12, "{constant}, {slope}");
    }
}
