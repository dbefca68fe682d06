//! The plan: a pure value, and its JSON form.

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::cost::Reliability;
use crate::error::{Error, Result};
use crate::layout::{Position, micro_batches_of_ranks, positions_of};
use crate::spec::{Cluster, ContextKind, MemoryRule, Scheme, Strategy};
use crate::units::{Millis, Tokens};

/// The value of a plan's `format` field.
pub(crate) const FORMAT: &str = "hydraulis.plan/2";

/// Times within this share of each other count as equal; the cost model is no more accurate.
pub(crate) const TIE: f64 = 1e-3;

/// The plan of one iteration, with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub(crate) format: String,
    /// Name of the cost profile that predicted the times.
    pub profile: String,
    /// The planned cluster.
    pub cluster: Cluster,
    /// The memory rule of micro-batches.
    pub memory: MemoryRule,
    /// The planned batch.
    pub batch: Batch,
    /// The replicas of this iteration.
    pub strategy: Strategy,
    /// Plans of the replicas, in the strategy's order.
    pub replicas: Vec<ReplicaPlan>,
    /// The slowest replica's time.
    pub iteration_ms: Millis,
    /// The transfers of the iteration; none if the planner had no link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfers: Option<PlannedTransfers>,
    /// Lower bound: no plan over the scope's strategies has a shorter iteration, and none a shorter step.
    pub lower_bound: Bound,
    /// The strategies that the bound covers.
    pub scope: Scope,
    /// The reason why the search ended.
    pub stop: Stop,
    /// The strategies to choose from, and the outcome of each.
    pub candidates: Vec<Candidate>,
}

/// The plan of one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaPlan {
    /// Scheme of the replica.
    pub scheme: Scheme,
    /// The kind of its context parallelism; none if cp is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextKind>,
    /// Its ranks, stage by stage; within a stage context rank by context rank, each in tensor order.
    pub ranks: Vec<u32>,
    /// The sequences of each micro-batch, in running order; no micro-batches for a replica that stays idle. With the
    /// in-flight limit one without sequences may separate two that memory cannot hold together.
    pub micro_batches: Vec<Vec<usize>>,
    /// Most tokens of one micro-batch; with the in-flight limit, the average over as many consecutive ones as the
    /// replica has stages.
    pub cap_tokens: Tokens,
    /// Time for which its stages compute, on average.
    pub busy_ms: Millis,
    /// End of its last backward.
    pub predicted_ms: Millis,
    /// The prediction error and extrapolation of that time; none if the profile does not state its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<Reliability>,
}

/// The strategies from which a plan was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The candidates.
    List,
    /// Any set of replicas of the profile's schemes; the search evaluates some.
    Any,
}

/// One of the strategies to choose from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The strategy.
    pub strategy: Strategy,
    /// Outcome of the strategy.
    pub outcome: Outcome,
}

/// The outcome of a strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The strategy was planned and takes this long, with its transfers if the planner has a link.
    Planned(Millis),
    /// The strategy's lower bound is above the best plan, or within 0.1 % of it.
    Pruned(Millis),
    /// No replica of the strategy admits the longest sequence; the most tokens that one admits.
    TooNarrow(Tokens),
}

impl Plan {
    /// The minimised time: the iteration, with its transfers if the planner had a link.
    pub fn step_ms(&self) -> Millis {
        self.transfers.map_or(self.iteration_ms, |transfers| transfers.step_ms)
    }

    /// The position of every rank of the cluster; none for ranks without work.
    pub fn positions(&self) -> Vec<Option<Position>> {
        let at_work = self.replicas.iter().filter(|replica| !replica.micro_batches.is_empty());
        positions_of(at_work.map(|replica| (replica.scheme, replica.ranks.as_slice())), &self.cluster)
    }

    /// The number of micro-batches of every rank of the cluster; 0 for ranks without work.
    pub fn micro_batches_of_ranks(&self) -> Vec<usize> {
        let replicas = self.replicas.iter();
        let counted = replicas.map(|replica| (replica.ranks.as_slice(), replica.micro_batches.len()));
        micro_batches_of_ranks(counted, &self.cluster)
    }

    /// The greatest possible relative excess of the step over the shortest over the scope's strategies: `step / bound -
    /// 1`.
    ///
    /// Without a link a step is its iteration. A bound on iterations bounds steps too.
    pub fn gap(&self) -> f64 {
        self.step_ms().0 / self.lower_bound.ms.0 - 1.0
    }

