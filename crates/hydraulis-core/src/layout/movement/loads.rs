//! Who does how much, so that what several ranks could do is shared out evenly.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::layout::Holding;

/// What each rank has to do so far.
#[derive(Default)]
pub(super) struct Loads(BTreeMap<u32, u64>);

impl Loads {
    /// Cuts an interval into a part for each of some candidates, so that those with the least load get the most, and adds it
    /// to their loads, `weight` for each element. Empty parts are left out.
    pub(super) fn share<'a>(
        &mut self,
        interval: &Range<u64>,
        candidates: &[&'a Holding],
        weight: usize,
    ) -> Vec<(Range<u64>, &'a Holding)> {
        let weight = weight as u64;
        let load = |one: &&Holding| self.0.get(&one.rank).copied().unwrap_or_default() / weight.max(1);
        let before: Vec<u64> = candidates.iter().map(load).collect();
        let mut after = before.clone();
        fill(&mut after, interval.end - interval.start);
        let mut start = interval.start;
        let mut parts = Vec::new();
        for (&candidate, elements) in
            candidates.iter().zip(after.iter().zip(before).map(|(after, before)| after - before))
        {
            if elements > 0 {
                *self.0.entry(candidate.rank).or_default() += elements * weight;
                parts.push((start..start + elements, candidate));
                start += elements;
            }
        }
        parts
    }
}

/// Pours `amount` over these levels: the lowest rise first, together, and what is left over goes to those that were lowest.
fn fill(levels: &mut [u64], mut amount: u64) {
    let mut order: Vec<usize> = (0..levels.len()).collect();
    order.sort_by_key(|&index| (levels[index], index));
    for lowest in 1..=order.len() {
        let (together, level) = (lowest as u64, levels[order[0]]);
        let step = order.get(lowest).map_or(u64::MAX, |&next| levels[next] - level);
        let rise = step.min(amount / together);
        for &index in &order[..lowest] {
            levels[index] += rise;
        }
        amount -= rise * together;
        if rise < step {
            for &index in order.iter().take(usize::try_from(amount).unwrap_or(usize::MAX)) {
                levels[index] += 1;
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(levels: &[u64], amount: u64) -> Vec<u64> {
        let mut levels = levels.to_vec();
        fill(&mut levels, amount);
        levels
    }

    #[test]
    fn the_lowest_rise_first_and_together() {
        assert_eq!(filled(&[5, 1, 3], 2), [5, 3, 3]);
        assert_eq!(filled(&[5, 1, 3], 6), [5, 5, 5]);
        assert_eq!(filled(&[5, 1, 3], 10), [6, 7, 6]);
        assert_eq!(filled(&[0, 0, 0], 100), [34, 33, 33]);
        assert_eq!((filled(&[4], 0), filled(&[4], 9), filled(&[], 0)), (vec![4], vec![13], vec![]));
    }

    #[test]
    fn what_weighs_more_loads_more() {
        let [one, other] = [0, 1].map(|rank| Holding { rank, elements: 0..100, offset: 0 });
        let mut loads = Loads::default();
        assert_eq!(loads.share(&(0..10), &[&one], 4), [(0..10, &one)]);
        assert_eq!(loads.share(&(0..60), &[&one, &other], 1), [(0..10, &one), (10..60, &other)]);
    }
}
