//! Exchanges of sequences between the batches of a lookahead.
//!
//! The longest sequence sets the time of its batch when the other sequences could be done earlier, and a batch that
//! has one such sequence takes hardly longer with two. So one batch gives its longest sequences to another, which
//! returns shorter ones of about as many tokens. Quick lower bounds rank the exchanges. The best exchange is planned,
//! and is made if it shortens the sum of both iterations. The search ends when no exchange helps or the budget of
//! plans is spent.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::lookahead::group::{Group, gathered};
use crate::lookahead::{Lookahead, Member, Progress, TOLERANCE_PARTS};
use crate::search::Planner;
use crate::units::{Millis, Tokens};

/// The batches after all exchanges that helped; `None` where no sequence moved.
pub(super) fn regroup(
    planner: &Planner,
    lookahead: &Lookahead,
    groups: &[Group],
    cancellation: Cancellation,
    report: &mut dyn FnMut(Progress) -> Result<()>,
) -> Result<Option<Vec<Group>>> {
    if lookahead.max_delay == 0 {
        return Ok(None);
    }
    let mut regrouping = Regrouping::new(planner, lookahead, groups, cancellation);
    let of = planner.budget().exchanges.saturating_mul(groups.len());
    for from in 0..groups.len() {
        report(Progress::Exchanged { exchanges: 0, of })?;
        for to in regrouping.near(from) {
            regrouping.consider(from, to)?;
        }
    }
    let mut has_moved = false;
    for exchanges in 0..of {
        report(Progress::Exchanged { exchanges, of })?;
        let Some(pair) = regrouping.best_pair() else { break };
        has_moved |= regrouping.exchange(pair)?;
    }
    Ok(has_moved.then_some(regrouping.groups))
}

struct Regrouping<'a> {
    planner: &'a Planner,
    lookahead: &'a Lookahead<'a>,
    cancellation: Cancellation<'a>,
    groups: Vec<Group>,
    bounds: Vec<Millis>,
    /// The best exchange of each pair of batches that has one; the first batch of the pair gives its longest
    /// sequences.
    ideas: BTreeMap<(usize, usize), Idea>,
}

/// An exchange and its gain by the bounds.
#[derive(Clone, Debug)]
struct Idea {
    gain: Millis,
    members: [Vec<Member>; 2],
}

