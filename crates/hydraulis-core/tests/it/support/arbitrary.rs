//! Random inputs: profiles, clusters, strategies that fit, and batches with every kind of tail.

use std::fmt;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{CostProfile, OtherDevice};
use hydraulis_core::layout::place;
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{self, CheckpointingKind, Cluster, MemoryRule, Scheme};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// The arguments of a planner, and the lengths of one batch that its widest replica just admits.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) profile: CostProfile,
    pub(crate) cluster: Cluster,
    pub(crate) memory: MemoryRule,
    pub(crate) strategies: Vec<spec::Strategy>,
    pub(crate) lengths: Vec<i64>,
}

impl Case {
    pub(crate) fn planner(&self) -> Planner {
        self.planner_of(self.strategies.clone())
    }

    pub(crate) fn planner_of(&self, strategies: Vec<spec::Strategy>) -> Planner {
        Planner::new(self.profile.clone(), self.cluster.clone(), Some(strategies)).unwrap().with_memory(self.memory)
    }

    pub(crate) fn searching(&self) -> Planner {
        Planner::search(self.profile.clone(), self.cluster.clone()).unwrap().with_memory(self.memory)
    }

    pub(crate) fn batch(&self) -> Batch {
        Batch::new(&self.lengths, None).unwrap()
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let strategies: Vec<String> = self.strategies.iter().map(spec::Strategy::to_string).collect();
        write!(
            f,
            "{:?}, memory {}\n{strategies:?}\n{:?}\n{}",
            self.cluster,
            self.memory,
            self.lengths,
            self.profile.to_json()
        )
    }
}

/// `PROPTEST_CASES` cases if that is set, else `otherwise`.
pub(crate) fn cases(otherwise: u32) -> ProptestConfig {
    let standard = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig { cases: if asked { standard.cases } else { otherwise }, ..standard }
}

/// Up to four strategies of up to eight replicas, and batches of 1 to 300 sequences.
pub(crate) fn any_case() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![2 => 1..=8_usize, 3 => 9..=60_usize, 1 => 61..=300_usize];
    case(8, 4, sizes.prop_flat_map(|size| vec(0.0..1.0, size)))
}

/// Few enough sequences and replicas to enumerate every plan.
pub(crate) fn small_case() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![4 => 1..=4_usize, 3 => Just(5_usize), 1 => Just(6_usize)];
    case(3, 2, sizes.prop_flat_map(|size| vec(0.0..1.0, size)))
}

/// As [`small_case`], on up to six ranks of different rates. Some have more memory than the profile's device, or are
/// another device.
pub(crate) fn small_mixed_case() -> impl Strategy<Value = Case> {
    let few = small_case().prop_filter("too many placements", |case| case.cluster.gpus() <= 6);
    let rates = vec(select(vec![1.0, 1.0, 0.5, 0.8, 0.1, 2.0]), 6);
    let memory = option::weighted(0.5, vec(select(vec![MEMORY, MEMORY + 300_000, MEMORY + 700_000, MEMORY * 3]), 6));
    let devices = option::weighted(0.5, (vec(0..=1_u16, 6), vec(other_times(), 5), select(vec![0.3, 1.0, 1.5])));
    (few, rates, memory, devices).prop_map(|(mut case, rates, memory, devices)| {
        let gpus = case.cluster.gpus() as usize;
        let cluster = case.cluster.with_rates(rates[..gpus].to_vec()).unwrap();
        case.cluster = match memory {
            Some(memory) => cluster.with_memory_bytes(memory[..gpus].to_vec()).unwrap(),
            None => cluster,
        };
        if let Some((of_ranks, times, rate)) = devices {
            case.cluster = case.cluster.with_devices(of_ranks[..gpus].to_vec()).unwrap();
            let profile = of_another_device(case.profile.clone(), &times);
            case.profile = case.profile.with_other_devices(vec![OtherDevice { rate, profile }]).unwrap();
        }
        case
    })
}

/// Another device's coefficients relative to those of a scheme, and its share of the forward.
fn other_times() -> impl Strategy<Value = ([f64; 4], f64)> {
    let factor = || select(vec![0.2, 1.0, 1.7, 6.0]);
    ((factor(), factor(), factor(), factor()).prop_map(|(a, b, c, d)| [a, b, c, d]), 0.1..0.9)
}

/// The profile with other times, those of one scheme after another.
fn of_another_device(mut profile: CostProfile, times: &[([f64; 4], f64)]) -> CostProfile {
    for (entry, ([a, b, c, d], forward_share)) in profile.schemes.iter_mut().zip(times) {
        entry.quadratic_ms_per_token2 *= a;
        entry.linear_ms_per_token *= b;
        entry.fixed_ms *= c;
        entry.least_ms *= d;
        entry.forward_share = *forward_share;
        if let Some(multipliers) = &mut entry.stage_multipliers {
            multipliers.reverse();
        }
    }
    profile
}