    /// The JSON form, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a plan holds numbers, texts and lists alone")
    }

    /// Reads the JSON form; the checker judges whether the plan is valid.
    pub fn from_json(text: &str) -> Result<Plan> {
        let mut document = serde_json::Deserializer::from_str(text);
        let plan: Plan = serde_path_to_error::deserialize(&mut document).map_err(|error| {
            // The path of the whole document is a dot.
            let path = Some(error.path().to_string()).filter(|path| path != ".");
            refuse(path.as_deref().unwrap_or("document"), &error.into_inner().to_string())
        })?;
        document.end().map_err(|error| refuse("end of the document", &error.to_string()))?;
        if plan.format != FORMAT {
            return Err(refuse("format", &format!("'{}' is not '{FORMAT}'", plan.format)));
        }
        plan.check_references()?;
        Ok(plan)
    }

    /// Refuses ids and ranks that do not exist: nothing could be computed from such a plan, not even its violations.
    fn check_references(&self) -> Result<()> {
        let (sequences, gpus) = (self.batch.len(), self.cluster.gpus());
        let no_sequence = |id: usize| format!("sequence {id} is not in the batch of {sequences}");
        if let Some(id) = self.sequences().find(|&id| id >= sequences) {
            return Err(refuse("replicas", &no_sequence(id)));
        }
        if let BoundKind::Sequence(id) = self.lower_bound.kind
            && id >= sequences
        {
            return Err(refuse("lower_bound", &no_sequence(id)));
        }
        for (index, replica) in self.replicas.iter().enumerate() {
            let field = format!("replicas[{index}].ranks");
            if replica.ranks.len() as u64 != replica.scheme.ranks() {
                return Err(refuse(&field, "their number is not that of the scheme"));
            }
            if replica.context.is_some() != (replica.scheme.cp() > 1) {
                let field = format!("replicas[{index}].context");
                return Err(refuse(&field, "it is given where cp is above 1, and only there"));
            }
            if let Some(rank) = replica.ranks.iter().find(|&&rank| rank >= gpus) {
                return Err(refuse(&field, &format!("rank {rank} is not in the cluster of {gpus} GPUs")));
            }
        }
        Ok(())
    }

    /// This plan, or the other of the same batch if that is shorter; the rule and the bound, which holds for both, are
    /// this plan's.
    ///
    /// This plan too if the other planner admits less: `other` is then [`Error::SequenceTooLong`]. Other errors stay.
    pub(crate) fn or_shorter(self, other: Result<Plan>) -> Result<Plan> {
        match other {
            Ok(other) => Ok(self.or_shorter_plan(other)),
            Err(Error::SequenceTooLong { .. }) => Ok(self),
            Err(error) => Err(error),
        }
    }

    fn or_shorter_plan(mut self, other: Plan) -> Plan {
        let is_shorter = other.step_ms() < self.step_ms();
        let kept = if is_shorter { &other } else { &self };
        let own = Candidate { strategy: kept.strategy.clone(), outcome: Outcome::Planned(kept.step_ms()) };
        for tried in other.candidates {
            let Outcome::Planned(ms) = tried.outcome else { continue };
            match self.candidates.iter_mut().find(|entry| entry.strategy == tried.strategy) {
                Some(Candidate { outcome: Outcome::Planned(least), .. }) => *least = ms.min(*least),
                Some(entry) => entry.outcome = tried.outcome,
                None => self.candidates.push(tried),
            }
        }
        // The time of the plan itself: the other search may have found a shorter one, within a tie, and left it.
        for entry in self.candidates.iter_mut().filter(|entry| entry.strategy == own.strategy) {
            entry.outcome = own.outcome.clone();
        }
        if !is_shorter {
            return self;
        }
        let Plan { strategy, replicas, iteration_ms, transfers, stop, .. } = other;
        Plan { strategy, replicas, iteration_ms, transfers, stop, ..self }
    }

    /// Every sequence id, in running order, replica by replica.
    pub fn sequences(&self) -> impl Iterator<Item = usize> + '_ {
        self.replicas.iter().flat_map(|replica| replica.micro_batches.iter().flatten().copied())
    }
}

fn refuse(field: &str, why: &str) -> Error {
    Error::PlanSyntax { field: field.into(), why: why.into() }
}

impl ReplicaPlan {
    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.micro_batches.iter().map(Vec::len).sum()
    }

    /// The longest sequence and the tokens of each micro-batch.
    pub fn reach<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = (Tokens, Tokens)> + 'a {
        let length = |id: &usize| batch.tokens().get(*id).copied().unwrap_or_default();
        self.micro_batches
            .iter()
            .map(move |ids| (ids.iter().map(length).max().unwrap_or_default(), ids.iter().map(length).sum()))
    }

    /// Tokens of all its micro-batches.
    pub fn tokens(&self, batch: &Batch) -> Tokens {
        self.micro_batches.iter().flatten().map(|&id| batch.tokens()[id]).sum()
    }
}

/// The reason why refinement stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// No evaluated move or swap shortens the slowest replica.
    LocalOptimum,
    /// The budget of packings was used up.
    WorkBudget,
}

/// A proven lower bound on the step, and its argument: on the iteration where transfers do not count, where they travel in
/// rounds, and on unequal ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// No plan is shorter.
    pub ms: Millis,
    /// Argument of the proof.
    pub kind: BoundKind,
}

/// The argument of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    /// This sequence alone takes that long on every replica that admits it.
    Sequence(usize),
    /// The work of all sequences, divided perfectly, takes that long.
    Work,
}

/// The transfers of an iteration on its simulated timeline, by the planner's link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedTransfers {
    /// Time from updated parameters at their owners to all gradients at their owners.
    pub step_ms: Millis,
    /// Exposed time of the transfers: the step less the iteration.
    pub transfer_ms: Millis,
    /// Time of all transfers one after another, without overlap.
    pub alone_ms: Millis,
    /// Bytes that cross between nodes, both ways.
    pub moved_bytes: u64,
}

impl PlannedTransfers {
    /// The share of the transfers' own time that overlaps computation; 1 if nothing moves.
    pub fn overlapped(&self) -> f64 {
        // Rounding may make a difference of long times exceed the transfers' own time.
        if self.alone_ms.0 > 0.0 { (1.0 - self.transfer_ms.0 / self.alone_ms.0).max(0.0) } else { 1.0 }
    }
}
