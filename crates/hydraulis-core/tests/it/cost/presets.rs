//! The planner on the shipped profiles: realistic batches, and lengths at its limits.

use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{CostProfile, FitQuality, MeasuredRange, PRESETS, PerStage, Reliability, preset};
use hydraulis_core::explain::explain;
use hydraulis_core::plan::{Candidate, Outcome, Plan};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{Cluster, Strategy};

/// A random generator without a dependency: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
/// generators", `SplitMix64`.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A uniform number above 0 and up to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept")]
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

/// Lengths of a log-normal law (mean 6.2 and deviation 1.2 of the logarithm), clipped to 32,768.
#[expect(clippy::cast_possible_truncation, reason = "clipped")]
pub(crate) fn log_normal(seed: u64) -> impl Iterator<Item = i64> {
    let mut random = SplitMix(seed);
    std::iter::repeat_with(move || {
        let (radius, angle) = ((-2.0 * random.unit().ln()).sqrt(), std::f64::consts::TAU * random.unit());
        (6.2 + 1.2 * radius * angle.cos()).exp().clamp(1.0, 32_768.0) as i64
    })
}

/// A log-normal batch of about this many tokens.
pub(crate) fn batch_of_tokens(seed: u64, tokens: i64) -> Batch {
    let mut left = tokens;
    let within = log_normal(seed).take_while(|length| {
        left -= length;
        left > 0
    });
    Batch::new(&within.collect::<Vec<_>>(), None).unwrap()
}

fn planner(profile: CostProfile, gpus: u32, strategies: &[&str]) -> Planner {
    let strategies: Vec<Strategy> = strategies.iter().map(|text| text.parse().unwrap()).collect();
    Planner::new(profile, Cluster::new(gpus, 8).unwrap(), (!strategies.is_empty()).then_some(strategies)).unwrap()
}

fn llama_32b(strategies: &[&str]) -> Planner {
    planner(preset("llama-32b-a800").unwrap(), 64, strategies)
}

/// Plans the lengths and checks the plan.
fn planned(planner: &Planner, lengths: &[i64]) -> Plan {
    let batch = Batch::new(lengths, None).unwrap();
    let plan = planner.plan(&batch).unwrap();
    assert_eq!(planner.check(&plan, &batch), []);
    assert!(plan.iteration_ms >= plan.lower_bound.ms);
    plan
}

/// More memory admits every plan of less memory: with many micro-batches it lengthens a pipeline's plan by at most 0.3
/// %.
#[test]
fn more_memory_gives_no_longer_plan() {
    let with_less = |scheme: &str, giga: u64| {
        let mut profile = preset("llama-7b-a800").unwrap();
        profile.hardware.memory_bytes -= giga * 1_000_000_000;
        planner(profile, 8, &[scheme])
    };
    for (strategy, tokens) in [("1x<pp8>", 500_000), ("1x<pp8>", 1_000_000), ("1x<tp2,pp4>", 1_000_000)] {
        let batch = batch_of_tokens(3, tokens);
        let lengths = batch.tokens().iter().map(|length| i64::try_from(length.0.min(6_000)).unwrap());
        let lengths: Vec<i64> = lengths.collect();
        let plans: Vec<Plan> = [0, 10, 19, 24].map(|giga| planned(&with_less(strategy, giga), &lengths)).into();
        for pair in plans.windows(2) {
            let [more, less] = [&pair[0], &pair[1]].map(|plan| plan.iteration_ms.0);
            assert!(more <= less * 1.003, "{strategy}, {tokens} tokens: {more} with more memory, {less} with less");
        }
        assert!(plans[3].replicas[0].micro_batches.len() > 64);
        assert!(plans.iter().all(|plan| plan.gap() < 0.06), "{:?}", plans.iter().map(Plan::gap).collect::<Vec<_>>());
    }
}

#[test]
fn realistic_batches_are_planned_close_to_the_bound() {
    let planner = llama_32b(&[]);
    let mut gaps = Vec::new();
    for seed in 0..8 {
        let batch = batch_of_tokens(seed, 200_000);
        assert!(batch.len() > 100, "{} sequences", batch.len());
        let plan = planner.plan(&batch).unwrap();
        assert_eq!(planner.check(&plan, &batch), []);
        gaps.push(plan.gap());
    }
    assert!(gaps.iter().all(|gap| (0.0..0.25).contains(gap)), "{gaps:?}");
}

