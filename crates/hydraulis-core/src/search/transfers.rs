//! The transfers of a strategy whose replicas are packed.

use std::sync::Arc;

use crate::batch::Batch;
use crate::capacity::{Capacities, ClassCapacity};
use crate::construct::pack::Packing;
use crate::cost::ClassCost;
use crate::error::Result;
use crate::layout::{micro_batches_of_ranks, positions_of};
use crate::pipeline::MakespanBuffers;
use crate::plan::PlannedTransfers;
use crate::spec::Strategy;
use crate::timing::{Exposure, ReplicaWork, Rounds, RunLink, StepTimeline, TransferTimes};
use crate::units::Millis;

/// The transfers of a strategy between the replicas that have sequences, however these are packed in as many micro-batches.
pub(super) struct StrategyTransfers<'a> {
    link: &'a RunLink,
    costs: Vec<&'a ClassCost>,
    times: TransferTimes,
}

impl<'a> StrategyTransfers<'a> {
    pub(super) fn new(
        link: &'a RunLink,
        capacities: &'a Capacities,
        strategy: &Strategy,
        packings: &[Packing],
    ) -> Result<StrategyTransfers<'a>> {
        let cluster = capacities.cost().cluster();
        let costs: Vec<&ClassCost> = capacities.replicas(strategy)?.into_iter().map(ClassCapacity::cost).collect();
        let ranks = capacities.place(strategy)?;
        let replicas = costs.iter().zip(&ranks).zip(packings);
        let at_work = replicas.filter(|(_, packing)| !packing.micro_batches.is_empty());
        let standing = at_work.clone().map(|((cost, ranks), _)| (cost.scheme(), ranks.as_slice()));
        let counts = at_work.map(|((_, ranks), packing)| (ranks.as_slice(), packing.micro_batches.len()));
        let counts = micro_batches_of_ranks(counts, cluster);
        let rounds = Rounds::of(capacities.cost().profile().sharding, &counts);
        let times = link.transfer_times(&positions_of(standing, cluster), rounds)?;
        Ok(StrategyTransfers { link, costs, times })
    }

    /// The exposure of each replica; none for pipelines, and where gradients leave in rounds.
    pub(super) fn exposures(&self) -> Vec<Option<Arc<Exposure>>> {
        let mut known: Vec<(&ClassCost, Option<Arc<Exposure>>)> = Vec::new();
        let exposure = |&cost: &&'a ClassCost| {
            if let Some((_, exposure)) = known.iter().find(|(other, _)| std::ptr::eq(*other, cost)) {
                return exposure.clone();
            }
            let exposure = match cost.stage_multipliers() {
                [multiplier] => Exposure::new(&self.times, *multiplier, cost.forward_share()).map(Arc::new),
                _ => None,
            };
            known.push((cost, exposure.clone()));
            exposure
        };
        self.costs.iter().map(exposure).collect()
    }

    /// The step of replicas that run these packings for `iteration_ms`, and the time by which each replica's part of the
    /// step ends later than its packing.
    pub(super) fn of_step(
        &self,
        batch: &Batch,
        packings: &[Packing],
        iteration_ms: Millis,
    ) -> (PlannedTransfers, Vec<Millis>) {
        let at_work = self.costs.iter().zip(packings).filter(|(_, packing)| !packing.micro_batches.is_empty());
        let times: Vec<Vec<Millis>> =
            at_work.clone().map(|(cost, packing)| cost.micro_batch_times(&packing.micro_batches, batch)).collect();
        let work = at_work.zip(&times).map(|((cost, _), times)| ReplicaWork {
            scheme: cost.scheme(),
            times,
            stage_multipliers: cost.stage_multipliers(),
            forward_share: cost.forward_share(),
        });
        let split = self.link.link().split();
        let step = StepTimeline::new(split, &self.times, work, &mut MakespanBuffers::default());
        let mut alone = step.alone.into_iter();
        let late = |packing: &Packing| {
            let works = !packing.micro_batches.is_empty();
            if works { alone.next().unwrap_or_default() - packing.ms } else { Millis::ZERO }
        };
        let delays = packings.iter().map(late).collect();
        // Sums of the same times in another order may seem shorter.
        let step_ms = step.end.max(iteration_ms);
        let planned = PlannedTransfers {
            step_ms,
            transfer_ms: step_ms - iteration_ms,
            alone_ms: self.times.total(),
            moved_bytes: self.times.moved_bytes,
        };
        (planned, delays)
    }
}
