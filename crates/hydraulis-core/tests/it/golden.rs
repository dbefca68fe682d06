//! The bytes of some plans, compared with stored digests: the same in debug and release builds (`make test` runs
//! both), and on any machine.

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::preset;
use hydraulis_core::lookahead::{Window, plan_window};
use hydraulis_core::plan::Plan;
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Cluster;

/// The digests of the plans below. A change of the planner that changes plans changes them: then look at the plans,
/// and write the new digests here, which the failing test prints.
const DIGESTS: [(&str, u64); 4] = [
    ("32B, 64 GPUs, the profile's list", 0x577a_9d43_20e6_e9ce),
    ("32B, 64 GPUs, search", 0x625a_1c4e_16f4_2867),
    ("7B, 16 GPUs, search", 0x9a62_439e_955b_0efd),
    ("32B, 64 GPUs, sequences at a cap", 0xb868_63f3_11ee_8f89),
];

/// FNV-1a over 64 bits: four lines, and any other program can compute it.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// 400 lengths with a long tail, by whole numbers alone: no library function may round differently elsewhere.
fn lengths() -> Vec<i64> {
    let mut state = 12_345_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..400).map(|_| i64::try_from(1 + next() % (16 << (next() % 12))).unwrap()).collect()
}

#[test]
fn the_digest_is_fnv() {
    assert_eq!(digest(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(digest("foobar"), 0x8594_4171_f739_67e8);
}

fn planned(planner: &Planner, lengths: &[i64]) -> Plan {
    planner.plan(&Batch::new(lengths, None).unwrap()).unwrap()
}

/// The plans whose digests are stored, in their order.
fn plans() -> [Plan; 4] {
    let (large, small) = (Cluster::new(64, 8).unwrap(), Cluster::new(16, 8).unwrap());
    let listed = Planner::new(preset("llama-32b-a800").unwrap(), large, None).unwrap();
    let searching = Planner::search(preset("llama-32b-a800").unwrap(), large).unwrap();
    let on_few = Planner::search(preset("llama-7b-a800").unwrap(), small).unwrap();
    // <tp4> holds 7,808 tokens, <tp8> holds 21,888.
    let at_caps: Vec<i64> = (0..90).map(|index| [7_808, 21_888, 3_904, 7_809][index % 4]).collect();
    [
        planned(&listed, &lengths()),
        planned(&searching, &lengths()),
        planned(&on_few, &lengths()),
        planned(&searching, &at_caps),
    ]
}

#[test]
fn fixed_batches_give_the_stored_bytes() {
    let plans = plans();
    let piped = |plan: &Plan| plan.replicas.iter().any(|replica| replica.scheme.pp() > 1);
    assert!(plans.iter().any(piped), "some case must exercise pipelines");
    let names = DIGESTS.map(|(name, _)| name);
    let found: Vec<(&str, u64)> = names.into_iter().zip(plans.iter().map(|plan| digest(&plan.to_json()))).collect();
    let printed: Vec<String> = found.iter().map(|(name, digest)| format!("(\"{name}\", {digest:#018x})")).collect();
    assert_eq!(found, DIGESTS, "now: {printed:#?}");
}

/// The digest of the window below, changed as those above are.
const WINDOW: u64 = 0x13b0_f3f3_ae9b_8e1a;

/// Three batches with a long sequence each, which are gathered; a change of strategy costs something.
#[test]
fn a_window_gives_the_stored_bytes() {
    let planner = Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap();
    let batches: Vec<Batch> =
        lengths().chunks(134).map(|part| Batch::new(&[part, &[32_768][..]].concat(), None).unwrap()).collect();
    let window = Window { switch: Millis(20.0), max_delay: 2, ..Window::new(&batches) };
    let plan = plan_window(&planner, &window, &|| Ok(()), &mut |_| Ok(())).unwrap();
    assert!(plan.moved() > 0);
    let steps = plan.steps.iter().map(|step| format!("{}{:?}{:?}", step.plan.to_json(), step.members, step.switch_ms));
    let found = digest(&steps.collect::<String>());
    assert_eq!(found, WINDOW, "now: {found:#018x}");
}
