//! Groups of ranks with one micro-batch each, so that the slowest ends first: the optimum for few sequences.
//!
//! For a limit of time, a set of sequences needs the ranks of its first sequence's group, on the smallest degree that ends
//! within the limit, and those of the other sequences; the least sum over all such groups counts. The optimum is the least
//! time of a group for which all sequences need no more ranks than there are. Sequences of one length are one kind: a set
//! is a number of each kind.

use std::collections::BTreeMap;

use super::sequence_groups::Degree;

/// Most pairs of a set and a part of it: those of 15 different sequences.
pub(super) const MOST_PAIRS: u64 = 3_u64.pow(15);

/// Ranks of a group, and its sequences.
pub(super) type Group = (u32, Vec<i64>);

/// Ranks of a set of sequences that cannot be grouped within a limit.
const NONE: u64 = u64::MAX;

/// The kinds of sequences. The number of a set has a digit for each kind, whose weight is in `weights`.
pub(super) struct Sequences {
    lengths: Vec<i64>,
    counts: Vec<usize>,
    weights: Vec<usize>,
}

/// Each kind's sequences of a set.
type Counts = Vec<usize>;

impl Sequences {
    pub(super) fn new(lengths: &[i64]) -> Sequences {
        let mut kinds: BTreeMap<i64, usize> = BTreeMap::new();
        for &length in lengths {
            *kinds.entry(length).or_default() += 1;
        }
        let (lengths, counts): (Vec<i64>, Vec<usize>) = kinds.into_iter().unzip();
        let weights = counts.iter().scan(1_usize, |next, &count| {
            let weight = *next;
            *next = weight.saturating_mul(count + 1);
            Some(weight)
        });
        Sequences { weights: weights.collect(), lengths, counts }
    }

    /// Pairs of a set and a part of it.
    pub(super) fn pairs(&self) -> u64 {
        let of_kind = |&count: &usize| (count as u64 + 1) * (count as u64 + 2) / 2;
        self.counts.iter().map(of_kind).fold(1, u64::saturating_mul)
    }

    /// The number of all sets, the last of which has all sequences.
    fn sets(&self) -> usize {
        self.counts.iter().map(|count| count + 1).product()
    }

    fn counts_of(&self, set: usize) -> Counts {
        self.weights.iter().zip(&self.counts).map(|(weight, count)| set / weight % (count + 1)).collect()
    }

    fn members(&self, set: usize) -> impl Iterator<Item = i64> {
        let counts = self.counts_of(set);
        self.lengths.iter().zip(counts).flat_map(|(&length, count)| std::iter::repeat_n(length, count))
    }

    /// Sets the numbers to the next part of a set, and returns its number; none after the last one.
    fn next_part(&self, of: &Counts, part: &mut Counts, number: usize) -> Option<usize> {
        let mut number = number;
        for ((own, &most), weight) in part.iter_mut().zip(of).zip(&self.weights) {
            if *own < most {
                *own += 1;
                return Some(number + weight);
            }
            number -= *own * weight;
            *own = 0;
        }
        None
    }
}

/// The groups whose slowest ends first; none if the sequences do not fit one micro-batch for each group.
pub(super) fn best_groups(ranks: u32, degrees: &[Degree], sequences: &Sequences) -> Option<Vec<Group>> {
    let sets = Sets::new(degrees, sequences);
    let mut limits: Vec<f64> = sets.times.iter().flatten().copied().filter(|time| time.is_finite()).collect();
    limits.sort_unstable_by(f64::total_cmp);
    limits.dedup();
    let (mut below, mut enough) = (0, limits.len());
    while below < enough {
        let middle = below.midpoint(enough);
        if sets.cover(limits[middle]).ranks() <= u64::from(ranks) { enough = middle } else { below = middle + 1 }
    }
    Some(sets.cover(*limits.get(enough)?).groups(sequences))
}

/// The times of all sets by degree, smallest first; infinite where tokens exceed a degree's cap.
struct Sets<'a> {
    sequences: &'a Sequences,
    degrees: Vec<&'a Degree>,
    times: Vec<Vec<f64>>,
}

/// For each set the least ranks and the group of its first sequence.
struct Cover {
    ranks: Vec<u64>,
    /// Set and ranks of the group.
    first: Vec<(usize, u32)>,
}