fn case(
    most_replicas: usize,
    most_strategies: usize,
    fractions: impl Strategy<Value = Vec<f64>>,
) -> impl Strategy<Value = Case> {
    let shapes = [(1, 1), (1, 8), (2, 2), (3, 4), (4, 8), (6, 2), (8, 8), (8, 4), (12, 4), (16, 8), (24, 8), (32, 8)];
    let schemes = vec(scheme(), 1..=5);
    let picks = vec(vec(0..5_usize, 1..=most_replicas), 1..=most_strategies);
    let memory = select(MemoryRule::ALL.to_vec());
    (schemes, select(shapes.to_vec()), memory, picks, select(TAILS.to_vec()), fractions).prop_map(
        |(schemes, (gpus, node), memory, picks, tail, fractions)| {
            let cluster = Cluster::new(gpus, node).unwrap();
            let profile = profile(&schemes, gpus);
            let strategies: Vec<spec::Strategy> =
                picks.iter().map(|picks| fitting(&profile, &cluster, picks)).collect();
            let mut case = Case { profile, cluster, memory, strategies, lengths: Vec::new() };
            case.lengths = lengths(&case, tail, &fractions);
            case
        },
    )
}

/// One scheme: degrees, checkpointing, cap, coefficients, sometimes a least time, and stages of unequal time and memory.
#[derive(Clone, Debug)]
struct SchemeInput {
    tp: u16,
    cp: u16,
    pp: u16,
    checkpointing: CheckpointingKind,
    cap: u64,
    coefficients: [f64; 3],
    least_ms: f64,
    forward_share: f64,
    multipliers: Option<Vec<f64>>,
    /// Activation bytes of a token, by stage.
    activations: Option<Vec<u64>>,
}

fn scheme() -> impl Strategy<Value = SchemeInput> {
    let degrees = (select(vec![1_u16, 2, 3, 4, 8]), select(vec![1_u16, 1, 1, 2, 3]), 1..=4_u16);
    let caps = prop_oneof![1 => 1..=20_u64, 2 => 21..=2_000_u64, 3 => 2_001..=40_000_u64];
    let coefficients = (power_or_zero(-8..=-4), power_or_zero(-3..=0), power_or_zero(-1..=3));
    let least = option::weighted(0.3, power_or_zero(0..=3)).prop_map(Option::unwrap_or_default);
    let kinds = select(CheckpointingKind::ALL.to_vec());
    let stages = (option::weighted(0.3, vec(0.5..2.0, 4)), option::weighted(0.3, vec(1..=PER_TOKEN / 2, 4)));
    (degrees, kinds, caps, (coefficients, least), 0.1..0.9, stages).prop_map(
        |((tp, cp, pp), checkpointing, cap, ((a, b, c), least_ms), forward_share, (multipliers, activations))| {
            let b = if a + b > 0.0 { b } else { 0.1 };
            let coefficients = [a, b, c];
            SchemeInput {
                tp,
                cp,
                pp,
                checkpointing,
                cap,
                coefficients,
                least_ms,
                forward_share,
                multipliers,
                activations,
            }
        },
    )
}

fn power_or_zero(exponents: std::ops::RangeInclusive<i32>) -> impl Strategy<Value = f64> {
    let powers = (1.0..10.0, exponents).prop_map(|(digits, exponent)| digits * 10.0_f64.powi(exponent));
    prop_oneof![1 => Just(0.0), 5 => powers]
}

const MEMORY: u64 = 100_000_000;
const PER_TOKEN: u64 = 1_000;
/// Host memory as large as a rank's limits schemes that offload to 25,000 tokens.
const HOST_PER_TOKEN: u64 = 4_000;

/// The memory of a scheme with the requested cap: by the fullest stage alone, or stage by stage, where a later stage
/// may be the fullest.
fn memory(input: &SchemeInput, pp: u16) -> [Value; 2] {
    let free = MEMORY - 1_000_000 - 64;
    let Some(by_stage) = input.activations.as_ref().filter(|_| pp > 1) else {
        return [json!(free - input.cap * PER_TOKEN), json!(PER_TOKEN)];
    };
    let in_flight = by_stage[..usize::from(pp)].iter().zip((1..=u64::from(pp)).rev());
    let activations: Vec<u64> = in_flight.map(|(bytes, micro_batches)| bytes * micro_batches).collect();
    let fullest = activations.iter().max().unwrap();
    [json!(vec![free - input.cap * fullest; activations.len()]), json!(activations)]
}

