//! Groups of ranks that share sequences, each group with its own degree: `FlexSP`'s problem.
//!
//! A group of degree `d` takes `sum((a1 s^2 + a2 s) / d + c s) + b1` ms for the sequences `s` of one micro-batch, where
//! `c` is the time of its all-to-all. A group may have several micro-batches here, and the plan is the core's search.
//! Objective: milliseconds of the slowest group.
//!
//! - Instances of `exact_planner_instances` state proven optima of one micro-batch for each group.
//! - Rows of `homogeneous_bfd_baseline` state the best single degree; all batches but the first need `--lengths`.

use std::collections::BTreeMap;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostProfile;
use hydraulis_core::plan::Plan;
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Cluster;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Instance, Solved};

/// Lengths are padded to a multiple of this.
const PADDING: i64 = 128;
/// All-to-alls of a layer: four, forward and backward, of two bytes an element.
const BYTES_PER_ELEMENT: f64 = 4.0 * 2.0 * 2.0;
const BYTES_PER_MB: f64 = 1_048_576.0;
/// Bytes of a token, and of a rank, by which the profile states token caps.
const TOKEN_BYTES: i64 = 1 << 20;
const RANK_BYTES: i64 = 1 << 50;

#[derive(Deserialize)]
struct File {
    cost_model: CostTable,
    exact_planner_instances: Exact,
    homogeneous_bfd_baseline: Baseline,
    bucketing_and_chunking: Known,
}

#[derive(Deserialize)]
struct CostTable {
    models: BTreeMap<String, Model>,
    bandwidth_gbs: BTreeMap<u32, f64>,
}

#[derive(Deserialize)]
struct Model {
    a1: f64,
    a2: f64,
    beta1: f64,
    hidden: f64,
    layers: f64,
}

#[derive(Deserialize)]
struct Exact {
    instances: Vec<ExactInstance>,
}

#[derive(Deserialize)]
struct ExactInstance {
    name: String,
    #[serde(rename = "N")]
    ranks: u32,
    cap_tokens_per_device: i64,
    degrees: Vec<u32>,
    lengths: Vec<i64>,
    coeff: Coefficients,
    result: Value,
}

#[derive(Deserialize)]
struct Coefficients {
    alpha1: f64,
    alpha2: f64,
    beta1: f64,
    hidden: f64,
    layers: f64,
    bw_gbs: BTreeMap<u32, f64>,
}

#[derive(Deserialize)]
struct Baseline {
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    model: String,
    #[serde(rename = "N")]
    ranks: u32,
    seq_limit: i64,
    gbs: usize,
    token_capacity: i64,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    iter: usize,
    tokens: i64,
    adaptive_time: Option<f64>,
}

#[derive(Deserialize)]
struct Known {
    wiki_batch0_padded128: Vec<i64>,
}

/// One degree of a group.
#[derive(Clone, Copy)]
struct Degree {
    ranks: u32,
    quadratic: f64,
    linear: f64,
    fixed: f64,
    cap: i64,
}

impl Degree {
    /// Time of one micro-batch in milliseconds, by the reference's formula.
    fn ms(&self, lengths: impl Iterator<Item = i64>) -> f64 {
        let term = |s: f64| self.quadratic * s * s + self.linear * s;
        #[expect(clippy::cast_precision_loss, reason = "lengths are below 2^53")]
        let terms = lengths.map(|length| term(length as f64));
        terms.sum::<f64>() + self.fixed
    }
}

struct Problem {
    ranks: u32,
    degrees: Vec<Degree>,
    lengths: Vec<i64>,
}

pub(super) fn instances(document: &Value, lengths: &[i64]) -> serde_json::Result<Vec<Instance>> {
    let File { cost_model, exact_planner_instances, homogeneous_bfd_baseline, bucketing_and_chunking } =
        File::deserialize(document)?;
    let exact = exact_planner_instances.instances.into_iter().map(exact_instance);
    let first = bucketing_and_chunking.wiki_batch0_padded128;
    let lengths = if lengths.is_empty() { first } else { lengths.to_vec() };
    let mut instances: Vec<Instance> = exact.collect();
    for run in &homogeneous_bfd_baseline.runs {
        let model = &cost_model.models[&run.model];
        let degrees: Vec<Degree> = powers_of_two(run.ranks)
            .map(|ranks| degree(ranks, &coefficients(model, &cost_model.bandwidth_gbs), run.token_capacity))
            .collect();
        instances.extend(run.rows.iter().filter_map(|row| {
            let own = batch(lengths.chunks(run.gbs).nth(row.iter)?, run, row)?;
            let name = format!("{} on {}, {} tokens, batch {}", run.model, run.ranks, run.seq_limit, row.iter);
            let problem = Problem { ranks: run.ranks, degrees: degrees.clone(), lengths: own };
            Some(Instance::new(name, row.adaptive_time, move || solve(&problem)))
        }));
    }
    Ok(instances)
}