impl<'a> Regrouping<'a> {
    fn new(
        planner: &'a Planner,
        lookahead: &'a Lookahead<'a>,
        groups: &[Group],
        cancellation: Cancellation<'a>,
    ) -> Regrouping<'a> {
        let bounds = groups.iter().map(|group| quick_bound(planner, &group.plan.batch)).collect();
        Regrouping { planner, lookahead, cancellation, groups: groups.to_vec(), bounds, ideas: BTreeMap::new() }
    }

    /// The other batches with which this batch may exchange sequences.
    fn near(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let reach = self.lookahead.max_delay.saturating_mul(2);
        let places = place.saturating_sub(reach)..self.groups.len().min(place.saturating_add(reach).saturating_add(1));
        places.filter(move |&other| other != place)
    }

    /// The pair whose exchange gains most; the first among equals.
    fn best_pair(&self) -> Option<(usize, usize)> {
        let gains = self.ideas.iter().map(|(&pair, idea)| (idea.gain, Reverse(pair)));
        gains.max().map(|(_, Reverse(pair))| pair)
    }

    /// Plans both batches after the exchange, and makes the exchange if it shortens their sum; otherwise discards the
    /// exchange.
    fn exchange(&mut self, (from, to): (usize, usize)) -> Result<bool> {
        let Some(idea) = self.ideas.remove(&(from, to)) else { return Ok(false) };
        let [left, right] = idea.members;
        let left = Group::of(self.planner, self.lookahead.batches, left, self.cancellation)?;
        let right = Group::of(self.planner, self.lookahead.batches, right, self.cancellation)?;
        let before = self.groups[from].plan.step_ms() + self.groups[to].plan.step_ms();
        if left.plan.step_ms() + right.plan.step_ms() > before * (1.0 - self.planner.budget().exchange.gain) {
            return Ok(false);
        }
        for (place, group) in [(from, left), (to, right)] {
            self.bounds[place] = quick_bound(self.planner, &group.plan.batch);
            self.groups[place] = group;
        }
        for changed in [from, to] {
            for place in self.near(changed) {
                self.consider(changed, place)?;
                self.consider(place, changed)?;
            }
        }
        Ok(true)
    }

    /// Stores the best exchange in which the longest sequences of one batch go to another, if an exchange has a gain.
    fn consider(&mut self, from: usize, to: usize) -> Result<()> {
        (self.cancellation)()?;
        let mut best: Option<Idea> = None;
        for number in 1..=self.planner.budget().exchange.leaving {
            let Some(members) = self.exchanged(from, to, number) else { continue };
            let Some(gain) = self.gain(from, to, &members)? else { continue };
            if best.as_ref().is_none_or(|best| gain > best.gain) {
                best = Some(Idea { gain, members });
            }
        }
        self.ideas.remove(&(from, to));
        self.ideas.extend(best.map(|best| ((from, to), best)));
        Ok(())
    }

    /// The members of both batches after the `number` longest sequences of `from` have moved to `to`; `None` where
    /// the limits forbid the move.
    fn exchanged(&self, from: usize, to: usize, number: usize) -> Option<[Vec<Member>; 2]> {
        let (left, right) = (self.longest_first(from), self.longest_first(to));
        let (leaving, staying) = left.split_at_checked(number)?;
        let longest = self.tokens(*staying.first()?);
        if !leaving.iter().all(|&member| self.may_be_at(member, to)) || self.tokens(leaving[number - 1]) <= longest {
            return None;
        }
        let mut room: Tokens = leaving.iter().map(|&member| self.tokens(member)).sum();
        let (mut returning, mut kept) = (Vec::new(), Vec::new());
        for member in right {
            let tokens = self.tokens(member);
            if tokens <= longest.min(room) && self.may_be_at(member, from) {
                room = room - tokens;
                returning.push(member);
            } else {
                kept.push(member);
            }
        }
        let members = [[staying, &returning].concat(), [leaving, &kept].concat()].map(in_order);
        let is_allowed = self.keeps_tokens(from, &members[0]) && self.keeps_tokens(to, &members[1]);
        is_allowed.then_some(members)
    }

    /// The gain of an exchange by the bounds; `None` where the gain is too small or a batch would have no target.
    fn gain(&self, from: usize, to: usize, members: &[Vec<Member>; 2]) -> Result<Option<Millis>> {
        let before = self.bounds[from] + self.bounds[to];
        let mut gain = before;
        for members in members {
            let batch = match gathered(self.lookahead.batches, members) {
                Err(Error::NoTargets) => return Ok(None),
                batch => batch?,
            };
            gain = gain - quick_bound(self.planner, &batch);
        }
        Ok(Some(gain).filter(|&gain| gain > before * self.planner.budget().exchange.gain))
    }

    fn longest_first(&self, group: usize) -> Vec<Member> {
        let mut members = self.groups[group].members.clone();
        members.sort_by_key(|&member| (Reverse(self.tokens(member)), member));
        members
    }

    fn tokens(&self, member: Member) -> Tokens {
        self.lookahead.batches[member.batch].tokens()[member.sequence]
    }

    fn may_be_at(&self, member: Member, place: usize) -> bool {
        member.batch.abs_diff(place) <= self.lookahead.max_delay
    }

    fn keeps_tokens(&self, place: usize, members: &[Member]) -> bool {
        let came = self.lookahead.batches[place].total_tokens().0;
        let now: Tokens = members.iter().map(|&member| self.tokens(member)).sum();
        now.0.abs_diff(came) * TOLERANCE_PARTS <= came
    }
}

fn in_order(mut members: Vec<Member>) -> Vec<Member> {
    members.sort_unstable();
    members
}

/// A lower bound on the time of the batch under every strategy that the planner may choose; the batch has been
/// planned under one of them.
fn quick_bound(planner: &Planner, batch: &Batch) -> Millis {
    planner.quick_bound(batch).unwrap_or(Millis::INFINITY)
}