/// A profile of <1>, which fits everywhere, and these schemes; the resident bytes give the requested caps.
fn profile(schemes: &[SchemeInput], gpus: u32) -> CostProfile {
    let mut entries: Vec<Value> = Vec::new();
    for (index, input) in schemes.iter().enumerate() {
        let (tp, cp, pp) = if index == 0 { (1, 1, 1) } else { (input.tp, input.cp, input.pp) };
        let scheme = Scheme::new(tp, cp, pp).unwrap().with_checkpointing(input.checkpointing).to_string();
        let multipliers = input.multipliers.as_ref().map(|list| &list[..usize::from(pp).min(list.len())]);
        let [longest, activations] = memory(input, pp);
        let mut entry = json!({
            "scheme": scheme,
            "quadratic_ms_per_token2": input.coefficients[0],
            "linear_ms_per_token": input.coefficients[1],
            "fixed_ms": input.coefficients[2],
            "least_ms": input.least_ms,
            "forward_share": input.forward_share,
            "resident_bytes": longest,
            "activation_bytes_per_token": activations,
        });
        if input.checkpointing.offloads() {
            entry["host_bytes_per_token"] = json!(HOST_PER_TOKEN);
        }
        if cp > 1 {
            entry["context"] = json!(if index % 2 == 0 { "ring" } else { "ulysses" });
        }
        if let Some(list) = multipliers {
            entry["stage_multipliers"] = json!(list);
        }
        if entries.iter().all(|earlier| earlier["scheme"] != entry["scheme"]) {
            entries.push(entry);
        }
    }
    let document = json!({
        "format": "hydraulis.cost-profile/2",
        "name": "random",
        "source": "generated",
        "hardware": {"device": "none", "gpus_per_node": 8, "memory_bytes": MEMORY, "host_memory_bytes": MEMORY},
        "memory": {"reserved_bytes": 1_000_000, "optimizer_bytes": 64 * gpus, "token_multiple": 1},
        "schemes": entries,
    });
    CostProfile::from_json(&document.to_string()).unwrap()
}

/// The picked replicas, as far as they fit on the cluster.
fn fitting(profile: &CostProfile, cluster: &Cluster, picks: &[usize]) -> spec::Strategy {
    let mut schemes: Vec<Scheme> = Vec::new();
    for &pick in picks {
        let mut longer = schemes.clone();
        longer.push(profile.schemes[pick % profile.schemes.len()].scheme);
        if place(&spec::Strategy::new(longer.clone()).unwrap(), cluster).is_ok() {
            schemes = longer;
        }
    }
    if schemes.is_empty() {
        schemes.push(profile.schemes[0].scheme);
    }
    spec::Strategy::new(schemes).unwrap()
}

/// Distribution of a batch's lengths between 1 and the longest admitted.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Long,
    Equal,
    OneGiant,
    AtCaps,
    PastCaps,
    PastHalfCaps,
    HalfCaps,
    CutCaps,
    Ones,
}

const TAILS: [Tail; 11] = [
    Tail::Long,
    Tail::Long,
    Tail::Long,
    Tail::Equal,
    Tail::OneGiant,
    Tail::AtCaps,
    Tail::PastCaps,
    Tail::PastHalfCaps,
    Tail::HalfCaps,
    Tail::CutCaps,
    Tail::Ones,
];

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
fn lengths(case: &Case, tail: Tail, fractions: &[f64]) -> Vec<i64> {
    let planner = case.planner();
    let longest = i64::try_from(planner.longest_admitted().0).unwrap();
    let used = case.strategies.iter().flat_map(spec::Strategy::schemes);
    let caps: Vec<i64> =
        used.map(|&scheme| i64::try_from(planner.cost().scheme(scheme).unwrap().cap().0).unwrap()).collect();
    let logarithmic = |fraction: f64| (longest as f64).powf(fraction) as i64;
    let length = |(index, &fraction): (usize, &f64)| match tail {
        Tail::Long => logarithmic(fraction),
        Tail::Equal => logarithmic(fractions[0]),
        Tail::OneGiant if index == fractions.len() / 2 => longest,
        Tail::OneGiant => (longest as f64 * fraction / 50.0) as i64,
        Tail::AtCaps => caps[index % caps.len()],
        Tail::PastCaps => caps[index % caps.len()] + 1,
        // Pairs have the cap's tokens, one less or one more.
        Tail::HalfCaps if fraction < 0.5 => caps[index % caps.len()] / 2,
        Tail::PastHalfCaps | Tail::HalfCaps => caps[index % caps.len()] / 2 + 1,
        // The two parts of a cap are adjacent, so that a perfect packing has no gap.
        Tail::CutCaps => {
            let cap = caps[index / 2 % caps.len()];
            let cut = (cap as f64 * fractions[index - index % 2]) as i64;
            if index % 2 == 0 { cut } else { cap - cut }
        }
        Tail::Ones => 1,
    };
    fractions.iter().enumerate().map(length).map(|length| length.clamp(1, longest)).collect()
}
