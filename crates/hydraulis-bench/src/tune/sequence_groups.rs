//! Groups of ranks that share sequences, each group with its own degree: `FlexSP`'s problem.
//!
//! A group of degree `d` takes `sum((a1 s^2 + a2 s) / d + c s) + b1` ms for the sequences `s` of one micro-batch, where
//! `c` is the time of its all-to-all. Objective: milliseconds of the slowest group.
//!
//! - Instances of `exact_planner_instances` have one micro-batch for each group: they are infeasible where the tokens do not
//!   fit so. Up to 15 different sequences, and more of few lengths, have the optimum (`exact_groups`). More sequences take
//!   the core's plan if its groups' micro-batches fit into one, or a greedy plan, neither of which is a proof.
//! - Rows of `homogeneous_bfd_baseline` state the best single degree, and a group may have several micro-batches: the plan is
//!   the core's search. All batches but the first need `--lengths`.

use std::collections::BTreeMap;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostProfile;
use hydraulis_core::plan::{Plan, ReplicaPlan};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Cluster;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Value, json};

use super::exact_groups::{Group, MOST_PAIRS, Sequences, best_groups};
use super::greedy_groups::greedy_groups;
use super::reading::{MOST_TIME, entries, read, require};
use super::{Instance, Solved};
use crate::{Error, Result};

/// Lengths are padded to a multiple of this.
const PADDING: i64 = 128;
/// All-to-alls of a layer: four, forward and backward, of two bytes an element.
const BYTES_PER_ELEMENT: f64 = 4.0 * 2.0 * 2.0;
const BYTES_PER_MB: f64 = 1_048_576.0;
/// Bytes of a token, and of a rank, by which the profile states token caps.
const TOKEN_BYTES: i64 = 1 << 20;
const RANK_BYTES: i64 = 1 << 50;

/// Most tokens of a batch.
const MOST_TOKENS: i64 = 1 << 29;

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
struct ExactInstance {
    #[serde(rename = "N")]
    ranks: u32,
    cap_tokens_per_device: i64,
    degrees: Vec<u32>,
    lengths: Vec<i64>,
    coeff: Coefficients,
    #[serde(default)]
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

/// One degree of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Degree {
    pub(super) ranks: u32,
    pub(super) quadratic: f64,
    pub(super) linear: f64,
    pub(super) fixed: f64,
    /// Most tokens of a micro-batch.
    pub(super) cap: i64,
}

