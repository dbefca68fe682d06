//! The checker's own times of a replica: those of its slowest rank's device, slowed by the slowest rank of each stage.

use crate::batch::Batch;
use crate::cost::CostModel;
use crate::error::Result;
use crate::plan::ReplicaPlan;
use crate::units::Tokens;

/// The times of a replica's micro-batches on ranks of rate 1 of the slowest rank's device, and the factor of each of its
/// stages on its own ranks.
pub(super) struct ReplicaTimes {
    /// Time of each micro-batch in ms, in running order.
    pub(super) micro_batches: Vec<f64>,
    /// Time of each stage relative to these: the profile's multiplier over the least rate of the stage's ranks.
    pub(super) stages: Vec<f64>,
    /// Share of the forward in each time.
    pub(super) forward_share: f64,
}

impl ReplicaTimes {
    pub(super) fn of(replica: &ReplicaPlan, batch: &Batch, cost: &CostModel) -> Result<ReplicaTimes> {
        let rank = |rank: &u32| (cost.cluster().rate(*rank), cost.cluster().device(*rank));
        let slowest =
            replica.ranks.iter().map(rank).min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let (profile, rate) = cost.profile().of_device(slowest.unwrap_or_default().1);
        let entry = profile.scheme(replica.scheme)?;
        let length = |id: &usize| batch.tokens().get(*id).copied().unwrap_or_default();
        let sequence = |tokens: Tokens| {
            let length = tokens.as_f64();
            entry.quadratic_ms_per_token2 * length * length + entry.linear_ms_per_token * length
        };
        let work = |ids: &Vec<usize>| ids.iter().map(|id| sequence(length(id))).sum::<f64>();
        let time = |ids: &Vec<usize>| entry.least_ms.max(work(ids) + entry.fixed_ms) * rate;
        let usual = vec![1.0; replica.scheme.stages()];
        let multipliers = entry.stage_multipliers.as_ref().unwrap_or(&usual);
        let slowed = multipliers.iter().zip(stage_ranks(replica)).map(|(multiplier, ranks)| {
            let least = ranks.iter().map(|&rank| cost.cluster().rate(rank)).fold(f64::INFINITY, f64::min);
            multiplier / least
        });
        Ok(ReplicaTimes {
            micro_batches: replica.micro_batches.iter().map(time).collect(),
            stages: slowed.collect(),
            forward_share: entry.forward_share,
        })
    }
}

/// The ranks of each stage of a replica.
pub(super) fn stage_ranks(replica: &ReplicaPlan) -> impl Iterator<Item = &[u32]> {
    let width = replica.scheme.stage_group_ranks() as usize;
    (0..replica.scheme.stages()).map(move |stage| {
        let from = replica.ranks.len().min(stage * width);
        &replica.ranks[from..replica.ranks.len().min(from + width)]
    })
}