#[test]
fn every_preset_plans_on_clusters_of_several_sizes() {
    for ((name, _), gpus) in PRESETS.iter().flat_map(|preset| [16, 32, 64].map(|gpus| (preset, gpus))) {
        let planner = planner(preset(name).unwrap(), gpus, &[]);
        let longest = i64::try_from(planner.longest_admitted().0).unwrap();
        let lengths: Vec<i64> = log_normal(1).map(|length| length.min(longest)).take(200).collect();
        let plan = planned(&planner, &lengths);
        assert!(plan.gap() < 1.0, "{name} on {gpus}: {}", plan.gap());
    }
}

#[test]
fn one_sequence_leaves_all_but_one_replica_idle() {
    let plan = planned(&llama_32b(&[]), &[31_000]);
    assert_eq!(plan.replicas.iter().filter(|replica| !replica.micro_batches.is_empty()).count(), 1);
}

#[test]
fn one_gpu_packs_without_a_choice() {
    let mut profile = preset("llama-7b-a800").unwrap();
    let mut single = profile.schemes[0].clone();
    single.scheme = "<1>".parse().unwrap();
    (single.resident_bytes, single.stage_multipliers) = (PerStage::Fullest(0), None);
    (profile.memory.optimizer_bytes, profile.memory.reserved_bytes) = (0, 0);
    profile.schemes = vec![single];
    let planner = planner(profile, 1, &["1x<1>"]);
    let cap = planner.longest_admitted();
    let length = i64::try_from(cap.0 / 4).unwrap();
    let plan = planned(&planner, &[length; 10]);
    assert_eq!(plan.replicas[0].micro_batches.len(), 3);
    let cost = planner.cost().scheme(plan.replicas[0].scheme).unwrap();
    let work = cost.sequence_ms(Tokens(cap.0 / 4)).0 * 10.0 + cost.fixed_ms().0 * 3.0;
    assert!((plan.iteration_ms.0 / work - 1.0).abs() < 1e-9);
}

#[test]
fn the_quickest_packing_is_refused_for_one_token_too_many() {
    let mut profile = preset("llama-7b-a800").unwrap();
    profile.schemes.retain(|entry| entry.scheme.to_string() == "<pp2>");
    let only = &mut profile.schemes[0];
    (only.quadratic_ms_per_token2, only.linear_ms_per_token, only.fixed_ms) = (1.0, 0.0, 30.0);
    (only.resident_bytes, only.activation_bytes_per_token) = (PerStage::Fullest(0), PerStage::Fullest(1.0));
    (profile.memory.optimizer_bytes, profile.memory.reserved_bytes, profile.memory.token_multiple) = (0, 0, 1);
    profile.hardware.memory_bytes = 10;
    let planner = planner(profile, 2, &["1x<pp2>"]);
    assert_eq!(planner.longest_admitted(), Tokens(10));
    // The longest sequence alone and all others together would be fastest, but would need 11 tokens in one micro-batch.
    planned(&planner, &[7, 4, 4, 3]);
}

#[test]
fn equal_sequences_are_assigned_evenly() {
    let plan = planned(&llama_32b(&["16x<tp4>"]), &[1_000; 64]);
    assert!(plan.replicas.iter().all(|replica| replica.sequences() == 4));
}

#[test]
fn a_very_long_sequence_runs_alone() {
    let mut lengths = vec![500; 100];
    lengths[37] = 32_000;
    let plan = planned(&llama_32b(&[]), &lengths);
    // The longest runs alone on the replica that admits it, or with sequences that add no iteration time.
    assert!(plan.gap() < 0.01, "{}", plan.gap());
}

#[test]
fn a_narrow_replica_stays_idle_if_it_would_lengthen_the_iteration() {
    let mut profile = preset("llama-32b-a800").unwrap();
    let narrow = profile.schemes.iter_mut().find(|entry| entry.scheme.to_string() == "<tp4>").unwrap();
    (narrow.linear_ms_per_token, narrow.fixed_ms) = (50.0, 10_000.0);
    let plan = planned(&planner(profile, 64, &["1x<tp16>+1x<tp4>"]), &[300, 200, 100]);
    assert_eq!(plan.replicas[1].sequences(), 0);
    assert_eq!((plan.replicas[1].predicted_ms.0, plan.replicas[1].busy_ms.0), (0.0, 0.0));
}

