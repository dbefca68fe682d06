//! What must hold for a planner, whatever it is made from.

use hydraulis_core::cost::CostProfile;
use hydraulis_core::lengths::Batch;
use hydraulis_core::plan::{Plan, Planner, explain, predicted_timeline};
use hydraulis_core::spec::{Cluster, Strategy};
use hydraulis_core::{Error, Result};

use crate::input::Input;

/// What each step of making a planner may refuse; that anything else is refused there is a fault.
const PROFILE: [&str; 2] = ["profile_syntax", "profile_value"];
const CLUSTER: [&str; 1] = ["cluster_shape"];
const STRATEGY: [&str; 2] = ["strategy_syntax", "context_parallelism"];
const BATCH: [&str; 5] =
    ["batch_empty", "length_out_of_range", "targets_mismatch", "target_out_of_range", "no_targets"];
const PLANNER: [&str; 5] =
    ["no_strategies", "strategy_too_large", "placement_failed", "scheme_unknown", "scheme_too_large"];

/// Makes a planner of these bytes, plans with it, and panics if a promise is broken.
pub fn probe(bytes: &[u8]) {
    let Ok(input) = Input::of(bytes) else { return };
    let Some(profile) = expected(CostProfile::from_json(&input.profile), &PROFILE) else { return };
    let again = CostProfile::from_json(&profile.to_json());
    assert_eq!(again.as_ref(), Ok(&profile), "a profile reads back as it was written");
    let Some(cluster) = expected(Cluster::new(input.gpus, input.gpus_per_node), &CLUSTER) else { return };
    let Some(batch) = expected(Batch::new(&input.lengths, input.targets.as_deref()), &BATCH) else { return };
    let parsed = |list: &Vec<String>| list.iter().map(|text| text.parse()).collect::<Result<Vec<Strategy>>>();
    let Some(strategies) = expected(input.strategies.as_ref().map(parsed).transpose(), &STRATEGY) else { return };
    for planner in [Planner::new(profile.clone(), cluster, strategies), Planner::search(profile, cluster)] {
        if let Some(planner) = expected(planner, &PLANNER) {
            probe_plan(&planner, &batch);
        }
    }
}

/// What is good; nothing where it was refused with one of the codes.
fn expected<T>(result: Result<T>, codes: &[&str]) -> Option<T> {
    match result {
        Ok(good) => Some(good),
        Err(error) => {
            assert!(codes.contains(&error.code()) && !error.to_string().is_empty(), "{error:?}");
            None
        }
    }
}

fn probe_plan(planner: &Planner, batch: &Batch) {
    let plan = match planner.plan(batch) {
        Ok(plan) => plan,
        Err(Error::SequenceTooLong { sequence, tokens, limit, .. }) => {
            assert_eq!((batch.longest(), limit), ((sequence, tokens), planner.longest_admitted()));
            assert!(tokens > limit, "{tokens} tokens are refused, {limit} are admitted");
            return;
        }
        Err(error) => panic!("a plan is refused for {error:?}"),
    };
    assert_eq!(planner.check(&plan, batch), [], "{}", plan.to_json());
    assert!(plan.iteration_ms.0.is_finite(), "{}", plan.to_json());
    assert!(plan.lower_bound.ms <= plan.iteration_ms, "{:?} is above {:?}", plan.lower_bound, plan.iteration_ms);
    assert!(plan.gap() >= 0.0 && !explain(&plan).is_empty());
    let json = plan.to_json();
    assert_eq!(Plan::from_json(&json).as_ref(), Ok(&plan), "a plan reads back as it was written");
    assert_eq!(planner.clone().plan(batch).map(|again| again.to_json()), Ok(json), "a plan is repeatable");
    assert_eq!(plan.positions().len(), planner.cost().cluster().gpus() as usize);
    let timelines = predicted_timeline(&plan, planner.cost()).expect("the planner's own schemes have a cost");
    assert_eq!(timelines.len(), plan.replicas.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, any, proptest};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn random_bytes_break_no_promise(bytes in vec(any::<u8>(), 0..400)) {
            probe(&bytes);
        }
    }

    /// A generator that makes nothing but refusals would find nothing.
    #[test]
    fn many_inputs_become_plans() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        let planned = (0..200).filter(|_| {
            let bytes: Vec<u8> = (0..400).map(|_| next()).collect();
            let input = Input::of(&bytes).unwrap();
            let profile = CostProfile::from_json(&input.profile).ok();
            let cluster = Cluster::new(input.gpus, input.gpus_per_node).ok();
            let batch = Batch::new(&input.lengths, None).ok();
            let planner = profile.zip(cluster).and_then(|(profile, cluster)| Planner::search(profile, cluster).ok());
            planner.zip(batch).is_some_and(|(planner, batch)| planner.plan(&batch).is_ok())
        });
        let planned = planned.count();
        assert!(planned >= 20, "{planned} of 200");
    }
}
