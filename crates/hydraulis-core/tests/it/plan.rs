//! Plans read from damaged or hostile text are refused by code or checked, and never panic.

use hydraulis_core::cost::CostProfile;
use hydraulis_core::explain::explain;
use hydraulis_core::plan::{Plan, predicted_timeline};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::support::arbitrary::{Case, any_case, cases};

/// The paths of all values without children in a document.
fn leaves(value: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            fields.iter().flat_map(|(name, child)| leaves(child, &format!("{path}/{name}"))).collect()
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().flat_map(|(index, child)| leaves(child, &format!("{path}/{index}"))).collect()
        }
        _ => vec![path.to_owned()],
    }
}

/// Replaces one value of a document; the few shallow values are as likely as the many deep ones.
fn damaged(text: &str, depth: usize, pick: Index, with: Value) -> String {
    let mut document: Value = serde_json::from_str(text).unwrap();
    let mut places = leaves(&document, "");
    places.retain(|place| place.matches('/').count() <= depth || depth > 4);
    let place = &places[pick.index(places.len())];
    *document.pointer_mut(place).unwrap() = with;
    document.to_string()
}

fn hostile() -> impl Strategy<Value = Value> {
    let numbers = [json!(0), json!(1), json!(-1), json!(3), json!(u64::MAX), json!(u32::MAX), json!(1e300), json!(0.5)];
    let others = [json!(null), json!([]), json!(""), json!("<tp2,pp2>"), json!("3x<1>"), json!({})];
    select([&numbers[..], &others[..]].concat())
}

/// Calls every function that takes a plan read from text.
fn use_plan(case: &Case, plan: &Plan) {
    let planner = case.planner();
    let _ = planner.check(plan, &case.batch());
    let _ = predicted_timeline(plan, planner.cost());
    let _ = (explain(plan), plan.gap(), plan.positions(), plan.to_json());
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn a_damaged_plan_is_refused_or_checked(
        case in any_case(), depth in 1..6_usize, pick in any::<Index>(), with in hostile(),
    ) {
        let text = case.planner().plan(&case.batch()).unwrap().to_json();
        match Plan::from_json(&damaged(&text, depth, pick, with)) {
            Ok(plan) => use_plan(&case, &plan),
            Err(error) => prop_assert_eq!(error.code(), "plan_invalid"),
        }
    }

    #[test]
    fn a_damaged_profile_is_refused_or_still_valid(case in any_case(), pick in any::<Index>(), with in hostile()) {
        match CostProfile::from_json(&damaged(&case.profile.to_json(), 5, pick, with)) {
            Ok(profile) => prop_assert_eq!(CostProfile::from_json(&profile.to_json()).unwrap(), profile),
            Err(error) => prop_assert_eq!(error.code(), "profile_invalid", "{}", error),
        }
    }

    #[test]
    fn a_cut_off_plan_is_refused(case in any_case(), pick in any::<Index>()) {
        let text = case.planner().plan(&case.batch()).unwrap().to_json();
        prop_assert_eq!(Plan::from_json(&text[..pick.index(text.len())]).unwrap_err().code(), "plan_invalid");
    }
}

#[test]
fn values_outside_the_range_of_a_plan_are_named() {
    let case = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        Plan::from_json(&text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    let text = text();
    for (from, to, named) in [
        ("hydraulis.plan/2", "hydraulis.plan/1", "format"),
        ("\"gpus_per_node\":8", "\"gpus_per_node\":0", "cluster"),
        ("\"gpus\":8", "\"gpus\":12", "cluster"),
        ("\"gpus\":8,\"gpus_per_node\":8", "\"gpus\":4294967295,\"gpus_per_node\":3", "cluster"),
        ("\"tokens\":[300,", "\"tokens\":[0,", "batch"),
        ("\"targets\":[300,", "\"targets\":[301,", "batch"),
        ("\"targets\":[300,", "\"targets\":[", "batch"),
        ("\"ranks\":[0,", "\"context\":\"ring\",\"ranks\":[0,", "replicas[0].context"),
        ("\"ranks\":[0,", "\"ranks\":[8,", "rank 8"),
        ("\"ranks\":[0,", "\"ranks\":[", "ranks"),
        ("\"micro_batches\":[[", "\"micro_batches\":[[2,", "sequence 2"),
        ("{\"sequence\":0}", "{\"sequence\":2}", "sequence 2"),
        ("\"stop\":", "\"halt\":", "halt"),
    ] {
        let error = case(&text, from, to);
        assert!(error.starts_with("plan: ") && error.contains(named), "{from} -> {to}: {error}");
    }
    assert_eq!(Plan::from_json(&(text + "{}")).unwrap_err().code(), "plan_invalid");
}

/// The JSON text of a plan of two sequences on two replicas of one node.
fn text() -> String {
    use hydraulis_core::{batch, cost, search, spec};
    let strategies = vec!["2x<tp4>".parse().unwrap()];
    let profile = cost::preset("llama-13b-a800").unwrap();
    let planner = search::Planner::new(profile, spec::Cluster::new(8, 8).unwrap(), Some(strategies)).unwrap();
    planner.plan(&batch::Batch::new(&[300, 200], None).unwrap()).unwrap().to_json()
}