#[test]
fn the_longest_sequences_admitted_are_planned_exactly_at_the_cap() {
    let planner = llama_32b(&["1x<tp16>+12x<tp4>"]);
    let (wide, narrow) = (43_520, 7_808);
    assert_eq!(planner.longest_admitted(), Tokens(43_520));
    let mut lengths = vec![narrow; 24];
    lengths.extend([wide, narrow + 1, narrow + 1]);
    let plan = planned(&planner, &lengths);
    let on_wide: Vec<usize> = plan.replicas[0].micro_batches.concat();
    assert!([24, 25, 26].iter().all(|id| on_wide.contains(id)), "{on_wide:?}");
}

#[test]
fn twenty_thousand_sequences_are_planned() {
    let lengths: Vec<i64> = log_normal(5).take(20_000).collect();
    let plan = planned(&llama_32b(&["1x<tp16>+12x<tp4>"]), &lengths);
    assert!(plan.gap() < 0.1, "{}", plan.gap());
}

#[test]
fn gpus_outside_all_replicas_are_counted() {
    let account = |strategy: &str| explain(&planned(&llama_32b(&[strategy]), &[900; 9]));
    assert!(account("3x<tp16>").contains("; 16 GPUs of the cluster in no replica"));
    assert!(!account("4x<tp16>").contains("in no replica"));
}

/// The profile's error decides whether a gap is meaningful, and the account names a sequence beyond the measurements.
#[test]
fn a_plan_states_the_reliability_of_its_times() {
    let mut profile = preset("llama-32b-a800").unwrap();
    let planned_with =
        |profile: &CostProfile, lengths: &[i64]| planned(&planner(profile.clone(), 64, &["4x<tp16>"]), lengths);
    // With a gap that rounds to zero there is no gain to report.
    assert!(!explain(&planned_with(&profile, &[31_000; 6])).contains("lengthens a plan"));
    let uneven: Vec<i64> = (24..=31).map(|thousands| 1_000 * thousands).collect();
    let planned_with = |profile: &CostProfile| planned_with(profile, &uneven);
    assert!(
        explain(&planned_with(&profile))
            .contains("Times of a profile are usually 3.0 % off, which alone lengthens a plan by 1.6 %, more")
    );
    let measured = |longest: u64, error: f64| FitQuality {
        points: 8,
        outliers: 0,
        relative_error: 0.5,
        held_out_error: Some(error),
        range: MeasuredRange { longest_tokens: Tokens(longest), micro_batch_tokens: Tokens(longest) },
    };
    let wide = profile.schemes.iter().position(|entry| entry.scheme.to_string() == "<tp16>").unwrap();
    profile.schemes[wide].fit = Some(measured(15_500, 0.1));
    let plan = planned_with(&profile);
    assert_eq!(plan.replicas[0].reliability, Some(Reliability { error: 0.1, factor: 2.0 }));
    let text = explain(&plan);
    assert!(
        text.contains("profile's times are 10.0 % off, which alone lengthens a plan by 3.5 %")
            && text.contains("<tp16> is 2.0 times as long"),
        "{text}"
    );
    profile.schemes[wide].fit = Some(measured(62_000, 0.000_001));
    let text = explain(&planned_with(&profile));
    assert!(!text.contains("times as long"), "{text}");
    let extrapolation = plan.extrapolation().unwrap();
    assert_eq!((extrapolation.scheme.to_string().as_str(), extrapolation.factor), ("<tp16>", 2.0));
    assert_eq!(planned_with(&profile).extrapolation(), None);
    assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
}

/// A list of a profile's schemes may have hundreds of strategies: the account names those that came closest.
#[test]
fn an_explanation_of_many_strategies_names_the_closest_ones() {
    let mixes: Vec<String> = (0..=14).map(|pairs| format!("1x<tp8>+{}x<tp4>+{pairs}x<pp4>", 14 - pairs)).collect();
    let listed: Vec<&str> = mixes[1..14].iter().map(String::as_str).chain(["8x<tp8>"]).collect();
    let plan = planned(&planner(preset("llama-32b-a800").unwrap(), 64, &listed), &[8_000, 6_000, 900, 900, 450, 80]);
    let text = explain(&plan);
    let named = |strategy: &Strategy| text.lines().any(|line| line.starts_with(&format!("  {strategy} ")));
    let (told, left): (Vec<&Candidate>, Vec<_>) = plan.candidates.iter().partition(|entry| named(&entry.strategy));
    assert_eq!((told.len(), left.len()), (12, 2), "{text}");
    assert!(text.contains("\n  and 2 that are longer, not tried for that, or too narrow\n"), "{text}");
    assert!(told.iter().any(|entry| entry.strategy == plan.strategy));
    assert!(left.iter().all(|entry| !matches!(entry.outcome, Outcome::Planned(_))), "{left:?}");
}
