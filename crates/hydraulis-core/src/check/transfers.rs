//! The checker's own computation of an iteration with its transfers.
//!
//! The link gives the time of each bucket by itself, as the cost model gives the time of a sequence. The checker
//! derives the step again: positions from the ranks, layer groups of stages one by one, starts raised until nothing
//! changes.

use crate::batch::Batch;
use crate::check::replica_times::ReplicaTimes;
use crate::check::rounds::derived_rounds;
use crate::cost::CostModel;
use crate::error::Result;
use crate::layout::Position;
use crate::plan::{Plan, PlannedTransfers, ReplicaPlan};
use crate::spec::{LayerSplit, Scheme};
use crate::timing::{Link, TransferTimes};
use crate::units::{Millis, count};

/// The transfers of `plan`, for its own packings and iteration time.
pub(super) fn derived_transfers(plan: &Plan, batch: &Batch, cost: &CostModel, link: &Link) -> Result<PlannedTransfers> {
    if !cost.profile().sharding.is_none() {
        return derived_rounds(plan, batch, cost, link);
    }
    let schemes = cost.profile().every_scheme();
    let times = link.transfer_times(&positions(plan)?, None, cost.cluster(), &schemes)?;
    let mut ready = vec![0.0_f64; times.parameters.len()];
    for replica in plan.replicas.iter().filter(|replica| !replica.micro_batches.is_empty()) {
        raise_ready(replica, batch, cost, link.split(), &times, &mut ready)?;
    }
    let shards = (0..ready.len()).rev().fold(0.0_f64, |end, bucket| end.max(ready[bucket]) + times.gradients[bucket].0);
    Ok(planned(plan, shards, &times))
}

/// The transfers of a step whose gradients are at their owners at `end`.
pub(super) fn planned(plan: &Plan, end: f64, times: &TransferTimes) -> PlannedTransfers {
    let step_ms = Millis(end.max(plan.iteration_ms.0));
    PlannedTransfers {
        step_ms,
        transfer_ms: step_ms - plan.iteration_ms,
        alone_ms: times.total(),
        moved_bytes: times.moved_bytes,
    }
}

pub(super) fn positions(plan: &Plan) -> Result<Vec<Option<Position>>> {
    let mut positions = vec![None; plan.cluster.gpus() as usize];
    for replica in plan.replicas.iter().filter(|replica| !replica.micro_batches.is_empty()) {
        let scheme = replica.scheme;
        for (place, &rank) in (0_u32..).zip(&replica.ranks) {
            let (tp, stage_group) = (u32::from(scheme.tp()), scheme.stage_group_ranks());
            let number = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
            let position = Position::new(
                scheme,
                number(place / stage_group),
                number(place % stage_group / tp),
                number(place % tp),
            )?;
            if let Some(free) = positions.get_mut(rank as usize) {
                *free = Some(position);
            }
        }
    }
    Ok(positions)
}

/// Raises the ready time of each bucket to the end of its layer group in the last backward of a replica.
fn raise_ready(
    replica: &ReplicaPlan,
    batch: &Batch,
    cost: &CostModel,
    split: &LayerSplit,
    transfers: &TransferTimes,
    ready: &mut [f64],
) -> Result<()> {
    let ReplicaTimes { micro_batches: times, stages: multipliers, forward_share } =
        ReplicaTimes::of(replica, batch, cost)?;
    let (stages, last) = (multipliers.len(), times.len() - 1);
    let mut ends = vec![vec![[0.0_f64; 2]; times.len()]; stages];
    let stage_layer_groups =
        (0..replica.scheme.pp()).map(|stage| layer_groups(split, replica.scheme, stage)).collect::<Result<Vec<_>>>()?;
    loop {
        let before = ends.clone();
        for (stage, &multiplier) in multipliers.iter().enumerate() {
            let layer_groups = &stage_layer_groups[stage];
            let mut clock = 0.0_f64;
            for (micro_batch, pass) in order(stage, stages, times.len()) {
                let input = match pass {
                    0 if stage > 0 => ends[stage - 1][micro_batch][0],
                    1 if stage + 1 < stages => ends[stage + 1][micro_batch][1],
                    _ => 0.0,
                };
                let share = if pass == 0 { forward_share } else { 1.0 - forward_share };
                let all = times[micro_batch] * multiplier * share;
                let each = all / count(layer_groups.len());
                clock = clock.max(input);
                if pass == 0 && micro_batch == 0 {
                    for &stage_group in layer_groups {
                        let arrival: f64 = transfers.parameters[..=stage_group].iter().map(|ms| ms.0).sum();
                        clock = clock.max(arrival) + each;
                    }
                } else if pass == 1 && micro_batch == last {
                    for &stage_group in layer_groups.iter().rev() {
                        clock += each;
                        ready[stage_group] = ready[stage_group].max(clock);
                    }
                } else {
                    clock += all;
                }
                ends[stage][micro_batch][pass] = clock;
            }
        }
        if ends == before {
            return Ok(());
        }
    }
}

/// Micro-batch and pass of each computation of a stage, in 1F1B order.
fn order(stage: usize, stages: usize, micro_batches: usize) -> Vec<(usize, usize)> {
    let ahead = (stages - 1 - stage).min(micro_batches);
    let slot = |slot: usize| {
        let forward = (slot < micro_batches).then_some((slot, 0));
        forward.into_iter().chain((slot >= ahead).then(|| (slot - ahead, 1)))
    };
    (0..micro_batches + ahead).flat_map(slot).collect()
}

/// The layer groups of a stage: 0 the embedding, with the first; then its layers; then the head, with the last.
fn layer_groups(split: &LayerSplit, scheme: Scheme, stage: u16) -> Result<Vec<usize>> {
    let layers = split.stage(scheme, stage)?.map(|layer| layer as usize + 1);
    let embedding = (stage == 0).then_some(0);
    let head = (stage + 1 == scheme.pp()).then_some(split.layers() as usize + 1);
    Ok(embedding.into_iter().chain(layers).chain(head).collect())
}
