//! Timelines, predicted and measured, against the plan's own times.

use hydraulis_core::pipeline::{Compute, Timeline};
use hydraulis_core::plan::{Plan, measured_timeline, predicted_timeline};
use hydraulis_core::{Error, Millis};
use proptest::prelude::*;

use crate::support::arbitrary::{any_case, cases};

/// The durations of a timeline, as a run would measure them: by stage, in the order of computation.
fn durations(plan: &Plan, timelines: &[Timeline]) -> Vec<Vec<Vec<Millis>>> {
    let of_replica = |(timeline, stages): (&Timeline, usize)| {
        let of_stage = |stage| timeline.spans.iter().filter(move |span| span.stage == stage);
        (0..stages).map(|stage| of_stage(stage).map(|span| span.end - span.start).collect()).collect()
    };
    let stages = plan.replicas.iter().map(|replica| replica.scheme.stages());
    timelines.iter().zip(stages).map(of_replica).collect()
}

/// Whether no stage computes two passes at once, and no pass starts before its input arrives.
fn is_possible(timeline: &Timeline, stages: usize) -> bool {
    let end_of = |stage, compute| {
        let span = timeline.spans.iter().find(|span| span.stage == stage && span.compute == compute);
        span.map_or(f64::INFINITY, |span| span.end.0)
    };
    let input = |stage: usize, compute: Compute| match compute {
        Compute::Forward(_) if stage == 0 => 0.0,
        Compute::Forward(_) => end_of(stage - 1, compute),
        Compute::Backward(micro_batch) if stage + 1 == stages => end_of(stage, Compute::Forward(micro_batch)),
        Compute::Backward(_) => end_of(stage + 1, compute),
    };
    let in_turn = timeline.spans.windows(2).all(|pair| pair[0].stage != pair[1].stage || pair[0].end <= pair[1].start);
    in_turn && timeline.spans.iter().all(|span| input(span.stage, span.compute) <= span.start.0)
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn timelines_take_the_planned_time(case in any_case()) {
        let planner = case.planner();
        let plan = planner.plan(&case.batch()).unwrap();
        let predicted = predicted_timeline(&plan, planner.cost()).unwrap();
        prop_assert_eq!(predicted.len(), plan.replicas.len());
        let measured = measured_timeline(&plan, &durations(&plan, &predicted)).unwrap();
        for ((replica, predicted), measured) in plan.replicas.iter().zip(&predicted).zip(&measured) {
            prop_assert!(predicted.makespan().is_close(replica.predicted_ms));
            prop_assert!(measured.makespan().is_close(replica.predicted_ms));
            let computed = 2 * replica.scheme.stages() * replica.micro_batches.len();
            prop_assert_eq!(predicted.spans.len(), computed);
            prop_assert!(is_possible(predicted, replica.scheme.stages()));
            prop_assert!(is_possible(measured, replica.scheme.stages()));
            let busy: Millis = predicted.spans.iter().map(|span| span.end - span.start).sum();
            let stages = f64::from(replica.scheme.pp());
            prop_assert!((busy.0 / stages - replica.busy_ms.0).abs() <= 1e-6 * replica.busy_ms.0);
        }
    }

    #[test]
    fn longer_durations_never_end_earlier(case in any_case(), factor in 1.0..3.0) {
        let planner = case.planner();
        let plan = planner.plan(&case.batch()).unwrap();
        let predicted = predicted_timeline(&plan, planner.cost()).unwrap();
        let mut slower = durations(&plan, &predicted);
        slower.iter_mut().flatten().flatten().step_by(3).for_each(|time| *time = *time * factor);
        for (before, after) in predicted.iter().zip(measured_timeline(&plan, &slower).unwrap()) {
            let (before, after) = (before.makespan().0, after.makespan().0);
            prop_assert!(before * (1.0 - 1e-9) <= after && after <= before * factor * (1.0 + 1e-9));
        }
    }

    #[test]
    fn durations_of_another_plan_are_refused(case in any_case(), pick in any::<prop::sample::Index>()) {
        let planner = case.planner();
        let plan = planner.plan(&case.batch()).unwrap();
        let right = durations(&plan, &predicted_timeline(&plan, planner.cost()).unwrap());
        let replica = pick.index(right.len());
        let stage = right[replica].len() - 1;
        let given = right[replica][stage].len();
        let broken = |change: fn(&mut Vec<Vec<Millis>>, usize)| {
            let mut durations = right.clone();
            change(&mut durations[replica], stage);
            measured_timeline(&plan, &durations)
        };
        let code = |result: Result<Vec<Timeline>, Error>| result.err().map(|error| error.code());
        let numbers = |durations: &[Vec<Vec<Millis>>]| -> Vec<Vec<usize>> {
            durations.iter().map(|stages| stages.iter().map(Vec::len).collect()).collect()
        };
        let mismatch = |given: usize| {
            let mut numbers_given = numbers(&right);
            numbers_given[replica][stage] = given;
            Err(Error::DurationsMismatch { given: numbers_given, expected: numbers(&right) })
        };
        prop_assert_eq!(broken(|stages, stage| stages[stage].push(Millis(1.0))), mismatch(given + 1));
        if given > 0 {
            prop_assert_eq!(broken(|stages, stage| stages[stage].truncate(1)), mismatch(1));
            prop_assert_eq!(code(broken(Vec::truncate)), Some("plan_mismatch"));
            prop_assert_eq!(code(measured_timeline(&plan, &[])), Some("plan_mismatch"));
        }
        let extra_stage = broken(|stages, _| stages.push(vec![Millis(1.0)]));
        prop_assert_eq!(code(extra_stage), Some("plan_mismatch"));
        let mut extra_replica = right.clone();
        extra_replica.push(vec![vec![Millis(1.0)]]);
        prop_assert_eq!(code(measured_timeline(&plan, &extra_replica)), Some("plan_mismatch"));
    }
}
