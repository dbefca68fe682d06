//! The final share of a replica.

use crate::units::{Tokens, whole};

/// The tokens that a replica takes in one round of assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Tokens expected for the replica.
    pub(super) expected: Tokens,
    /// Most tokens that the replica may take.
    pub(super) most: Tokens,
}

impl Default for Share {
    /// Expects no tokens and allows any number.
    fn default() -> Share {
        Share { expected: Tokens(0), most: Tokens(u64::MAX) }
    }
}

impl Share {
    /// Shares for replicas that have `assigned` tokens and at most `most`: the excess goes to replicas without a limit,
    /// in proportion to their tokens. None if every replica has a limit.
    pub(super) fn of(assigned: &[Tokens], most: &[Option<Tokens>]) -> Option<Vec<Share>> {
        let limited = assigned.iter().zip(most).filter_map(|(assigned, most)| Some((*assigned).min((*most)?)));
        let left = assigned.iter().copied().sum::<Tokens>() - limited.sum();
        let free: Tokens =
            assigned.iter().zip(most).filter(|(_, most)| most.is_none()).map(|(assigned, _)| *assigned).sum();
        let share = |(assigned, most): (&Tokens, &Option<Tokens>)| match *most {
            Some(most) => Share { expected: most.min(*assigned), most },
            None => {
                Share { expected: Tokens(whole(assigned.as_f64() * left.as_f64() / free.as_f64())), ..Share::default() }
            }
        };
        (free > Tokens(0)).then(|| assigned.iter().zip(most).map(share).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excess_goes_to_the_others() {
        let assigned = [330, 200, 100, 90].map(Tokens);
        let shares = Share::of(&assigned, &[Some(Tokens(300)), None, None, Some(Tokens(100))]).unwrap();
        let expected: Vec<u64> = shares.iter().map(|share| share.expected.0).collect();
        assert_eq!(expected, [300, 220, 110, 90]);
        assert_eq!(shares[0].most, Tokens(300));
        assert_eq!(shares[1].most, Tokens(u64::MAX));
        assert_eq!(Share::of(&assigned[..1], &[Some(Tokens(300))]), None);
    }
}
