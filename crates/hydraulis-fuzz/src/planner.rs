//! Promises of a planner for any arguments.

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostProfile;
use hydraulis_core::explain::explain;
use hydraulis_core::plan::{Plan, predicted_timeline};
use hydraulis_core::search::{Planner, RunLimit};
use hydraulis_core::spec::{Cluster, MemoryRule, Strategy};
use hydraulis_core::timing::Link;
use hydraulis_core::{Error, Result};

use crate::input::{Input, LimitInput};
use crate::link::LinkInput;

/// The codes that each step of a planner's creation may raise; any other code there is a defect.
const PROFILE: [&str; 1] = ["profile_invalid"];
const CLUSTER: [&str; 1] = ["argument_invalid"];
const STRATEGY: [&str; 1] = ["strategy_invalid"];
const BATCH: [&str; 2] = ["batch_empty", "lengths_invalid"];
const PLANNER: [&str; 4] = ["no_strategies", "strategy_unplaceable", "scheme_unknown", "scheme_too_large"];
const MEMORY: [&str; 1] = ["argument_invalid"];
const LINK: [&str; 2] = ["argument_invalid", "model_invalid"];
const LINKED: [&str; 1] = ["scheme_model_mismatch"];
/// The strategies used so far are the list of a planner that may not admit the batch.
const LIMIT: [&str; 5] =
    ["argument_invalid", "sequence_too_long", "strategy_unplaceable", "scheme_unknown", "scheme_too_large"];

/// Creates a planner from these bytes, plans with it, and panics if a promise is broken.
pub fn probe(bytes: &[u8]) {
    let Ok(input) = Input::of(bytes) else { return };
    let Some(profile) = expected(CostProfile::from_json(&input.profile), &PROFILE) else { return };
    let again = CostProfile::from_json(&profile.to_json());
    assert_eq!(again.as_ref(), Ok(&profile), "a profile reads back as it was written");
    let Some(cluster) = expected(cluster(&input), &CLUSTER) else { return };
    let Some(batch) = expected(Batch::new(&input.lengths, input.targets.as_deref()), &BATCH) else { return };
    let Some(strategies) = expected(input.strategies.as_deref().map(parsed).transpose(), &STRATEGY) else { return };
    let Some(memory) = expected(input.memory.parse::<MemoryRule>(), &MEMORY) else { return };
    let Some(link) = expected(input.link.as_ref().map(LinkInput::link).transpose(), &LINK) else { return };
    for planner in [Planner::new(profile.clone(), cluster.clone(), strategies), Planner::search(profile, cluster)] {
        let Some(planner) = expected(planner, &PLANNER) else { continue };
        let Some(planner) = linked(planner.with_memory(memory), link.as_ref()) else { continue };
        if probe_plan(&planner, &batch)
            && let Some(limit) = &input.limit
        {
            probe_limited(&planner, &batch, limit);
        }
    }
}

fn cluster(input: &Input) -> Result<Cluster> {
    let mut cluster = Cluster::new(input.gpus, input.gpus_per_node)?;
    if let Some(rates) = &input.ranks.rates {
        cluster = cluster.with_rates(rates.clone())?;
    }
    if let Some(bytes) = &input.ranks.memory_bytes {
        cluster = cluster.with_memory_bytes(bytes.clone())?;
    }
    match &input.ranks.devices {
        Some(devices) => cluster.with_devices(devices.clone()),
        None => Ok(cluster),
    }
}

fn parsed(list: &[String]) -> Result<Vec<Strategy>> {
    list.iter().map(|text| text.parse()).collect()
}

fn linked(planner: Planner, link: Option<&Link>) -> Option<Planner> {
    match link {
        Some(link) => expected(planner.with_link(link.clone()), &LINKED),
        None => Some(planner),
    }
}

/// The value of a result; none if it was refused with one of the codes; any other code panics.
fn expected<T>(result: Result<T>, codes: &[&str]) -> Option<T> {
    match result {
        Ok(good) => Some(good),
        Err(error) => {
            assert!(codes.contains(&error.code()) && !error.to_string().is_empty(), "{error:?}");
            None
        }
    }
}

