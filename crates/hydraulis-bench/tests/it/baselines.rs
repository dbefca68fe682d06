//! Properties of every baseline on any batch, and small cases with known answers.

use hydraulis_bench::baseline::{EqualReplicas, Paper, Work, assigners};
use hydraulis_bench::judge::Judge;
use hydraulis_bench::planner_under_test::{Answer, Name, PlannerUnderTest};
use hydraulis_bench::workload::{Lognormal, draw};
use hydraulis_core::batch::Batch;
use hydraulis_core::capacity::ClassCapacity;
use hydraulis_core::cost::{CostModel, preset};
use hydraulis_core::spec::{Cluster, MemoryRule, Strategy};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy as _, prop_assert_eq, proptest};
use proptest::sample::select;

const NAMES: [Name; 10] = [
    Name::Hydraulis,
    Name::Search,
    Name::Paper,
    Name::StaticBalanced,
    Name::StaticFirstFit,
    Name::StaticSorted,
    Name::Buckets,
    Name::FlexibleGroups,
    Name::LongestFirst,
    Name::KarmarkarKarp,
];

fn model(profile: &str, gpus: u32) -> CostModel {
    CostModel::new(preset(profile).unwrap(), Cluster::new(gpus, 8).unwrap())
}

/// The work of replicas of this scheme that fill 64 GPUs.
fn assigned(assign: fn(&Batch, &EqualReplicas) -> Work, scheme: &str, lengths: &[i64]) -> Work {
    let model = model("llama-32b-a800", 64);
    let every = EqualReplicas::every(&model).unwrap();
    let replicas = every.iter().find(|replicas| replicas.cost.scheme() == scheme.parse().unwrap()).unwrap();
    assign(&Batch::new(lengths, None).unwrap(), replicas)
}

fn sizes(work: &Work) -> Vec<usize> {
    work.iter().map(Vec::len).collect()
}

#[test]
fn five_packs_on_four_replicas_unless_they_are_a_multiple() {
    // Each sequence is longer than half of <tp16>'s 43,520 tokens.
    let lengths = [22_000; 5];
    assert_eq!(sizes(&assigned(assigners::static_first_fit, "<tp16>", &lengths)), [2, 1, 1, 1]);
    assert_eq!(sizes(&assigned(assigners::static_sorted, "<tp16>", &lengths)), [2, 1, 1, 1]);
    // Twenty sequences make two full packs, and four balanced ones.
    let lengths = [4_000; 20];
    assert_eq!(sizes(&assigned(assigners::static_first_fit, "<tp16>", &lengths)), [1, 1, 0, 0]);
    let balanced = assigned(assigners::static_balanced, "<tp16>", &lengths);
    assert!(balanced.iter().all(|replica| replica.len() == 1 && replica[0].len() == 5), "{balanced:?}");
}

#[test]
fn sorted_packs_are_assigned_by_time() {
    // 20,000 tokens fit together with 23,000 but not with 30,000: the pack opened second takes longer.
    let lengths = [30_000, 23_000, 20_000];
    assert_eq!(assigned(assigners::static_first_fit, "<tp16>", &lengths)[..2], [vec![vec![0]], vec![vec![1, 2]]]);
    assert_eq!(assigned(assigners::static_sorted, "<tp16>", &lengths)[..2], [vec![vec![1, 2]], vec![vec![0]]]);
}

#[test]
fn a_heap_assigns_the_longest_first() {
    // Each of the eight replicas of <tp8> takes one; of the last three, two join 1,000 and one joins 2,000.
    let lengths = [8_000, 7_000, 6_000, 5_000, 4_000, 3_000, 2_000, 1_000, 900, 800, 700];
    let work = assigned(assigners::longest_first, "<tp8>", &lengths);
    assert_eq!(work[0], [vec![0]]);
    assert_eq!(work[7], [vec![7, 8, 9]]);
    assert_eq!(work[6], [vec![6, 10]]);
}

#[test]
fn differencing_assigns_equal_sequences_evenly() {
    let work = assigned(assigners::karmarkar_karp, "<tp16>", &[1_000; 12]);
    assert!(work.iter().all(|replica| replica.concat().len() == 3), "{work:?}");
}

#[test]
fn buckets_run_one_after_another() {
    let cost = model("llama-32b-a800", 64);
    let batches = [Batch::new(&[32_768, 10_000, 500, 500, 500], None).unwrap()];
    let mut buckets = PlannerUnderTest::new(Name::Buckets, &cost, None, &batches, None).unwrap();
    let Answer::Decision(decision) = buckets.decide(&batches[0]).unwrap() else { panic!("a plan") };
    let ids: Vec<Vec<usize>> = decision.phases.iter().map(|phase| phase.work.concat().concat()).collect();
    assert_eq!(ids.len(), 3);
    assert_eq!((&ids[0][..], &ids[1][..]), (&[0][..], &[1][..]));
    let verdict = Judge::new(&cost, None).judge(&Answer::Decision(decision.clone()), &batches[0]).unwrap();
    let one_by_one = decision.phases.iter().map(|phase| {
        let planner =
            hydraulis_core::search::Planner::new(cost.profile().clone(), cost.cluster().clone(), None).unwrap();
        let cost = planner.cost().scheme(phase.strategy.schemes()[0]).unwrap();
        let replicas = EqualReplicas {
            cost,
            capacity: ClassCapacity::new(cost.clone(), hydraulis_core::spec::CapacityBudget::ONLINE),
            strategy: phase.strategy.clone(),
        };
        replicas.time(&batches[0], &phase.work)
    });
    assert!(verdict.iteration_ms.is_close(one_by_one.sum()));
}

