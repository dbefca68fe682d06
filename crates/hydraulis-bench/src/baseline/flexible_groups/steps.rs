//! Sorted lengths cut into steps of balanced tokens.

use std::ops::Range;

use hydraulis_core::Tokens;

/// Cuts `lengths` into `count` runs, at most one for each length, so that the largest number of tokens of a run is
/// least.
///
/// A dynamic program over the number of lengths in the first runs; among equal cuts it takes the one whose last runs
/// have most lengths. Its time is `count` times the number of lengths times the number of lengths of a run.
pub(super) fn cut(lengths: &[Tokens], count: usize) -> Vec<Range<usize>> {
    let count = count.min(lengths.len());
    // For each number of lengths, the most tokens of a run and the start of the last run; one list for each run.
    let mut ways: Vec<Vec<(Tokens, usize)>> = Vec::new();
    for run in 0..count {
        let way = |end: usize| last_run(lengths, ways.last(), run, end);
        let next = (0..=lengths.len()).map(way).collect();
        ways.push(next);
    }
    let mut end = lengths.len();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for way in ways.iter().rev() {
        let start = way[end].1;
        runs.push(start..end);
        end = start;
    }
    runs.reverse();
    runs
}

/// The start of run number `run` if it is the last of the first `end` lengths; no run is empty.
fn last_run(lengths: &[Tokens], earlier: Option<&Vec<(Tokens, usize)>>, run: usize, end: usize) -> (Tokens, usize) {
    let Some(earlier) = earlier else { return (lengths[..end].iter().copied().sum(), 0) };
    let mut best = (Tokens(u64::MAX), run);
    let mut assigned = Tokens(0);
    for start in (run..end).rev() {
        assigned += lengths[start];
        if assigned > best.0 {
            break;
        }
        best = best.min((assigned.max(earlier[start].0), start));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    fn most(lengths: &[Tokens], runs: &[Range<usize>]) -> Tokens {
        runs.iter().map(|run| lengths[run.clone()].iter().copied().sum()).max().unwrap_or_default()
    }

    /// The optimum over every cut, by trying each end of the first run.
    fn least(lengths: &[Tokens], count: usize) -> Tokens {
        if count == 1 {
            return lengths.iter().copied().sum();
        }
        let ends = 1..=lengths.len() + 1 - count;
        ends.map(|end| lengths[..end].iter().copied().sum::<Tokens>().max(least(&lengths[end..], count - 1)))
            .min()
            .unwrap_or_default()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn no_other_cut_has_fewer_tokens_in_its_fullest_run(lengths in vec(1..100_u64, 1..9), count in 1..9_usize) {
            let lengths: Vec<Tokens> = lengths.into_iter().map(Tokens).collect();
            let runs = cut(&lengths, count);
            prop_assert_eq!(runs.len(), count.min(lengths.len()));
            prop_assert!(runs.iter().cloned().flatten().eq(0..lengths.len()));
            prop_assert!(runs.iter().all(|run| !run.is_empty()));
            prop_assert_eq!(most(&lengths, &runs), least(&lengths, runs.len()));
        }
    }

    #[test]
    fn among_equal_cuts_the_last_runs_have_most_tokens() {
        let lengths = [9, 4, 3, 2, 1].map(Tokens);
        assert_eq!(cut(&lengths, 3), [0..1, 1..2, 2..5]);
    }
}
