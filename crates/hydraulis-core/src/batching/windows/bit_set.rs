//! A set of small numbers that finds its next member in a few steps.
//!
//! Level 0 has a bit for each number. Each higher level has a bit for each non-empty word of the level below. The set
//! is a van Emde Boas tree with words for nodes; every operation takes `O(log64 n)`.

/// A set of numbers below a limit.
#[derive(Debug)]
pub(super) struct BitSet(Vec<Vec<u64>>);

const BITS: usize = 64;

impl BitSet {
    /// An empty set for numbers below `limit`.
    pub(super) fn new(limit: usize) -> BitSet {
        let mut levels = vec![vec![0; limit.div_ceil(BITS).max(1)]];
        while let Some(words) = levels.last().map(Vec::len).filter(|&words| words > 1) {
            levels.push(vec![0; words.div_ceil(BITS)]);
        }
        BitSet(levels)
    }

    pub(super) fn insert(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.0 {
            level[at / BITS] |= 1 << (at % BITS);
            at /= BITS;
        }
    }

    pub(super) fn remove(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.0 {
            level[at / BITS] &= !(1 << (at % BITS));
            if level[at / BITS] != 0 {
                break;
            }
            at /= BITS;
        }
    }

    /// The least member that is at least `number`.
    pub(super) fn next(&self, number: usize) -> Option<usize> {
        let mut at = number;
        for (height, level) in self.0.iter().enumerate() {
            let word = level.get(at / BITS)? >> (at % BITS);
            if word != 0 {
                let found = at + word.trailing_zeros() as usize;
                let below = self.0[..height].iter().rev();
                return Some(below.fold(found, |at, level| at * BITS + level[at].trailing_zeros() as usize));
            }
            at = at / BITS + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bit_set_equals_a_set(limit in 1_usize..300_000, steps in prop::collection::vec(any::<(bool, usize, usize)>(), 1..60)) {
            let (mut set, mut plain) = (BitSet::new(limit), BTreeSet::new());
            for (insert, number, from) in steps {
                let number = number % limit;
                if insert {
                    set.insert(number);
                    plain.insert(number);
                } else if let Some(&member) = plain.iter().nth(number % plain.len().max(1)) {
                    set.remove(member);
                    plain.remove(&member);
                }
                let from = from % limit;
                prop_assert_eq!(set.next(from), plain.range(from..).next().copied());
                prop_assert_eq!(set.next(number), plain.range(number..).next().copied());
            }
        }
    }
}
