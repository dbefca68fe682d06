//! Casts between counts and floats; no other module of this crate casts.

use hydraulis_core::Tokens;

/// A count as a float.
pub(crate) fn count(n: impl TryInto<u64>) -> f64 {
    Tokens(n.try_into().unwrap_or(u64::MAX)).as_f64()
}

/// A length in the core's input type; lengths come from the core, so they are far below the limit.
pub(crate) fn length(tokens: Tokens) -> i64 {
    i64::try_from(tokens.0).unwrap_or(i64::MAX)
}

/// The nearest integer from 1 to `most`.
#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, and the limits follow")]
pub(crate) fn rounded(x: f64, most: i64) -> i64 {
    (x.round() as i64).clamp(1, most)
}

/// The percentile of sorted values by nearest rank; none for an empty list.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a list's length")]
    let rank = (share * count(sorted.len())).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_list() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        for (share, expected) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            assert_eq!(percentile(&values, share), Some(expected));
        }
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[3.0], 0.5), Some(3.0));
    }

    #[test]
    fn lengths_are_rounded_and_clipped() {
        assert_eq!([0.2, 2.5, 7.4, f64::INFINITY].map(|x| rounded(x, 9)), [1, 3, 7, 9]);
    }
}
