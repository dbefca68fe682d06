//! Promises of the readers of profiles, plans and strategies for any text.
//!
//! The first byte chooses the start of the text: nothing, a good profile, or a good plan, without transfers, with them
//! or under the in-flight limit. The other bytes are edits of it, or the text itself.

use std::ops::Range;
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use hydraulis_core::batch::Batch;
use hydraulis_core::check::check;
use hydraulis_core::cost::{CostModel, CostProfile, preset};
use hydraulis_core::explain::explain;
use hydraulis_core::layout::{Parameter, ParameterTable};
use hydraulis_core::plan::{Plan, predicted_timeline};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{Cluster, LayerSplit, LinkRates, MemoryRule, Scheme, Strategy};
use hydraulis_core::timing::{Link, Traffic};

/// Most edits of a good document.
const MAX_EDITS: u32 = 3;

/// The cost model of the good documents.
static MODEL: LazyLock<CostModel> = LazyLock::new(|| {
    let cluster = Cluster::new(16, 8).expect("two nodes are a cluster");
    CostModel::new(preset("llama-7b-a800").expect("the profile ships with the core"), cluster)
});
static BATCH: LazyLock<Batch> =
    LazyLock::new(|| Batch::new(&[9_000, 700, 600, 50, 1], None).expect("lengths from 1 are a batch"));
static LINK: LazyLock<Link> = LazyLock::new(|| {
    let layer = |layer_group| Parameter {
        name: format!("layer {layer_group}"),
        rows: 4_096,
        row_elements: 50_000,
        units: 4_096,
        layer_groups: vec![layer_group],
        trained: true,
    };
    let table = ParameterTable::new((1..=32).map(layer).collect(), LayerSplit::even(32)).expect("layers are a table");
    let traffic = Traffic {
        rates: LinkRates { gigabytes_per_s: 10.0, gpu_gigabytes_per_s: 100.0, message_us: 10.0 },
        parameter_bytes: 2,
        gradient_bytes: 2,
    };
    Link::new(table, traffic).expect("the rates are finite")
});
static PLANS: LazyLock<[String; 3]> = LazyLock::new(|| {
    let plain =
        Planner::new(MODEL.profile().clone(), MODEL.cluster().clone(), None).expect("the profile fits the cluster");
    let linked = plain.clone().with_link(LINK.clone()).expect("no scheme has 32 stages");
    let in_flight = plain.clone().with_memory(MemoryRule::InFlight);
    [plain, linked, in_flight].map(|planner| planner.plan(&BATCH).expect("the cluster admits the batch").to_json())
});

/// Reads these bytes as every kind of document, and panics if a promise is broken.
pub fn probe(bytes: &[u8]) {
    let Ok(text) = text(&mut Unstructured::new(bytes)) else { return };
    match CostProfile::from_json(&text) {
        Ok(profile) => assert_eq!(CostProfile::from_json(&profile.to_json()), Ok(profile)),
        Err(error) => assert_eq!(error.code(), "profile_invalid", "{error:?}"),
    }
    match Plan::from_json(&text) {
        Ok(plan) => use_plan(&plan),
        Err(error) => assert_eq!(error.code(), "plan_invalid", "{error:?}"),
    }
    match text.parse::<Strategy>() {
        Ok(strategy) => assert_eq!(strategy.to_string().parse(), Ok(strategy)),
        Err(error) => assert_eq!(error.code(), "strategy_invalid", "{error:?}"),
    }
    match text.parse::<Scheme>() {
        Ok(scheme) => assert_eq!(scheme.to_string().parse(), Ok(scheme)),
        Err(error) => assert_eq!(error.code(), "strategy_invalid", "{error:?}"),
    }
}

/// Calls every function that takes a plan read from text.
fn use_plan(plan: &Plan) {
    for link in [None, Some(&*LINK)] {
        let _ = (check(plan, &BATCH, &MODEL, link), check(plan, &plan.batch, &MODEL, link));
    }
    let _ = predicted_timeline(plan, &MODEL);
    let _ = (explain(plan), plan.gap(), plan.positions());
    assert_eq!(Plan::from_json(&plan.to_json()).map(|again| again.to_json()), Ok(plan.to_json()));
}

/// The text for these bytes.
fn text(u: &mut Unstructured) -> Result<String> {
    let mut text = match u.int_in_range(0..=4)? {
        0 => return Ok(String::from_utf8_lossy(u.bytes(u.len())?).into_owned()),
        1 => MODEL.profile().to_json(),
        plan => PLANS[plan - 2].clone(),
    };
    for _ in 0..u.int_in_range(1..=MAX_EDITS)? {
        let from = u.choose_index(text.len() + 1)?;
        let edit = if u.ratio(3, 4)? { other_number(u, &text, from)? } else { other_text(u, &text, from)? };
        text.replace_range(edit.0, edit.1);
    }
    Ok(text)
}

/// Replaces the next number after a position; the text stays a document, but its fields may no longer agree.
fn other_number(u: &mut Unstructured, text: &str, from: usize) -> Result<(Range<usize>, &'static str)> {
    let numbers = ["0", "1", "2", "7", "16", "0.5", "1e300", "-1", "4294967295", "18446744073709551615"];
    let after = |from: usize, digit: bool| {
        text.bytes().skip(from).position(|byte| byte.is_ascii_digit() == digit).map_or(text.len(), |place| from + place)
    };
    let start = after(from, true);
    Ok((start..after(start, false), *u.choose(&numbers)?))
}

/// Replaces up to twelve characters.
fn other_text(u: &mut Unstructured, text: &str, from: usize) -> Result<(Range<usize>, &'static str)> {
    let to = (from + u.int_in_range(0..=12)?).min(text.len());
    Ok((from..to, *u.choose(&["", "0", "-", ".", "e9", "\"", ",", "null", "[]", "{}", "<tp2>", "x"])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, any, proptest};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn random_bytes_are_refused_or_read_back(bytes in vec(any::<u8>(), 0..80)) {
            probe(&bytes);
        }
    }

    #[test]
    fn many_edits_leave_a_document_that_is_read() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        let texts: Vec<String> = (0..600)
            .map(|_| {
                let bytes: Vec<u8> = (0..40).map(|_| next()).collect();
                text(&mut Unstructured::new(&bytes)).unwrap()
            })
            .collect();
        let profiles = texts.iter().filter(|text| CostProfile::from_json(text).is_ok()).count();
        let plans = texts.iter().filter(|text| Plan::from_json(text).is_ok()).count();
        assert!(profiles >= 10 && plans >= 10, "{profiles} profiles and {plans} plans of 600");
    }
}