impl<'a> Sets<'a> {
    fn new(degrees: &'a [Degree], sequences: &'a Sequences) -> Sets<'a> {
        let mut degrees: Vec<&Degree> = degrees.iter().collect();
        degrees.sort_by_key(|degree| degree.ranks);
        let time = |set: usize, degree: &Degree| {
            let fits = sequences.members(set).sum::<i64>() <= degree.cap;
            if fits { degree.ms(sequences.members(set)) } else { f64::INFINITY }
        };
        // The empty set needs no group.
        let times = |set: usize| -> Vec<f64> {
            degrees.iter().map(|degree| if set > 0 { time(set, degree) } else { f64::INFINITY }).collect()
        };
        let times = (0..sequences.sets()).map(times).collect();
        Sets { sequences, degrees, times }
    }

    /// Ranks of the smallest degree on which a set ends within a limit.
    fn smallest(&self, set: usize, limit: f64) -> Option<u32> {
        let place = self.times[set].iter().position(|&time| time <= limit)?;
        Some(self.degrees[place].ranks)
    }

    fn cover(&self, limit: f64) -> Cover {
        let number = self.times.len();
        let own: Vec<Option<u32>> = (0..number).map(|set| self.smallest(set, limit)).collect();
        let mut cover = Cover { ranks: vec![NONE; number], first: vec![(0, 0); number] };
        cover.ranks[0] = 0;
        for set in 1..number {
            let mut others = self.sequences.counts_of(set);
            let Some(kind) = others.iter().position(|&count| count > 0) else { continue };
            others[kind] -= 1;
            let mut part: Counts = vec![0; others.len()];
            // Each group has the first sequence and some of the others.
            let mut next = Some(self.sequences.weights[kind]);
            while let Some(group) = next {
                if let (Some(ranks), rest) = (own[group], cover.ranks[set - group])
                    && rest != NONE
                    && rest + u64::from(ranks) < cover.ranks[set]
                {
                    cover.ranks[set] = rest + u64::from(ranks);
                    cover.first[set] = (group, ranks);
                }
                next = self.sequences.next_part(&others, &mut part, group);
            }
        }
        cover
    }
}

impl Cover {
    /// Ranks of all sequences.
    fn ranks(&self) -> u64 {
        self.ranks[self.ranks.len() - 1]
    }

    fn groups(&self, sequences: &Sequences) -> Vec<Group> {
        let mut groups = Vec::new();
        let mut left = self.ranks.len() - 1;
        while left > 0 {
            let (group, ranks) = self.first[left];
            groups.push((ranks, sequences.members(group).collect()));
            left -= group;
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The least time over all ways to give the sequences from `place` on to the groups so far or to a new one.
    fn exhaustive(ranks: u32, degrees: &[Degree], lengths: &[i64], groups: &mut Vec<Group>) -> f64 {
        let Some((&length, rest)) = lengths.split_first() else {
            let degree = |ranks: u32| degrees.iter().find(|degree| degree.ranks == ranks).unwrap();
            let times = groups.iter().map(|(ranks, own)| degree(*ranks).ms(own.iter().copied()));
            return times.fold(0.0, f64::max);
        };
        let mut best = f64::INFINITY;
        for place in 0..groups.len() {
            let cap = degrees.iter().find(|degree| degree.ranks == groups[place].0).unwrap().cap;
            if groups[place].1.iter().sum::<i64>() + length <= cap {
                groups[place].1.push(length);
                best = best.min(exhaustive(ranks, degrees, rest, groups));
                groups[place].1.pop();
            }
        }
        for degree in degrees.iter().filter(|degree| degree.ranks <= ranks && length <= degree.cap) {
            groups.push((degree.ranks, vec![length]));
            best = best.min(exhaustive(ranks - degree.ranks, degrees, rest, groups));
            groups.pop();
        }
        best
    }

    proptest! {
        #[test]
        fn no_other_groups_end_earlier(
            ranks in 1..7_u32, cap in 2..12_i64, fixed in 0..4_u32, exchange in 0..3_u32,
            lengths in vec(1..12_i64, 1..7),
        ) {
            let degree = |ranks: u32| Degree {
                ranks, quadratic: 0.25 / f64::from(ranks), fixed: fixed.into(), cap: cap * i64::from(ranks),
                linear: f64::from(1 + exchange * (ranks - 1)) / f64::from(ranks),
            };
            let degrees: Vec<Degree> = [1, 2, 4].into_iter().map(degree).collect();
            let best = exhaustive(ranks, &degrees, &lengths, &mut Vec::new());
            let found = best_groups(ranks, &degrees, &Sequences::new(&lengths));
            prop_assert_eq!(found.is_some(), best.is_finite());
            if let Some(groups) = found {
                let time = |(ranks, own): &Group| {
                    let degree = degrees.iter().find(|degree| degree.ranks == *ranks).unwrap();
                    assert!(own.iter().sum::<i64>() <= degree.cap);
                    degree.ms(own.iter().copied())
                };
                let slowest = groups.iter().map(time).fold(0.0, f64::max);
                prop_assert!((slowest - best).abs() < 1e-9, "{} {}", slowest, best);
                prop_assert!(groups.iter().map(|group| group.0).sum::<u32>() <= ranks);
                let mut all: Vec<i64> = groups.into_iter().flat_map(|group| group.1).collect();
                let mut lengths = lengths.clone();
                all.sort_unstable();
                lengths.sort_unstable();
                prop_assert_eq!(all, lengths);
            }
        }
    }
}