fn exact_instance(instance: ExactInstance) -> Instance {
    let cap = instance.cap_tokens_per_device;
    let degrees = instance.degrees.iter().map(|&ranks| degree(ranks, &instance.coeff, cap)).collect();
    let problem = Problem { ranks: instance.ranks, degrees, lengths: instance.lengths };
    Instance::new(instance.name, instance.result["M"].as_f64(), move || solve(&problem))
}

/// The padded lengths of a batch; none if they are not the row's.
fn batch(lengths: &[i64], run: &Run, row: &Row) -> Option<Vec<i64>> {
    let pad = |length: i64| (length + PADDING - 1) / PADDING * PADDING;
    let padded: Vec<i64> = lengths.iter().map(|&length| pad(length.min(run.seq_limit))).collect();
    (padded.iter().sum::<i64>() == row.tokens).then_some(padded)
}

fn coefficients(model: &Model, bandwidth: &BTreeMap<u32, f64>) -> Coefficients {
    Coefficients {
        alpha1: model.a1,
        alpha2: model.a2,
        beta1: model.beta1,
        hidden: model.hidden,
        layers: model.layers,
        bw_gbs: bandwidth.clone(),
    }
}

fn powers_of_two(most: u32) -> impl Iterator<Item = u32> {
    (0..=most.ilog2()).map(|exponent| 1 << exponent)
}

fn degree(ranks: u32, of: &Coefficients, cap_of_rank: i64) -> Degree {
    let shared = f64::from(ranks);
    // The reference takes GB/s for MB/ms. A single rank exchanges nothing.
    let all_to_all = match of.bw_gbs.get(&ranks) {
        Some(bandwidth) if ranks > 1 => BYTES_PER_ELEMENT * of.layers * of.hidden / BYTES_PER_MB / shared / bandwidth,
        _ => 0.0,
    };
    Degree {
        ranks,
        quadratic: of.alpha1 / shared,
        linear: of.alpha2 / shared + all_to_all,
        fixed: of.beta1,
        cap: cap_of_rank * i64::from(ranks),
    }
}

fn solve(problem: &Problem) -> Solved {
    let plan = plan(problem).map_err(|error| error.code().to_owned())?;
    let mut objective = 0.0_f64;
    let mut groups = Vec::new();
    for replica in &plan.replicas {
        let degree = problem.degrees.iter().find(|degree| u64::from(degree.ranks) == replica.scheme.ranks());
        let degree = degree.ok_or("plan_mismatch")?;
        let of = |ids: &Vec<usize>| ids.iter().map(|&id| problem.lengths[id]).collect::<Vec<i64>>();
        let packs: Vec<Vec<i64>> = replica.micro_batches.iter().map(of).collect();
        if packs.iter().any(|pack| pack.iter().sum::<i64>() > degree.cap) {
            return Err("plan_invalid".into());
        }
        objective = objective.max(packs.iter().map(|pack| degree.ms(pack.iter().copied())).sum());
        groups.push(json!([degree.ranks, packs]));
    }
    Ok((objective, json!({"groups": groups, "bound": plan.lower_bound.ms.0})))
}

fn plan(problem: &Problem) -> hydraulis_core::Result<Plan> {
    let profile = CostProfile::from_json(&document(problem).to_string())?;
    let cluster = Cluster::new(problem.ranks, problem.ranks)?;
    Planner::search(profile, cluster)?.plan(&Batch::new(&problem.lengths, None)?)
}

/// The problem's cost profile: a scheme for each degree, with no memory but its token cap.
fn document(problem: &Problem) -> Value {
    let scheme = |degree: &Degree| {
        json!({
            "scheme": if degree.ranks == 1 { "<1>".to_owned() } else { format!("<tp{}>", degree.ranks) },
            "quadratic_ms_per_token2": degree.quadratic,
            "linear_ms_per_token": degree.linear,
            "fixed_ms": degree.fixed,
            "forward_share": 0.5,
            "resident_bytes": RANK_BYTES - degree.cap * TOKEN_BYTES,
            "activation_bytes_per_token": TOKEN_BYTES,
        })
    };
    json!({
        "format": "hydraulis.cost-profile/2",
        "name": "sequence groups",
        "source": "the coefficients of the problem",
        "hardware": {"device": "none", "gpus_per_node": problem.ranks, "memory_bytes": RANK_BYTES},
        "memory": {"reserved_bytes": 0, "optimizer_bytes": 0, "token_multiple": 1},
        "schemes": problem.degrees.iter().map(scheme).collect::<Vec<Value>>(),
    })
}
