//! The independent checker of a lookahead plan: it lists every promise that the plan breaks.
//!
//! The checker takes only the plan from the lookahead planner: it derives members, delays, tokens and costs again.

use crate::batch::Batch;
use crate::check::{Violation, check};
use crate::cost::CostModel;
use crate::lookahead::{Lookahead, LookaheadPlan, Step, TOLERANCE_PARTS};
use crate::timing::Link;
use crate::units::Millis;

/// Every violation in `plan` as a plan of `lookahead` under `cost` and, where transfers count, `link`. The list is
/// empty if the plan keeps its promises.
pub fn check_lookahead(
    plan: &LookaheadPlan,
    lookahead: &Lookahead,
    cost: &CostModel,
    link: Option<&Link>,
) -> Vec<Violation> {
    let mut report = Report::default();
    let (steps, batches) = (plan.steps.len(), lookahead.batches.len());
    report.expect(steps == batches, "lookahead_differs", || format!("{steps} steps for {batches} batches"));
    check_members(plan, lookahead, &mut report);
    for (place, step) in plan.steps.iter().enumerate().take(batches) {
        check_step(place, step, lookahead, cost, link, &mut report);
    }
    check_switches(plan, lookahead, &mut report);
    report.violations
}

#[derive(Default)]
struct Report {
    violations: Vec<Violation>,
}

impl Report {
    fn expect(&mut self, holds: bool, code: &'static str, detail: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { code, detail: detail() });
        }
    }
}

/// Each sequence is in exactly one step, and that step is within the delay limit.
fn check_members(plan: &LookaheadPlan, lookahead: &Lookahead, report: &mut Report) {
    let mut times: Vec<Vec<usize>> = lookahead.batches.iter().map(|batch| vec![0; batch.len()]).collect();
    for (place, member) in
        plan.steps.iter().enumerate().flat_map(|(place, step)| step.members.iter().map(move |one| (place, one)))
    {
        let name = || format!("sequence {} of batch {}", member.sequence, member.batch);
        match times.get_mut(member.batch).and_then(|times| times.get_mut(member.sequence)) {
            Some(times) => *times += 1,
            None => report.expect(false, "sequence_unknown", || format!("{}, in step {place}", name())),
        }
        let delay = member.batch.abs_diff(place);
        report.expect(delay <= lookahead.max_delay, "sequence_delayed", || {
            format!("{} is in step {place}, the limit is {} away", name(), lookahead.max_delay)
        });
    }
    for (batch, times) in times.iter().enumerate() {
        for (sequence, &times) in times.iter().enumerate() {
            let name = || format!("sequence {sequence} of batch {batch}");
            report.expect(times > 0, "sequence_missing", || format!("{} is in no step", name()));
            report.expect(times < 2, "sequence_repeated", || format!("{} is in {times} steps", name()));
        }
    }
}

/// The step's plan keeps its promises for its members, whose tokens are close to the tokens of the original batch.
fn check_step(
    place: usize,
    step: &Step,
    lookahead: &Lookahead,
    cost: &CostModel,
    link: Option<&Link>,
    report: &mut Report,
) {
    let known = |batch: usize, sequence: usize| {
        let batch = lookahead.batches.get(batch)?;
        Some((
            i64::try_from(batch.tokens().get(sequence)?.0).ok()?,
            i64::try_from(*batch.targets().get(sequence)?).ok()?,
        ))
    };
    let counts: Option<Vec<(i64, i64)>> = step.members.iter().map(|one| known(one.batch, one.sequence)).collect();
    let (tokens, targets): (Vec<i64>, Vec<i64>) = counts.unwrap_or_default().into_iter().unzip();
    match Batch::new(&tokens, Some(&targets)) {
        Ok(batch) => {
            let wrong = check(&step.plan, &batch, cost, link).into_iter();
            report
                .violations
                .extend(wrong.map(|one| Violation { detail: format!("step {place}: {}", one.detail), ..one }));
        }
        Err(error) => report.expect(false, "batch_differs", || format!("step {place}: {error}")),
    }
    let came = lookahead.batches[place].total_tokens().0;
    let now = tokens.iter().sum::<i64>().unsigned_abs();
    report.expect(now.abs_diff(came) * TOLERANCE_PARTS <= came, "tokens_differ", || {
        format!("step {place} has {now} tokens, its batch came with {came}: the limit is one part in {TOLERANCE_PARTS}")
    });
}

/// The time stated for each change of strategy is the lookahead's time.
fn check_switches(plan: &LookaheadPlan, lookahead: &Lookahead, report: &mut Report) {
    let mut before = lookahead.previous;
    for (place, step) in plan.steps.iter().enumerate() {
        let strategy = &step.plan.strategy;
        let is_change = before.is_some_and(|before| before != strategy);
        let switch = if is_change { lookahead.switch } else { Millis::ZERO };
        report.expect(step.switch_ms.is_close(switch), "switch_time_wrong", || {
            format!("step {place}: stated {} ms, it is {} ms", step.switch_ms.0, switch.0)
        });
        before = Some(strategy);
    }
}
