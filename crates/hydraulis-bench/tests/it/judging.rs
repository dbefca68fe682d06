//! The judge finds the faults of a baseline's decision.

use hydraulis_bench::baseline::{Decision, Phase};
use hydraulis_bench::judge::Judge;
use hydraulis_bench::link::link;
use hydraulis_bench::planner_under_test::Answer;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{CostModel, preset};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Cluster;

/// The verdict on work for 16 replicas of <tp4>, given for the first two.
fn status(lengths: &[i64], first: Vec<Vec<usize>>, second: Vec<Vec<usize>>) -> String {
    let mut work = vec![Vec::new(); 16];
    (work[0], work[1]) = (first, second);
    judged(lengths, Decision::new("16x<tp4>".parse().unwrap(), work)).0
}

fn judged(lengths: &[i64], decision: Decision) -> (String, f64) {
    let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
    let batch = Batch::new(lengths, None).unwrap();
    let verdict = Judge::new(&cost, None).judge(&Answer::Decision(decision), &batch).unwrap();
    assert_eq!(verdict.bound, None);
    (verdict.status(), verdict.iteration_ms.0)
}

#[test]
fn broken_promises_are_named() {
    let lengths = [5_000, 4_000, 3_000];
    assert_eq!(status(&lengths, vec![vec![0], vec![1]], vec![vec![2]]), "ok");
    // <tp4> admits 7,808 tokens.
    assert_eq!(status(&lengths, vec![vec![0, 1]], vec![vec![2]]), "micro_batch_over_cap");
    assert_eq!(status(&lengths, vec![vec![0]], vec![vec![1]]), "sequence_missing");
    assert_eq!(status(&lengths, vec![vec![0], vec![1]], vec![vec![2], vec![1]]), "sequence_repeated");
    assert_eq!(status(&lengths, vec![vec![0], vec![1]], vec![vec![2], vec![7]]), "sequence_unknown");
    assert_eq!(status(&lengths, vec![vec![0], vec![1], vec![]], vec![vec![2]]), "micro_batch_empty");
}

#[test]
fn a_replica_without_a_list_is_named() {
    let decision = Decision::new("2x<tp4>".parse().unwrap(), vec![vec![vec![0]]]);
    assert_eq!(judged(&[500], decision).0, "work_differs");
}

#[test]
fn phases_add_up_and_may_share_no_sequence() {
    let phase = |id: usize| Phase { strategy: "1x<tp8>".parse().unwrap(), work: vec![vec![vec![id]]] };
    let lengths = [5_000, 4_000];
    let alone = |id: usize| judged(&lengths[id..=id], Decision { phases: vec![phase(0)] }).1;
    let (status, both) = judged(&lengths, Decision { phases: vec![phase(0), phase(1)] });
    assert_eq!(status, "ok");
    assert!((both - alone(0) - alone(1)).abs() < 1e-9);
    let (status, _) = judged(&lengths, Decision { phases: vec![phase(0), phase(1), phase(1)] });
    assert_eq!(status, "sequence_repeated");
}

#[test]
fn phases_in_one_layout_fill_it_once() {
    let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
    let links = link("200".parse().unwrap(), &cost).unwrap();
    let moved = |strategies: &[&str]| {
        let phase = |(id, name): (usize, &&str)| Phase { strategy: name.parse().unwrap(), work: vec![vec![vec![id]]] };
        let decision = Decision { phases: strategies.iter().enumerate().map(phase).collect() };
        let batch = Batch::new(&[900, 800, 700][..strategies.len()], None).unwrap();
        let verdict = Judge::new(&cost, Some(&links)).judge(&Answer::Decision(decision), &batch).unwrap();
        verdict.transfers.unwrap().alone_ms
    };
    let both = moved(&["1x<tp8>", "1x<tp16>"]);
    assert!(moved(&["1x<tp8>", "1x<tp16>", "1x<tp8>"]).is_close(both));
    assert!(both.is_close(moved(&["1x<tp8>"]) + moved(&["1x<tp16>"])));
}

#[test]
fn a_plan_given_as_a_decision_is_judged_no_longer_than_the_plan() {
    let (profile, cluster) = (preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
    let cost = CostModel::new(profile.clone(), cluster.clone());
    let lengths = [7_000, 7_000, 6_000, 6_000, 5_000, 5_000, 900, 100].repeat(8);
    let batch = Batch::new(&lengths, None).unwrap();
    for rate in ["25", "50", "100", "200"] {
        let links = link(rate.parse().unwrap(), &cost).unwrap();
        let list = Some(vec!["8x<tp8>".parse().unwrap()]);
        let planner = Planner::new(profile.clone(), cluster.clone(), list).unwrap().with_link(links.clone()).unwrap();
        let plan = planner.plan(&batch).unwrap();
        let work = plan.replicas.iter().map(|replica| replica.micro_batches.clone()).collect();
        let decision = Answer::Decision(Decision::new(plan.strategy.clone(), work));
        let verdict = Judge::new(&cost, Some(&links)).judge(&decision, &batch).unwrap();
        assert!(verdict.iteration_ms.is_close(plan.iteration_ms));
        let (judged, planned) = (verdict.transfers.unwrap().transfer_ms, plan.transfers.unwrap().transfer_ms);
        assert!(judged <= planned * (1.0 + 1e-9), "{rate}: {judged:?}, and the plan's are {planned:?}");
    }
}
