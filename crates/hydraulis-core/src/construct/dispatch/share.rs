//! What a replica is to hold in the end.

use crate::units::{Tokens, whole};

/// The tokens that a replica is to take in a deal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// What it is expected to take.
    pub(super) expected: Tokens,
    /// The most that it may take.
    pub(super) most: Tokens,
}

impl Default for Share {
    /// Nothing is expected, and anything allowed.
    fn default() -> Share {
        Share { expected: Tokens(0), most: Tokens(u64::MAX) }
    }
}

impl Share {
    /// For replicas that hold `held` tokens and may hold `most`: what is too much goes to those that may hold anything, by
    /// what they hold. None where there are no such.
    pub(super) fn of(held: &[Tokens], most: &[Option<Tokens>]) -> Option<Vec<Share>> {
        let limited = held.iter().zip(most).filter_map(|(held, most)| Some((*held).min((*most)?)));
        let left = held.iter().copied().sum::<Tokens>() - limited.sum();
        let free: Tokens = held.iter().zip(most).filter(|(_, most)| most.is_none()).map(|(held, _)| *held).sum();
        let share = |(held, most): (&Tokens, &Option<Tokens>)| match *most {
            Some(most) => Share { expected: most.min(*held), most },
            None => {
                Share { expected: Tokens(whole(held.as_f64() * left.as_f64() / free.as_f64())), ..Share::default() }
            }
        };
        (free > Tokens(0)).then(|| held.iter().zip(most).map(share).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_goes_to_the_others() {
        let held = [330, 200, 100, 90].map(Tokens);
        let shares = Share::of(&held, &[Some(Tokens(300)), None, None, Some(Tokens(100))]).unwrap();
        let expected: Vec<u64> = shares.iter().map(|share| share.expected.0).collect();
        assert_eq!(expected, [300, 220, 110, 90]);
        assert_eq!(shares[0].most, Tokens(300));
        assert_eq!(shares[1].most, Tokens(u64::MAX));
        assert_eq!(Share::of(&held[..1], &[Some(Tokens(300))]), None);
    }
}
