//! Fewer layers for stages on slow ranks.

use hydraulis_core::batch::Batch;
use hydraulis_core::check::check;
use hydraulis_core::cost::{CostProfile, preset};
use hydraulis_core::plan::Plan;
use hydraulis_core::search::Planner;
use hydraulis_core::simulate::{Conditions, simulate_iteration};
use hydraulis_core::spec::{Cluster, LayerSplit, Scheme, Strategy};

/// As many splits of a place as the model has layers: every number from a quarter of the usual one is there.
const EVERY: u32 = 60;

fn cluster(gpus: u32, slow: &[(usize, f64)]) -> Cluster {
    let mut rates = vec![1.0; gpus as usize];
    for &(rank, rate) in slow {
        rates[rank] = rate;
    }
    Cluster::new(gpus, 8).unwrap().with_rates(rates).unwrap()
}

fn profile(splits: u32) -> CostProfile {
    preset("llama-32b-a800").unwrap().with_layer_splits(splits).unwrap()
}

fn planned(splits: u32, cluster: Cluster, strategy: &str) -> (Planner, Batch, Plan) {
    let strategy: Strategy = strategy.parse().unwrap();
    let mut one = preset("llama-32b-a800").unwrap();
    one.schemes.retain(|entry| strategy.schemes().contains(&entry.scheme));
    let profile = one.with_layer_splits(splits).unwrap();
    let planner = Planner::new(profile, cluster, Some(vec![strategy])).unwrap();
    let batch = Batch::new(&(0..96).map(|i| 400 + i % 7 * 90).collect::<Vec<i64>>(), None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    (planner, batch, plan)
}

/// Every split of the layers into as many stages.
fn every_split(layers: u32, stages: u32) -> Vec<Vec<u32>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let later =
        |own: u32| every_split(layers - own, stages - 1).into_iter().map(move |rest| [vec![own], rest].concat());
    (1..=layers - (stages - 1)).flat_map(later).collect()
}

/// The time of the slowest stage, relative to a stage of the usual split at rate 1: the profile says that those of the
/// usual split take as long as each other, the last one with a head that costs as much as `head` layers.
fn slowest(split: &[u32], usual: &[u32], head: f64, rates: &[f64]) -> f64 {
    let time = |stage: usize| {
        let head = if stage + 1 == split.len() { head } else { 0.0 };
        (f64::from(split[stage]) + head) / (f64::from(usual[stage]) + head) / rates[stage]
    };
    (0..split.len()).map(time).fold(0.0, f64::max)
}

/// The split that a plan takes has the shortest slowest stage of all 59 or 1,711 splits of 60 layers, wherever the slow
/// ranks are.
#[test]
fn the_slowest_stage_is_the_shortest_of_all_splits() {
    let split = LayerSplit::of(preset("llama-32b-a800").unwrap().model.as_ref().unwrap());
    for (scheme, gpus) in [("<tp8,pp2>", 16_u32), ("<tp8,pp3>", 24)] {
        let usual = split.stage_layers(scheme.parse().unwrap()).unwrap();
        for slow_stage in 0..usual.len() {
            for rate in [0.3, 0.5, 0.8] {
                let slow = cluster(gpus, &[(8 * slow_stage + 3, rate)]);
                let (_, _, plan) = planned(EVERY, slow, &format!("1x{scheme}"));
                let mut rates = vec![1.0; usual.len()];
                rates[slow_stage] = rate;
                let time = |list: &[u32]| slowest(list, &usual, split.head_layers(), &rates);
                let every = every_split(split.layers(), gpus / 8);
                let least = every.iter().map(|list| time(list)).fold(f64::INFINITY, f64::min);
                let own = plan.replicas[0].scheme.split().layers();
                assert!(time(&own) <= least * (1.0 + 1e-12), "{scheme} {slow_stage} {rate}: {own:?} {least}");
            }
        }
    }
}

