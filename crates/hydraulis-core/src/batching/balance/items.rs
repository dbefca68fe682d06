//! The sequences of a batch with their own values, and groups of sequences that stay in one micro-batch.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::batch::{Batch, LONGEST_SEQUENCE};
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::{MAX_COST, SequenceCost};
use crate::error::{BalanceError, Error, Result};
use crate::units::{Millis, Tokens};

/// The values of each sequence beyond its length; `None` where a sequence has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceValues<'a> {
    /// The time of each sequence in addition to the time of its tokens.
    pub work_ms: Option<&'a [f64]>,
    /// The tokens of each sequence that count against a cap of their own, such as those of an image encoder.
    pub extra_tokens: Option<&'a [i64]>,
    /// The group of each sequence; sequences of one group stay in one micro-batch.
    pub groups: Option<&'a [i64]>,
}

impl SequenceValues<'_> {
    pub(super) fn are_none(&self) -> bool {
        self.work_ms.is_none() && self.extra_tokens.is_none() && self.groups.is_none()
    }
}

/// The parts of a batch that a balance cannot divide: sequences, or groups of them.
#[derive(Clone, Debug)]
pub(super) struct Items {
    pub(super) tokens: Vec<Tokens>,
    pub(super) extra: Vec<Tokens>,
    pub(super) ms: Vec<Millis>,
    /// The sequences of each group; `None` without groups.
    pub(super) members: Option<Members>,
}

/// The sequences of each group, longest first.
#[derive(Clone, Debug)]
pub(super) struct Members(Vec<Vec<usize>>);

impl Items {
    /// The items of a batch, each of which fits under the caps.
    pub(super) fn new(
        batch: &Batch,
        values: &SequenceValues,
        cost: SequenceCost,
        cap: Tokens,
        extra_cap: Option<Tokens>,
    ) -> Result<Items> {
        let tokens = batch.tokens().to_vec();
        let extra = extra_tokens(values.extra_tokens, extra_cap, tokens.len())?;
        let mut ms: Vec<Millis> = tokens.iter().map(|&tokens| cost.sequence_ms(tokens)).collect();
        add_work(&mut ms, values.work_ms)?;
        let single = Items { tokens, extra, ms, members: None };
        let Some(groups) = values.groups else { return Ok(single) };
        check_number("groups", groups.len(), batch.len())?;
        single.grouped(groups, cap, extra_cap)
    }

    fn grouped(&self, groups: &[i64], cap: Tokens, extra_cap: Option<Tokens>) -> Result<Items> {
        let mut by_group: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (sequence, &group) in groups.iter().enumerate() {
            by_group.entry(group).or_default().push(sequence);
        }
        let total = |of: &[Tokens], ids: &[usize]| -> Tokens { ids.iter().map(|&id| of[id]).sum() };
        for (&group, ids) in &by_group {
            let extra_limit = extra_cap.map(|cap| (&self.extra, cap, "extra tokens", "cap_extra_tokens"));
            for (of, cap, kind, field) in
                [Some((&self.tokens, cap, "tokens", "cap_tokens")), extra_limit].into_iter().flatten()
            {
                let (tokens, sequences, first) = (total(of, ids), ids.len(), ids[0]);
                if tokens > cap {
                    return Err(
                        BalanceError::GroupAboveCap { group, sequences, first, tokens, kind, field, cap }.into()
                    );
                }
            }
        }
        let mut members: Vec<Vec<usize>> = by_group.into_values().collect();
        members.sort_unstable_by_key(|ids| ids[0]);
        Ok(Items {
            tokens: members.iter().map(|ids| total(&self.tokens, ids)).collect(),
            extra: members.iter().map(|ids| total(&self.extra, ids)).collect(),
            ms: members.iter().map(|ids| ids.iter().map(|&id| self.ms[id]).sum()).collect(),
            members: Some(Members(members)),
        })
    }

    /// An error where groups differ in size, so that replicas cannot have equal numbers of sequences.
    pub(super) fn check_equal_groups(&self, groups: Option<&[i64]>) -> Result<()> {
        let (Some(Members(members)), Some(groups)) = (&self.members, groups) else { return Ok(()) };
        let Some((first, others)) = members.split_first() else { return Ok(()) };
        match others.iter().find(|ids| ids.len() != first.len()) {
            None => Ok(()),
            Some(other) => Err(BalanceError::GroupsUnequal {
                group: groups[first[0]],
                sequences: first.len(),
                other: groups[other[0]],
                others: other.len(),
            }
            .into()),
        }
    }
}

impl Members {
    /// Replaces the groups of a micro-batch by their sequences, longest first.
    pub(super) fn expand(&self, micro_batch: &mut MicroBatch, tokens: &[Tokens]) {
        let groups = std::mem::take(&mut micro_batch.sequences);
        micro_batch.sequences = groups.into_iter().flat_map(|group| self.0[group].iter().copied()).collect();
        micro_batch.sequences.sort_unstable_by_key(|&id| (Reverse(tokens[id]), id));
    }
}

fn check_number(field: &'static str, values: usize, sequences: usize) -> Result<()> {
    let mismatch = BalanceError::ValuesMismatch { field, values, sequences };
    if values == sequences { Ok(()) } else { Err(mismatch.into()) }
}

fn add_work(ms: &mut [Millis], work_ms: Option<&[f64]>) -> Result<()> {
    let Some(work_ms) = work_ms else { return Ok(()) };
    check_number("work_ms", work_ms.len(), ms.len())?;
    for (sequence, (ms, &work)) in ms.iter_mut().zip(work_ms).enumerate() {
        if !(0.0..=MAX_COST).contains(&work) {
            return Err(BalanceError::Work { sequence, value: work.to_string(), limit: MAX_COST }.into());
        }
        *ms += Millis(work);
    }
    Ok(())
}

fn extra_tokens(extra: Option<&[i64]>, cap: Option<Tokens>, sequences: usize) -> Result<Vec<Tokens>> {
    let alone = |given, missing| Err(Error::from(BalanceError::ExtraTokensAlone { given, missing }));
    let (extra, cap) = match (extra, cap) {
        (None, None) => return Ok(vec![Tokens::default(); sequences]),
        (Some(_), None) => return alone("extra_tokens", "cap_extra_tokens"),
        (None, Some(_)) => return alone("cap_extra_tokens", "extra_tokens"),
        (Some(extra), Some(cap)) => (extra, cap),
    };
    check_number("extra_tokens", extra.len(), sequences)?;
    let checked = |(sequence, &value): (usize, &i64)| {
        let tokens = u64::try_from(value).ok().filter(|_| value <= LONGEST_SEQUENCE).map(Tokens);
        let tokens = tokens.ok_or(BalanceError::ExtraTokens { sequence, value, limit: LONGEST_SEQUENCE })?;
        if tokens > cap {
            return Err(BalanceError::ExtraAboveCap { sequence, tokens, cap }.into());
        }
        Ok(tokens)
    };
    extra.iter().enumerate().map(checked).collect()
}