impl Degree {
    /// Time of one micro-batch in milliseconds, by the reference's formula.
    pub(super) fn ms(&self, lengths: impl Iterator<Item = i64>) -> f64 {
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
    let exact = document["exact_planner_instances"].get("instances");
    let baseline = document["homogeneous_bfd_baseline"].get("runs");
    let is_filled = |list: Option<&Value>| list.is_some_and(|list| list.as_array().is_none_or(|list| !list.is_empty()));
    if !is_filled(exact) && !is_filled(baseline) {
        let why =
            "exact_planner_instances.instances and homogeneous_bfd_baseline.runs are both missing or empty: give one";
        return Err(serde_json::Error::custom(why));
    }
    let mut instances = Vec::new();
    if is_filled(exact) {
        let exact = entries(&document["exact_planner_instances"], "instances")?;
        instances.extend(exact.iter().enumerate().map(exact_instance));
    }
    if is_filled(baseline) {
        let costs = CostTable::deserialize(&document["cost_model"])?;
        let first = document["bucketing_and_chunking"].get("wiki_batch0_padded128");
        let first: Vec<i64> = first.map(Vec::deserialize).transpose()?.unwrap_or_default();
        let lengths = if lengths.is_empty() { &first } else { lengths };
        for (place, entry) in entries(&document["homogeneous_bfd_baseline"], "runs")?.iter().enumerate() {
            let name = format!("baseline run {place}");
            instances.extend(match read(entry).and_then(|run: Run| Ok((run.degrees(&costs)?, run))) {
                Ok((degrees, run)) => run_instances(&run, &degrees, lengths),
                Err(error) => vec![Instance::refused(name, error)],
            });
        }
    }
    if instances.is_empty() {
        return Err(serde_json::Error::custom(
            "no lengths are known for any row of the baseline: give them by --lengths",
        ));
    }
    Ok(instances)
}

/// An instance for each row whose lengths are known.
fn run_instances(run: &Run, degrees: &[Degree], lengths: &[i64]) -> Vec<Instance> {
    let instance = |row: &Row| {
        let own = lengths.chunks(run.gbs).nth(row.iter)?;
        let name = format!("{} on {}, {} tokens, batch {}", run.model, run.ranks, run.seq_limit, row.iter);
        Some(match batch(own, run, row) {
            Ok(lengths) => {
                let problem = Problem { ranks: run.ranks, degrees: degrees.to_vec(), lengths };
                Instance::new(name, row.adaptive_time, move || solve(&problem))
            }
            Err(error) => Instance::refused(name, error),
        })
    };
    run.rows.iter().filter_map(instance).collect()
}

impl Run {
    /// The degrees of the run, each with its token cap.
    fn degrees(&self, costs: &CostTable) -> Result<Vec<Degree>> {
        let unknown = || Error::InstanceField {
            field: "model".to_owned(),
            value: self.model.clone(),
            limit: format!("one of cost_model.models {:?}", costs.models.keys().collect::<Vec<_>>()),
        };
        let of = coefficients(costs.models.get(&self.model).ok_or_else(unknown)?, &costs.bandwidth_gbs);
        require_sizes(self.ranks, self.token_capacity, "token_capacity")?;
        require(self.gbs > 0, "gbs", self.gbs, "at least 1")?;
        require(self.seq_limit > 0, "seq_limit", self.seq_limit, "at least 1")?;
        powers_of_two(self.ranks).map(|ranks| degree(ranks, &of, self.token_capacity)).collect()
    }
}

fn require_sizes(ranks: u32, cap: i64, field: &str) -> Result<()> {
    require(ranks > 0, "N", ranks, "at least 1")?;
    require(cap > 0, field, cap, "at least 1")
}

fn exact_instance((place, entry): (usize, &Value)) -> Instance {
    let name = entry["name"].as_str().map_or_else(|| format!("{place}"), str::to_owned);
    match read(entry).and_then(|instance: ExactInstance| Ok((instance.problem()?, instance))) {
        Ok((problem, instance)) => {
            Instance::new(name, instance.result["M"].as_f64(), move || solve_one_micro_batch(&problem))
        }
        Err(error) => Instance::refused(name, error),
    }
}

impl ExactInstance {
    /// The problem with the degrees that the cluster has ranks for.
    fn problem(&self) -> Result<Problem> {
        let cap = self.cap_tokens_per_device;
        require_sizes(self.ranks, cap, "cap_tokens_per_device")?;
        let mut degrees = self.degrees.clone();
        degrees.sort_unstable();
        degrees.dedup();
        require(degrees.first().is_none_or(|&least| least > 0), "degrees", "0", "at least 1")?;
        degrees.retain(|&ranks| ranks <= self.ranks);
        let limit = format!("some from 1 to N, {}", self.ranks);
        require(!degrees.is_empty(), "degrees", format!("{:?}", self.degrees), limit)?;
        require_lengths(&self.lengths)?;
        let degrees = degrees.into_iter().map(|ranks| degree(ranks, &self.coeff, cap)).collect::<Result<_>>()?;
        Ok(Problem { ranks: self.ranks, degrees, lengths: self.lengths.clone() })
    }
}

fn require_lengths(lengths: &[i64]) -> Result<()> {
    require(!lengths.is_empty(), "the number of lengths", 0, "at least 1")?;
    for (place, &length) in lengths.iter().enumerate() {
        require(length > 0, format!("lengths[{place}]"), length, "at least 1")?;
    }
    let sum = lengths.iter().fold(0_i64, |sum, &length| sum.saturating_add(length));
    require(sum <= MOST_TOKENS, "the sum of lengths", sum, format!("at most {MOST_TOKENS}"))
}

/// The padded lengths of a batch, whose tokens must be the row's.
fn batch(lengths: &[i64], run: &Run, row: &Row) -> Result<Vec<i64>> {
    require_lengths(lengths)?;
    let pad = |length: i64| length.saturating_add(PADDING - 1) / PADDING * PADDING;
    let padded: Vec<i64> = lengths.iter().map(|&length| pad(length.min(run.seq_limit))).collect();
    let tokens: i64 = padded.iter().sum();
    let limit = format!("{tokens}, the sum of its padded lengths: give the lengths of the file by --lengths");
    require(tokens == row.tokens, "tokens", row.tokens, limit)?;
    Ok(padded)
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

fn degree(ranks: u32, of: &Coefficients, cap_of_rank: i64) -> Result<Degree> {
    for (field, value) in [
        ("alpha1 (a1)", of.alpha1),
        ("alpha2 (a2)", of.alpha2),
        ("beta1", of.beta1),
        ("hidden", of.hidden),
        ("layers", of.layers),
    ] {
        require((0.0..=MOST_TIME).contains(&value), field, value, format!("from 0 to {MOST_TIME:e}"))?;
    }
    let shared = f64::from(ranks);
    let bandwidth = of.bw_gbs.get(&ranks).copied();
    let shown = bandwidth.map_or("missing".to_owned(), |bandwidth| bandwidth.to_string());
    // A single rank exchanges nothing.
    let is_known = ranks == 1 || bandwidth.is_some_and(|bandwidth| bandwidth > 0.0);
    require(is_known, format!("the bandwidth of degree {ranks}"), &shown, "above 0")?;
    // The reference takes GB/s for MB/ms.
    let all_to_all = match bandwidth {
        Some(bandwidth) if ranks > 1 => BYTES_PER_ELEMENT * of.layers * of.hidden / BYTES_PER_MB / shared / bandwidth,
        _ => 0.0,
    };
    require(all_to_all <= MOST_TIME * MOST_TIME, format!("the bandwidth of degree {ranks}"), shown, "larger")?;
    Ok(Degree {
        ranks,
        quadratic: of.alpha1 / shared,
        linear: of.alpha2 / shared + all_to_all,
        fixed: of.beta1,
        // More than all tokens of a batch is no restriction.
        cap: cap_of_rank.saturating_mul(i64::from(ranks)).min(MOST_TOKENS),
    })
}

/// The best plan with one micro-batch for each group: the optimum for few sequences.
fn solve_one_micro_batch(problem: &Problem) -> Solved {
    let cap = problem.degrees.iter().map(|degree| degree.cap).max().unwrap_or_default();
    if problem.lengths.iter().any(|&length| length > cap) {
        return Err("sequence_too_long".into());
    }
    let sequences = Sequences::new(&problem.lengths);
    if sequences.pairs() <= MOST_PAIRS {
        let best = best_groups(problem.ranks, &problem.degrees, &sequences).ok_or("memory_too_small")?;
        let objective = problem.slowest(&best);
        return Ok(described(objective, &best, Some(objective)));
    }
    let planned = plan(problem).ok();
    let bound = planned.as_ref().map(|plan| plan.lower_bound.ms.0);
    let own = planned.as_ref().and_then(|plan| problem.merged(plan));
    let plans = own.into_iter().chain(greedy_groups(problem.ranks, &problem.degrees, &problem.lengths));
    let best = plans.min_by(|one, other| problem.slowest(one).total_cmp(&problem.slowest(other)));
    let most = cap_of_cluster(problem);
    let best = best.ok_or(if problem.tokens() > most { "memory_too_small" } else { "no_plan_found" })?;
    Ok(described(problem.slowest(&best), &best, bound))
}

/// Tokens above the sum of all caps fit in no way.
fn cap_of_cluster(problem: &Problem) -> i64 {
    let of_rank = problem.degrees.iter().map(|degree| degree.cap / i64::from(degree.ranks) + 1).max();
    of_rank.unwrap_or_default().saturating_mul(i64::from(problem.ranks))
}

fn described(objective: f64, groups: &[Group], bound: Option<f64>) -> (f64, Value) {
    let groups: Vec<Value> = groups.iter().map(|(ranks, own)| json!([ranks, [own]])).collect();
    (objective, json!({"groups": groups, "bound": bound}))
}

impl Problem {
    fn tokens(&self) -> i64 {
        self.lengths.iter().sum()
    }

    fn degree(&self, ranks: u64) -> Option<&Degree> {
        self.degrees.iter().find(|degree| u64::from(degree.ranks) == ranks)
    }

    /// Time of the slowest group.
    fn slowest(&self, groups: &[Group]) -> f64 {
        let time = |(ranks, own): &Group| self.degree(u64::from(*ranks)).map(|degree| degree.ms(own.iter().copied()));
        groups.iter().filter_map(time).fold(0.0, f64::max)
    }

    /// A plan with all micro-batches of a group in one; none if they do not fit.
    fn merged(&self, plan: &Plan) -> Option<Vec<Group>> {
        let group = |replica: &ReplicaPlan| {
            let degree = self.degree(replica.scheme.ranks())?;
            let own: Vec<i64> = replica.micro_batches.iter().flatten().map(|&id| self.lengths[id]).collect();
            (own.iter().sum::<i64>() <= degree.cap).then_some((degree.ranks, own))
        };
        let groups = plan.replicas.iter().map(group).collect::<Option<Vec<Group>>>()?;
        Some(groups.into_iter().filter(|(_, own)| !own.is_empty()).collect())
    }
}

fn solve(problem: &Problem) -> Solved {
    let plan = plan(problem).map_err(|error| error.code())?;
    let mut objective = 0.0_f64;
    let mut groups = Vec::new();
    for replica in &plan.replicas {
        let degree = problem.degree(replica.scheme.ranks()).ok_or("plan_mismatch")?;
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
