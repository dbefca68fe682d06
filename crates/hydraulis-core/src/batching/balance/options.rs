//! The options of a balance, and the rules that follow from them.

use crate::batching::balance::balancer::{MAX_CAP, checked};
use crate::batching::balance::workload::MAX_COST;
use crate::error::{BalanceError, Error, Result};
use crate::spec::BalanceBudget;
use crate::units::{Millis, Tokens};

/// The greatest number of micro-batches of a replica. A mistyped number fails at this limit and not in an allocation.
const MAX_MICRO_BATCHES: i64 = 1 << 20;

/// The demands of a training loop on a balance, beyond its replicas, cap and barrier. The default demands nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct BalanceOptions {
    /// The exact number of micro-batches of every replica; `None` for as few as the algorithm finds.
    pub micro_batches: Option<i64>,
    /// The least number of micro-batches of a replica.
    pub least_micro_batches: i64,
    /// The divisor of every replica's number of micro-batches.
    pub multiple_of: i64,
    /// Whether the replicas' numbers of sequences differ by at most one.
    pub equal_sequences: bool,
    /// The time that each micro-batch takes in addition to its sequences, an empty one too.
    pub fixed_ms: f64,
    /// The speed of each replica, in proportion to the others; `None` for equal speeds of 1.
    pub speeds: Option<Vec<f64>>,
    /// The cap of a micro-batch on the extra tokens of its sequences.
    pub cap_extra_tokens: Option<i64>,
    /// Whether a micro-batch may have no sequence, and a replica no micro-batch.
    pub allow_empty: bool,
}

impl Default for BalanceOptions {
    fn default() -> BalanceOptions {
        BalanceOptions {
            micro_batches: None,
            least_micro_batches: 0,
            multiple_of: 1,
            equal_sequences: false,
            fixed_ms: 0.0,
            speeds: None,
            cap_extra_tokens: None,
            allow_empty: false,
        }
    }
}

/// The options after their validation.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) numbers: Numbers,
    pub(super) equal_sequences: bool,
    pub(super) fixed: Millis,
    /// The time of one unit of work on each replica, the inverse of its speed.
    pub(super) paces: Vec<f64>,
    pub(super) extra_cap: Option<Tokens>,
    pub(super) allow_empty: bool,
    pub(super) budget: BalanceBudget,
}

impl Rules {
    pub(super) fn new(options: &BalanceOptions, replicas: usize) -> Result<Rules> {
        if !(0.0..=MAX_COST).contains(&options.fixed_ms) {
            return Err(BalanceError::FixedTime { value: options.fixed_ms.to_string(), limit: MAX_COST }.into());
        }
        Ok(Rules {
            numbers: Numbers::new(options)?,
            equal_sequences: options.equal_sequences,
            fixed: Millis(options.fixed_ms),
            paces: paces(options.speeds.as_deref(), replicas)?,
            extra_cap: options.cap_extra_tokens.map(checked_extra_cap).transpose()?,
            allow_empty: options.allow_empty,
            budget: BalanceBudget::ONLINE,
        })
    }

    /// Rules without any demand, for tests.
    #[cfg(test)]
    pub(super) fn free(replicas: usize) -> Rules {
        Rules::new(&BalanceOptions { allow_empty: true, ..BalanceOptions::default() }, replicas).unwrap()
    }

    /// Whether all replicas have a speed of 1.
    pub(super) fn has_unit_speeds(&self) -> bool {
        self.paces.iter().all(|pace| pace.total_cmp(&1.0).is_eq())
    }

    /// Whether all replicas are equally fast.
    pub(super) fn is_even(&self) -> bool {
        self.paces.iter().all(|pace| pace.total_cmp(&self.paces[0]).is_eq())
    }

    /// Whether a balance for one barrier per step may give a replica any number of micro-batches at no cost.
    pub(super) fn has_free_steps(&self) -> bool {
        self.numbers.are_free(usize::from(!self.allow_empty)) && self.fixed == Millis::ZERO
    }

    /// The speed of all replicas together.
    pub(super) fn speed(&self) -> f64 {
        self.paces.iter().map(|pace| 1.0 / pace).sum()
    }

    /// The least number of micro-batches that a replica may have.
    pub(super) fn least(&self) -> usize {
        self.numbers.permitted(usize::from(!self.allow_empty)).unwrap_or_default()
    }

    /// The fewest sequences of a replica among `sequences`.
    pub(super) fn fewest(&self, sequences: usize) -> usize {
        let share = if self.equal_sequences { sequences / self.paces.len() } else { 0 };
        if self.allow_empty { share } else { share.max(self.least()) }
    }
}

/// The permitted numbers of micro-batches of a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) exact: Option<usize>,
    least: usize,
    multiple: usize,
}

impl Numbers {
    fn new(options: &BalanceOptions) -> Result<Numbers> {
        let checked = |field, value: i64, from: i64| {
            let in_range = usize::try_from(value).ok().filter(|_| (from..=MAX_MICRO_BATCHES).contains(&value));
            in_range.ok_or(BalanceError::MicroBatches { field, value, from, limit: MAX_MICRO_BATCHES })
        };
        let exact = options.micro_batches.map(|number| checked("micro_batches", number, 1)).transpose()?;
        let least = checked("least_micro_batches", options.least_micro_batches, 0)?;
        let multiple = checked("multiple_of", options.multiple_of, 1)?;
        if let Some(exact) = exact
            && (exact < least || !exact.is_multiple_of(multiple))
        {
            return Err(BalanceError::MicroBatchesContradict { exact, least, multiple }.into());
        }
        Ok(Numbers { exact, least, multiple })
    }

    /// The least permitted number from `needed` on; `None` where there is none.
    pub(super) fn permitted(&self, needed: usize) -> Option<usize> {
        match self.exact {
            Some(exact) => (needed <= exact).then_some(exact),
            None => Some(needed.max(self.least).next_multiple_of(self.multiple)),
        }
    }

    /// The least permitted number of all replicas together from `needed` on; 0 if every replica has an exact number.
    pub(super) fn total(&self, needed: usize) -> usize {
        if self.exact.is_some() { 0 } else { needed.next_multiple_of(self.multiple) }
    }

    /// Whether every number from `from` on is permitted.
    fn are_free(&self, from: usize) -> bool {
        self.exact.is_none() && self.least <= from && self.multiple == 1
    }
}

fn paces(speeds: Option<&[f64]>, replicas: usize) -> Result<Vec<f64>> {
    let Some(speeds) = speeds else { return Ok(vec![1.0; replicas]) };
    if speeds.len() != replicas {
        return Err(BalanceError::SpeedsMismatch { speeds: speeds.len(), replicas }.into());
    }
    let pace = |(replica, &speed): (usize, &f64)| {
        let is_valid = (1e-9..=1e9).contains(&speed);
        is_valid.then_some(1.0 / speed).ok_or_else(|| BalanceError::Speed { replica, value: speed.to_string() })
    };
    Ok(speeds.iter().enumerate().map(pace).collect::<std::result::Result<_, _>>()?)
}

fn checked_extra_cap(value: i64) -> Result<Tokens> {
    let cap = checked(value, MAX_CAP).map(Tokens);
    cap.ok_or(Error::TokenLimit { field: "cap_extra_tokens", value, limit: MAX_CAP })
}