/// Returns whether there is a plan; panics if the plan breaks a promise, or if it is missing.
fn probe_plan(planner: &Planner, batch: &Batch) -> bool {
    let plan = match planner.plan(batch) {
        Ok(plan) => plan,
        Err(Error::SequenceTooLong { sequence, tokens, limit, .. }) => {
            assert_eq!((batch.longest(), limit), ((sequence, tokens), planner.longest_admitted()));
            assert!(tokens > limit, "{tokens} tokens are refused, {limit} are admitted");
            return false;
        }
        Err(error) => panic!("a plan is refused for {error:?}"),
    };
    keeps_its_promises(planner, &plan, batch);
    assert_eq!(planner.clone().plan(batch).map(|again| again.to_json()), Ok(plan.to_json()), "a plan is repeatable");
    true
}

/// Plans a run's next batch under its limit.
fn probe_limited(planner: &Planner, batch: &Batch, limit: &LimitInput) {
    let Some(used) = expected(parsed(&limit.used), &STRATEGY) else { return };
    let limit = RunLimit { most: limit.most, used: &used };
    let Some(plan) = expected(planner.plan_limited(batch, limit), &LIMIT) else { return };
    keeps_its_promises(planner, &plan, batch);
    assert!(
        used.contains(&plan.strategy) || used.len() < limit.most,
        "{} is one too many with {used:?}",
        plan.strategy
    );
}

fn keeps_its_promises(planner: &Planner, plan: &Plan, batch: &Batch) {
    assert_eq!(planner.check(plan, batch), [], "{}", plan.to_json());
    assert!(plan.iteration_ms.0.is_finite(), "{}", plan.to_json());
    assert!(plan.lower_bound.ms <= plan.step_ms(), "{:?} is above {:?}", plan.lower_bound, plan.step_ms());
    assert!(plan.gap() >= 0.0 && !explain(plan).is_empty());
    assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(plan), "a plan reads back as it was written");
    assert_eq!(plan.positions().len(), planner.cost().cluster().gpus() as usize);
    let timelines = predicted_timeline(plan, planner.cost()).expect("the planner's own schemes have a cost");
    assert_eq!(timelines.len(), plan.replicas.len());
    assert_eq!(plan.transfers.is_some(), planner.link().is_some());
    if let Some(transfers) = plan.transfers {
        let most = (plan.iteration_ms + transfers.alone_ms).0 * (1.0 + 1e-9);
        assert!(transfers.step_ms >= plan.iteration_ms && transfers.step_ms.0 <= most, "{transfers:?}");
        assert!(transfers.alone_ms.0.is_finite() && (0.0..=1.0).contains(&transfers.overlapped()), "{transfers:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, any, proptest};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(250))]

        #[test]
        fn random_bytes_break_no_promise(bytes in vec(any::<u8>(), 0..400)) {
            probe(&bytes);
        }
    }

    /// A generator whose inputs are all refused would find no defect.
    #[test]
    fn many_inputs_become_plans() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        let (mut planned, mut moving, mut limited, mut in_flight) = (0, 0, 0, 0);
        for _ in 0..300 {
            let bytes: Vec<u8> = (0..600).map(|_| next()).collect();
            let input = Input::of(&bytes).unwrap();
            let profile = CostProfile::from_json(&input.profile).ok();
            let cluster = Cluster::new(input.gpus, input.gpus_per_node).ok();
            let planner = profile.zip(cluster).and_then(|(profile, cluster)| Planner::search(profile, cluster).ok());
            let (Some(planner), Ok(batch)) = (planner, Batch::new(&input.lengths, None)) else { continue };
            planned += usize::from(planner.plan(&batch).is_ok());
            in_flight += usize::from(input.memory == "in_flight");
            let link = input.link.and_then(|link| link.link().ok());
            let linked = link.and_then(|link| planner.clone().with_link(link).ok());
            let transfers = linked.and_then(|linked| linked.plan(&batch).ok()?.transfers);
            moving += usize::from(transfers.is_some_and(|transfers| transfers.transfer_ms.0 > 0.0));
            limited += usize::from(input.limit.is_some_and(|limit| {
                let used = parsed(&limit.used).unwrap_or_default();
                planner.plan_limited(&batch, RunLimit { most: limit.most, used: &used }).is_ok()
            }));
        }
        let made = (planned, moving, limited, in_flight);
        assert!(planned >= 40 && moving >= 10 && limited >= 5 && in_flight >= 20, "{made:?}");
    }
}
