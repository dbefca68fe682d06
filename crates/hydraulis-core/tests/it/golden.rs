//! One plan's bytes, compared with a stored digest: the same in debug and release builds, and on any machine.

use hydraulis_core::cost::preset;
use hydraulis_core::lengths::Batch;
use hydraulis_core::plan::Planner;
use hydraulis_core::spec::Cluster;

/// The digest of the plan below. A change of the planner that changes plans changes it: then look at the plan,
/// and write the new digest here.
const DIGEST: u64 = 0xb200_e8f1_8038_7bd0;

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

#[test]
fn a_fixed_batch_gives_the_stored_bytes() {
    let cluster = Cluster::new(64, 8).unwrap();
    let planner = Planner::new(preset("llama-32b-a800").unwrap(), cluster, None).unwrap();
    let plan = planner.plan(&Batch::new(&lengths(), None).unwrap()).unwrap();
    assert!(plan.replicas.iter().any(|replica| replica.scheme.pp() > 1), "the case must exercise pipelines");
    assert_eq!(digest(&plan.to_json()), DIGEST, "{:#018x}: {}", digest(&plan.to_json()), plan.to_json());
}
