//! What the transfers of a plan add to its iteration.

use serde::{Deserialize, Serialize};

use crate::cost::CostModel;
use crate::error::Result;
use crate::layout::{HomeLink, ReplicaWork, StepTimeline, positions_of};
use crate::lengths::Batch;
use crate::pack::Packing;
use crate::schedule::MakespanBuffers;
use crate::spec::{Scheme, Strategy};
use crate::strategy::place;
use crate::units::Millis;

/// The transfers of an iteration on its simulated timeline, by the planner's link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedTransfers {
    /// From new parameters at home to all gradients at home.
    pub step_ms: Millis,
    /// What of that is beyond the iteration: transfers that are not hidden.
    pub transfer_ms: Millis,
    /// What all transfers take one after another, nothing hidden.
    pub alone_ms: Millis,
    /// Bytes that cross between nodes, both ways.
    pub moved_bytes: u64,
}

impl PlannedTransfers {
    /// The share of the transfers' own time that computation hides; all of it where nothing moves.
    pub fn hidden(&self) -> f64 {
        // Differences of long times may exceed what they are the differences of, in their last bits.
        if self.alone_ms.0 > 0.0 { (1.0 - self.transfer_ms.0 / self.alone_ms.0).max(0.0) } else { 1.0 }
    }

    /// Those of a strategy whose replicas run these packings for `iteration_ms`; and by how much each replica ends later than
    /// its packing, because it waits for parameters.
    pub(super) fn new(
        link: &HomeLink,
        cost: &CostModel,
        batch: &Batch,
        strategy: &Strategy,
        packings: &[Packing],
        iteration_ms: Millis,
    ) -> Result<(PlannedTransfers, Vec<Millis>)> {
        let ranks = place(strategy, cost.cluster())?;
        let replicas = strategy.schemes().iter().zip(&ranks).zip(packings);
        let at_work = replicas.filter(|(_, packing)| !packing.micro_batches.is_empty());
        let standing = at_work.clone().map(|((&scheme, ranks), _)| (scheme, ranks.as_slice()));
        let transfers = link.transfer_times(&positions_of(standing, cost.cluster()))?;
        let times = at_work.clone().map(|((&scheme, _), packing)| micro_batch_times(scheme, packing, batch, cost));
        let times: Vec<Vec<Millis>> = times.collect::<Result<_>>()?;
        let work = at_work.zip(&times).map(|(((&scheme, _), _), times)| {
            let cost = cost.scheme(scheme)?;
            let (stage_multipliers, forward_share) = (cost.stage_multipliers(), cost.forward_share());
            Ok(ReplicaWork { scheme, times, stage_multipliers, forward_share })
        });
        let work: Vec<ReplicaWork> = work.collect::<Result<_>>()?;
        let step = StepTimeline::new(link.link().split(), &transfers, work, &mut MakespanBuffers::default());
        let mut ends = step.ends.into_iter();
        let late = |packing: &Packing| {
            let works = !packing.micro_batches.is_empty();
            if works { ends.next().unwrap_or_default() - packing.ms } else { Millis::ZERO }
        };
        let delays = packings.iter().map(late).collect();
        // Sums of the same times in another order may seem shorter.
        let step_ms = step.end.max(iteration_ms);
        let planned = PlannedTransfers {
            step_ms,
            transfer_ms: step_ms - iteration_ms,
            alone_ms: transfers.total(),
            moved_bytes: transfers.moved_bytes,
        };
        Ok((planned, delays))
    }
}

fn micro_batch_times(scheme: Scheme, packing: &Packing, batch: &Batch, cost: &CostModel) -> Result<Vec<Millis>> {
    let cost = cost.scheme(scheme)?;
    let time = |ids: &Vec<usize>| cost.micro_batch_ms(ids.iter().map(|&id| batch.tokens()[id]));
    Ok(packing.micro_batches.iter().map(time).collect())
}
