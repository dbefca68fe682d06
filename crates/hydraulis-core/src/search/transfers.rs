//! The transfers of a strategy whose replicas are packed.

use crate::batch::Batch;
use crate::construct::pack::Packing;
use crate::cost::CostModel;
use crate::error::Result;
use crate::layout::place;
use crate::layout::positions_of;
use crate::pipeline::MakespanBuffers;
use crate::plan::PlannedTransfers;
use crate::spec::{Scheme, Strategy};
use crate::timing::{ReplicaWork, RunLink, StepTimeline};
use crate::units::Millis;

impl PlannedTransfers {
    /// Transfers of a strategy whose replicas run these packings for `iteration_ms`, and the time by which each replica
    /// ends later than its packing because it waits for parameters.
    pub(super) fn new(
        link: &RunLink,
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
