//! The transfers of a strategy whose replicas are packed.

use crate::batch::Batch;
use crate::capacity::{Capacities, ClassCapacity};
use crate::construct::pack::Packing;
use crate::cost::ClassCost;
use crate::error::Result;
use crate::layout::{micro_batches_of_ranks, positions_of};
use crate::pipeline::MakespanBuffers;
use crate::plan::PlannedTransfers;
use crate::spec::Strategy;
use crate::timing::{ReplicaWork, Rounds, RunLink, StepTimeline};
use crate::units::Millis;

impl PlannedTransfers {
    /// Transfers of a strategy whose replicas run these packings for `iteration_ms`, and the time by which each replica
    /// ends later than its packing because it waits for parameters.
    pub(super) fn new(
        link: &RunLink,
        capacities: &Capacities,
        batch: &Batch,
        strategy: &Strategy,
        packings: &[Packing],
        iteration_ms: Millis,
    ) -> Result<(PlannedTransfers, Vec<Millis>)> {
        let cluster = capacities.cost().cluster();
        let costs = capacities.replicas(strategy)?.into_iter().map(ClassCapacity::cost);
        let costs: Vec<&ClassCost> = costs.collect();
        let ranks = capacities.place(strategy)?;
        let replicas = costs.iter().zip(&ranks).zip(packings);
        let at_work = replicas.filter(|(_, packing)| !packing.micro_batches.is_empty());
        let standing = at_work.clone().map(|((cost, ranks), _)| (cost.scheme(), ranks.as_slice()));
        let counts = at_work.clone().map(|((_, ranks), packing)| (ranks.as_slice(), packing.micro_batches.len()));
        let counts = micro_batches_of_ranks(counts, cluster);
        let rounds = Rounds::of(capacities.cost().profile().sharding, &counts);
        let transfers = link.transfer_times(&positions_of(standing, cluster), rounds)?;
        let times = at_work.clone().map(|((cost, _), packing)| micro_batch_times(cost, packing, batch));
        let times: Vec<Vec<Millis>> = times.collect();
        let work = at_work.zip(&times).map(|(((cost, _), _), times)| ReplicaWork {
            scheme: cost.scheme(),
            times,
            stage_multipliers: cost.stage_multipliers(),
            forward_share: cost.forward_share(),
        });
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

fn micro_batch_times(cost: &ClassCost, packing: &Packing, batch: &Batch) -> Vec<Millis> {
    let time = |ids: &Vec<usize>| cost.micro_batch_ms(ids.iter().map(|&id| batch.tokens()[id]));
    packing.micro_batches.iter().map(time).collect()
}
