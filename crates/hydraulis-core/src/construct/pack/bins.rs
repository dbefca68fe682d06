//! Puts sequences into bins of at most `cap` tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::units::{Millis, Tokens};

/// Sequences in bins; a search that refills them allocates nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Bins {
    /// The bin of each sequence, in the order of the ids.
    bin_of: Vec<usize>,
    totals: Vec<Tokens>,
    times: Vec<Millis>,
    by_time: BinaryHeap<Reverse<(Millis, usize)>>,
    full: Vec<Reverse<(Millis, usize)>>,
}

impl Bins {
    /// The tokens of each bin; 0 for an empty one.
    pub(super) fn totals(&self) -> &[Tokens] {
        &self.totals
    }

    /// The total time of each bin's sequences.
    pub(super) fn times(&self) -> &[Millis] {
        &self.times
    }

    /// The sequences of each bin, from the same `ids` that filled it.
    pub(super) fn lists(&self, ids: &[usize]) -> Vec<Vec<usize>> {
        let mut lists = vec![Vec::new(); self.totals.len()];
        for (&id, &bin) in ids.iter().zip(&self.bin_of) {
            lists[bin].push(id);
        }
        lists
    }

    /// First-fit decreasing: few bins, whatever their times.
    ///
    /// `ids` come longest first; one above the cap has a bin of its own. At most 11/9 of the optimum and one bin more
    /// (Johnson 1973); on long-tailed lengths it is nearly always the optimum.
    pub(super) fn first_fit(&mut self, ids: &[usize], tokens: &[Tokens], ms: &[Millis], cap: Tokens) {
        self.clear();
        for &id in ids {
            let found = self.totals.iter().position(|&used| used + tokens[id] <= cap);
            let bin = found.unwrap_or_else(|| self.open());
            self.put(id, bin, tokens, ms);
        }
    }

    /// Fills a bin for each of `targets` to about that time: each sequence, longest first, goes to the bin that lacks
    /// most and has room (Graham's longest-processing-time rule, under a cap and towards a target). An empty bin takes
    /// any sequence. False if a sequence finds no room.
    pub(super) fn towards(
        &mut self,
        ids: &[usize],
        tokens: &[Tokens],
        ms: &[Millis],
        cap: Tokens,
        targets: impl Iterator<Item = Millis>,
    ) -> bool {
        self.clear();
        // A bin's key in the heap is its time less the target: the lowest lacks most.
        let mut by_time = std::mem::take(&mut self.by_time).into_vec();
        by_time.extend(targets.enumerate().map(|(bin, target)| Reverse((Millis::ZERO - target, bin))));
        self.totals.resize(by_time.len(), Tokens(0));
        self.times.resize(by_time.len(), Millis::ZERO);
        self.by_time = BinaryHeap::from(by_time);
        let shortest = ids.last().map(|&id| tokens[id]).unwrap_or_default();
        for &id in ids {
            let Some(bin) = self.lowest_with_room(tokens[id], ms[id], shortest, cap) else { return false };
            self.put(id, bin, tokens, ms);
            self.by_time.extend(self.full.drain(..));
        }
        true
    }

    /// The bin with room that lacks most; its lack falls by `ms`.
    fn lowest_with_room(&mut self, tokens: Tokens, ms: Millis, shortest: Tokens, cap: Tokens) -> Option<usize> {
        loop {
            let mut lowest = self.by_time.peek_mut()?;
            let Reverse((time, bin)) = *lowest;
            let assigned = self.totals[bin];
            if assigned + tokens <= cap || assigned == Tokens(0) {
                *lowest = Reverse((time + ms, bin));
                return Some(bin);
            }
            PeekMut::pop(lowest);
            // A bin without room for the shortest sequence leaves the heap: near full caps that halves the time.
            if assigned + shortest <= cap {
                self.full.push(Reverse((time, bin)));
            }
        }
    }

    fn clear(&mut self) {
        self.bin_of.clear();
        self.totals.clear();
        self.times.clear();
        self.by_time.clear();
        self.full.clear();
    }

    fn open(&mut self) -> usize {
        self.totals.push(Tokens(0));
        self.times.push(Millis::ZERO);
        self.totals.len() - 1
    }

    fn put(&mut self, id: usize, bin: usize, tokens: &[Tokens], ms: &[Millis]) {
        self.bin_of.push(bin);
        self.totals[bin] += tokens[id];
        self.times[bin] += ms[id];
    }
}

/// The number of bins of first-fit decreasing, without filling them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_fills_and_counts_alike() {
        let tokens: Vec<Tokens> = [7, 5, 4, 3, 1].map(Tokens).to_vec();
        let ms = [1.0, 2.0, 4.0, 8.0, 16.0].map(Millis);
        let (ids, mut bins) = ([0, 1, 2, 3, 4], Bins::default());
        bins.first_fit(&ids, &tokens, &ms, Tokens(10));
        assert_eq!(bins.lists(&ids), [vec![0, 3], vec![1, 2, 4]]);
        assert_eq!(
            (bins.totals(), bins.times()),
            ([10, 10].map(Tokens).as_slice(), [9.0, 22.0].map(Millis).as_slice())
        );
        assert_eq!(first_fit_count(&ids, &tokens, Tokens(10), &mut Vec::new()), 2);
    }

    #[test]
    fn balanced_bins_respect_the_cap() {
        let tokens: Vec<Tokens> = [8, 8, 2, 2].map(Tokens).to_vec();
        let ms: Vec<Millis> = [1.0, 5.0, 1.0, 1.0].map(Millis).to_vec();
        let (ids, mut bins) = ([0, 1, 2, 3], Bins::default());
        let mut into = |cap: u64, targets: [f64; 2]| {
            let fits = bins.towards(&ids, &tokens, &ms, Tokens(cap), targets.into_iter().map(Millis));
            fits.then(|| bins.lists(&ids))
        };
        assert_eq!(into(10, [0.0, 0.0]).unwrap(), [vec![0, 2], vec![1, 3]]);
        // The contents of an earlier filling are gone.
        assert_eq!(into(9, [0.0, 0.0]), None);
        assert_eq!(into(100, [1.0, 7.0]).unwrap(), [vec![2], vec![0, 1, 3]]);
    }
}
