//! Sequences into bins that no more than `cap` tokens fit in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::units::{Millis, Tokens};

/// First-fit decreasing: few bins, whatever their times.
///
/// `ids` come longest first; one above the cap has a bin of its own. At most 11/9 of the optimum and one bin more
/// (Johnson 1973); on long-tailed lengths it is nearly always the optimum.
pub(super) fn first_fit(ids: &[usize], tokens: &[Tokens], cap: Tokens) -> Vec<Vec<usize>> {
    let mut bins: Vec<(Tokens, Vec<usize>)> = Vec::new();
    for &id in ids {
        let length = tokens[id];
        match bins.iter_mut().find(|(used, _)| *used + length <= cap) {
            Some((used, bin)) => {
                *used += length;
                bin.push(id);
            }
            None => bins.push((length, vec![id])),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}

/// How many bins `first_fit` uses, without making them.
pub(super) fn first_fit_count(ids: &[usize], tokens: &[Tokens], cap: Tokens, used: &mut Vec<Tokens>) -> usize {
    used.clear();
    for &id in ids {
        let length = tokens[id];
        match used.iter_mut().find(|used| **used + length <= cap) {
            Some(used) => *used += length,
            None => used.push(length),
        }
    }
    used.len()
}

/// A bin for each of `targets`, filled to about that time: each sequence, longest first, into the bin that lacks
/// most and has room (Graham's longest-processing-time rule, under a cap and towards a target). An empty bin
/// takes any sequence. None where one finds no room.
pub(super) fn towards(
    ids: &[usize],
    tokens: &[Tokens],
    ms: &[Millis],
    cap: Tokens,
    targets: impl Iterator<Item = Millis>,
) -> Option<Vec<Vec<usize>>> {
    // A bin stands in the heap with its time beyond the target: the lowest lacks most.
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        targets.enumerate().map(|(bin, target)| Reverse((Millis::ZERO - target, bin))).collect();
    let mut bins = vec![(Tokens(0), Vec::new()); by_time.len()];
    let shortest = ids.last().map(|&id| tokens[id]).unwrap_or_default();
    let mut full = Vec::new();
    for &id in ids {
        let (time, bin) = loop {
            let Reverse((time, bin)) = by_time.pop()?;
            if bins[bin].0 + tokens[id] <= cap || bins[bin].1.is_empty() {
                break (time, bin);
            }
            // A bin without room for the shortest sequence is never looked at again: near full caps that halves
            // the time.
            if bins[bin].0 + shortest <= cap {
                full.push(Reverse((time, bin)));
            }
        };
        bins[bin].0 += tokens[id];
        bins[bin].1.push(id);
        by_time.push(Reverse((time + ms[id], bin)));
        by_time.extend(full.drain(..));
    }
    Some(bins.into_iter().map(|(_, bin)| bin).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_fills_and_counts_alike() {
        let tokens: Vec<Tokens> = [7, 5, 4, 3, 1].map(Tokens).to_vec();
        let ids = [0, 1, 2, 3, 4];
        let bins = first_fit(&ids, &tokens, Tokens(10));
        assert_eq!(bins, [vec![0, 3], vec![1, 2, 4]]);
        assert_eq!(first_fit_count(&ids, &tokens, Tokens(10), &mut Vec::new()), 2);
    }

    #[test]
    fn balanced_bins_respect_the_cap() {
        let tokens: Vec<Tokens> = [8, 8, 2, 2].map(Tokens).to_vec();
        let ms: Vec<Millis> = [1.0, 5.0, 1.0, 1.0].map(Millis).to_vec();
        let into = |cap: u64, targets: [f64; 2]| {
            towards(&[0, 1, 2, 3], &tokens, &ms, Tokens(cap), targets.into_iter().map(Millis))
        };
        assert_eq!(into(10, [0.0, 0.0]).unwrap(), [vec![0, 2], vec![1, 3]]);
        assert_eq!(into(9, [0.0, 0.0]), None);
        assert_eq!(into(100, [1.0, 7.0]).unwrap(), [vec![2], vec![0, 1, 3]]);
    }
}
