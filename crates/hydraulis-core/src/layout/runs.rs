//! Disjoint runs of a bucket's elements, in order.

use std::ops::Range;

pub(crate) type Runs = Vec<Range<u64>>;

/// The same elements, each once.
pub(crate) fn joined(mut runs: Runs) -> Runs {
    runs.sort_unstable_by_key(|run| run.start);
    let mut joined: Runs = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => joined.push(run),
        }
    }
    joined
}

/// Number of elements of a run.
pub(crate) fn length(run: &Range<u64>) -> u64 {
    run.end - run.start
}

/// The elements common to two runs; may be empty.
pub(crate) fn common(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// The parts of these runs that lie in a piece.
pub(crate) fn within(runs: &[Range<u64>], piece: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    runs.iter().map(|run| common(run, piece)).filter(|part| !part.is_empty())
}

/// Number of these elements in a piece.
pub(crate) fn overlap(runs: &[Range<u64>], piece: &Range<u64>) -> u64 {
    within(runs, piece).map(|part| length(&part)).sum()
}