#[test]
fn groups_take_sorted_sequences_step_by_step() {
    let cost = model("llama-32b-a800", 64);
    // The long sequences together would need seven <tp16>; steps of four and three serve them.
    let lengths = [&[30_000; 7][..], &[700; 60]].concat();
    let batch = Batch::new(&lengths, None).unwrap();
    let mut groups =
        PlannerUnderTest::new(Name::FlexibleGroups, &cost, None, std::slice::from_ref(&batch), None).unwrap();
    let Answer::Decision(decision) = groups.decide(&batch).unwrap() else { panic!("a plan") };
    assert!(decision.phases.len() >= 2, "{}", decision.strategy());
    let mut before = 0;
    for phase in &decision.phases {
        assert!(phase.strategy.schemes().iter().all(|scheme| scheme.pp() == 1), "{}", phase.strategy);
        assert!(phase.work.iter().all(|replica| replica.len() <= 1), "{:?}", phase.work);
        let mut ids = phase.work.concat().concat();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(before..before + ids.len()), "{ids:?}");
        before += ids.len();
    }
    assert_eq!(before, lengths.len());
    // Two steps for the long sequences, and less than a third for the short ones in the same steps or after them.
    let verdict = Judge::new(&cost, None).judge(&Answer::Decision(decision), &batch).unwrap();
    let alone = cost.scheme("<tp16>".parse().unwrap()).unwrap().micro_batch_ms([batch.tokens()[0]].into_iter());
    assert!(verdict.iteration_ms >= alone * 2.0 && verdict.iteration_ms < alone * 3.0, "{verdict:?}");
}

#[test]
fn the_paper_takes_the_strategy_of_least_closed_form_time() {
    let cost = model("llama-32b-a800", 64);
    let strategies: Vec<Strategy> = ["4x<tp16>", "16x<tp4>"].iter().map(|name| name.parse().unwrap()).collect();
    let paper = Paper::new(&cost, &strategies).unwrap();
    let chosen = |lengths: &[i64]| paper.decide(&Batch::new(lengths, None).unwrap());
    // Sixteen short sequences run on sixteen narrow replicas at once; a long one fits on the wide ones alone.
    let short = chosen(&[1_000; 16]).unwrap();
    assert_eq!(short.strategy(), "16x<tp4>");
    assert_eq!(sizes(&short.phases[0].work), [1; 16]);
    assert_eq!(chosen(&[20_000, 1_000]).unwrap().strategy(), "4x<tp16>");
    assert_eq!(chosen(&[50_000]).unwrap_err().code(), "sequence_too_long");
}

#[test]
fn the_core_is_never_longer_than_a_method_over_the_same_list() {
    let cost = model("llama-32b-a800", 64);
    let lognormal = Lognormal { mu: 6.2, sigma: 1.2, longest: 32_768 };
    let batches = draw(&lognormal, 11, 200_000, 12).unwrap();
    let ready = |name| PlannerUnderTest::new(name, &cost, None, &batches, None).unwrap();
    let (mut hydraulis, mut search, mut paper) = (ready(Name::Hydraulis), ready(Name::Search), ready(Name::Paper));
    let mut judge = Judge::new(&cost, None);
    for batch in &batches {
        let mut ms =
            |planner: &mut PlannerUnderTest| judge.judge(&planner.decide(batch).unwrap(), batch).unwrap().iteration_ms;
        let least = ms(&mut paper);
        assert!(ms(&mut hydraulis) <= least && ms(&mut search) <= least);
    }
}

/// A profile, its cluster, a memory rule, and lengths that every planner under test admits.
fn any_workload() -> impl proptest::strategy::Strategy<Value = (CostModel, Vec<Vec<i64>>)> {
    let clusters = [("llama-32b-a800", 64, 43_520), ("llama-7b-a800", 16, 40_000), ("llama-13b-a800", 32, 40_000)];
    select(clusters.to_vec()).prop_flat_map(|(profile, gpus, most)| {
        let long_tail = (0.0..1.0_f64).prop_map(move |x| long_tailed(x, most));
        let lengths =
            vec(proptest::prop_oneof![6 => long_tail, 1 => 1..=most, 1 => proptest::strategy::Just(most)], 1..=80);
        let memory = select(MemoryRule::ALL.to_vec());
        (proptest::strategy::Just((profile, gpus)), memory, vec(lengths, 1..=3))
            .prop_map(|((profile, gpus), memory, batches)| (model(profile, gpus).with_memory(memory), batches))
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
fn long_tailed(x: f64, most: i64) -> i64 {
    ((most as f64).powf(x) as i64).clamp(1, most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_answer_keeps_its_promises((cost, lengths) in any_workload()) {
        let batches: Vec<Batch> = lengths.iter().map(|lengths| Batch::new(lengths, None).unwrap()).collect();
        let mut judge = Judge::new(&cost, None);
        for name in NAMES {
            let Ok(mut planner) = PlannerUnderTest::new(name, &cost, None, &batches, None) else {
                panic!("{} is not ready", name.as_str());
            };
            for batch in &batches {
                let answer = planner.decide(batch).unwrap();
                prop_assert_eq!(&answer, &planner.decide(batch).unwrap(), "{} is not repeatable", name.as_str());
                let verdict = judge.judge(&answer, batch).unwrap();
                prop_assert_eq!(verdict.status(), "ok", "{} {:?}", name.as_str(), verdict.violations);
            }
        }
    }
}