/// The second stage of one of four replicas computes at half the speed: 20 of 60 layers instead of 30.
#[test]
fn a_slow_stage_gets_fewer_layers() {
    let slow = || cluster(64, &[(30, 0.5)]);
    let (_, _, usual) = planned(0, slow(), "4x<tp8,pp2>");
    let (planner, batch, plan) = planned(9, slow(), "4x<tp8,pp2>");
    let split = plan.replicas.last().unwrap();
    assert!(split.scheme.split().layers()[0] > 30 || split.scheme.split().layers()[1] > 30, "{}", plan.strategy);
    assert!(plan.iteration_ms < usual.iteration_ms, "{:?} {:?}", plan.iteration_ms, usual.iteration_ms);
    assert!(split.tokens(&batch) > usual.replicas.last().unwrap().tokens(&batch));
    let run = simulate_iteration(&plan, planner.cost(), &Conditions::default()).unwrap();
    assert!(run.end.is_close(plan.iteration_ms), "{:?} {:?}", run.end, plan.iteration_ms);
    // The judge takes times and limits from the profile's entry of that very split.
    let mut wrong = plan.clone();
    let last = wrong.replicas.len() - 1;
    wrong.replicas[last].scheme = "<tp8,pp2>".parse().unwrap();
    wrong.strategy = Strategy::new(wrong.replicas.iter().map(|replica| replica.scheme).collect()).unwrap();
    let codes: Vec<_> = check(&wrong, &batch, planner.cost(), None).iter().map(|one| one.code).collect();
    assert!(codes.contains(&"replica_time_wrong"), "{codes:?}");
}

/// Of 16 ranks in two nodes, one computes at half the speed; a search never gets longer by more choice.
#[test]
fn a_search_splits_layers_too() {
    let slow = cluster(16, &[(3, 0.5)]);
    let batch = Batch::new(&(0..60).map(|i| 900 + i % 7 * 300).collect::<Vec<i64>>(), None).unwrap();
    let plan = |splits| {
        let mut profile = profile(splits);
        profile.schemes.retain(|entry| entry.scheme.pp() == 2);
        let planner = Planner::search(profile, slow.clone()).unwrap();
        let plan = planner.plan(&batch).unwrap();
        assert_eq!(planner.check(&plan, &batch), []);
        plan
    };
    let (usual, split) = (plan(0), plan(3));
    assert!(split.iteration_ms.0 < 0.95 * usual.iteration_ms.0, "{:?} {:?}", split.iteration_ms, usual.iteration_ms);
    assert!(split.strategy.to_string().contains("split:"), "{}", split.strategy);
}

/// Where all ranks are alike, splits for slow stages are no candidates: the plan is the same, byte for byte.
#[test]
fn equal_ranks_have_no_splits() {
    let plan = |splits| {
        let planner = Planner::search(profile(splits), cluster(16, &[])).unwrap();
        planner.plan(&Batch::new(&[3_000; 40], None).unwrap()).unwrap().to_json()
    };
    assert_eq!(plan(0), plan(2));
}

/// Stages of more layers need more memory: the split's cap is lower, and the checker knows it.
#[test]
fn splits_count_the_memory_of_longer_stages() {
    let known = profile(2);
    let entry = |text: &str| known.scheme(text.parse::<Scheme>().unwrap()).unwrap().clone();
    let (usual, split) = (entry("<tp8,pp2>"), entry("<tp8,pp2,split:7-53>"));
    let ratio = 53.0 / f64::from(LayerSplit::of(known.model.as_ref().unwrap()).stage_layers(usual.scheme).unwrap()[1]);
    let per_token = split.activation_bytes_per_token.of(1) / usual.activation_bytes_per_token.of(1);
    assert!((per_token / ratio - 1.0).abs() < 1e-12, "{per_token} {ratio}");
    assert!(split.resident_bytes.of(1) > usual.resident_bytes.of(1));
    assert_eq!(split.stage_layers, Some(vec![7, 53]));
}
