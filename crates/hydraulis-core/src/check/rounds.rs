//! The checker's own computation of an iteration whose gradients leave after each micro-batch.
//!
//! The exchanges of all rounds follow each other. Each begins when the exchange before has ended and the last replica of
//! the round has finished the bucket's layer group, which it begins no earlier than the end of the exchange that used
//! the same gradient buffer last. Sharded parameters take part in that order.

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::check::replica_times::ReplicaTimes;
use crate::check::transfers::{planned, positions};
use crate::cost::CostModel;
use crate::error::Result;
use crate::plan::{Plan, PlannedTransfers, ReplicaPlan};
use crate::timing::{Link, Rounds};
use crate::units::{Millis, count};

/// The transfers of `plan`, for its own packings and iteration time.
pub(super) fn derived_rounds(plan: &Plan, batch: &Batch, cost: &CostModel, link: &Link) -> Result<PlannedTransfers> {
    let mut counts = vec![0; plan.cluster.gpus() as usize];
    for replica in &plan.replicas {
        for &rank in &replica.ranks {
            if let Some(count) = counts.get_mut(rank as usize) {
                *count = replica.micro_batches.len();
            }
        }
    }
    let schemes = cost.profile().every_scheme();
    let rounds = Rounds::of(cost.profile().sharding, &counts);
    let times = link.transfer_times(&positions(plan)?, rounds, cost.cluster(), &schemes)?;
    let mut reductions = times.earlier_rounds.clone().unwrap_or_default();
    reductions.push(times.gradients.clone());
    let parameters: Vec<f64> = times.parameters.iter().map(|ms| ms.0).collect();
    let at_work = plan.replicas.iter().filter(|replica| !replica.micro_batches.is_empty());
    let mut replicas: Vec<Computing> =
        at_work.map(|replica| Computing::of(replica, batch, cost, &parameters)).collect::<Result<_>>()?;
    let end = if times.gathers.is_empty() {
        reduced(&mut replicas, &reductions)
    } else {
        gathered_and_reduced(&mut replicas, &reductions, &times.gathers, first_trained(link))
    };
    let computed = replicas.iter().map(|replica| replica.clock).fold(0.0, f64::max);
    Ok(planned(plan, end.max(computed), &times))
}

/// End of the last reduction where parameters arrive once.
fn reduced(replicas: &mut [Computing], rounds: &[Vec<Millis>]) -> f64 {
    let mut end = 0.0_f64;
    for (round, gradients) in rounds.iter().enumerate() {
        let left = rounds.len() - round;
        for (bucket, ms) in gradients.iter().enumerate().rev() {
            let mut start = end;
            for replica in replicas.iter_mut().filter(|replica| replica.pairs.len() >= left) {
                start = start.max(replica.finish(left, bucket, gradients.len()));
            }
            end = start + ms.0;
            for replica in replicas.iter_mut().filter(|replica| replica.pairs.len() >= left) {
                replica.sent.insert(bucket % 2, end);
            }
        }
    }
    end
}

/// End of the last reduction where parameters arrive for each forward and each backward.
///
/// A round's computations are one list: the layer groups forward, then back. In front of each, all replicas of the round
/// meet: they wait for the gather and for the reduction two layer groups ago, and launch the next exchanges. No backward
/// needs the values of layer groups in front of `first_trained`.
fn gathered_and_reduced(
    replicas: &mut [Computing],
    reductions: &[Vec<Millis>],
    gathers: &[Vec<Millis>],
    first_trained: usize,
) -> f64 {
    let mut end = 0.0_f64;
    for (round, (reductions, gathers)) in reductions.iter().zip(gathers).enumerate() {
        let to_come = replicas.iter().map(|replica| replica.pairs.len()).max().unwrap_or_default() - round;
        let buckets = gathers.len();
        let mut at_work: Vec<&mut Computing> =
            replicas.iter_mut().filter(|replica| replica.pairs.len() >= to_come).collect();
        let reached = |at_work: &[&mut Computing]| at_work.iter().map(|replica| replica.clock).fold(0.0, f64::max);
        let mut exchange = |from: f64, ms: Millis| {
            end = end.max(from) + ms.0;
            end
        };
        let mut arrived = exchange(reached(&at_work), gathers[0]);
        let mut sent: BTreeMap<usize, f64> = BTreeMap::new();
        for place in 0..2 * buckets {
            let is_back = place >= buckets;
            let bucket = if is_back { 2 * buckets - 1 - place } else { place };
            let free = if is_back { sent.get(&(bucket + 2)).copied().unwrap_or_default() } else { 0.0 };
            for replica in &mut at_work {
                replica.clock = replica.clock.max(arrived).max(free);
            }
            let now = reached(&at_work);
            if is_back {
                if let Some(&ms) = reductions.get(bucket + 1) {
                    sent.insert(bucket + 1, exchange(now, ms));
                }
                if bucket >= 2 && bucket > first_trained && bucket + 2 <= buckets {
                    arrived = exchange(now, gathers[bucket - 1]);
                }
            } else if let Some(&ms) = gathers.get(bucket + 1) {
                arrived = exchange(now, ms);
            }
            for replica in &mut at_work {
                let [forward, backward] = replica.pairs[replica.pairs.len() - to_come];
                replica.clock += if is_back { backward } else { forward } / count(buckets);
            }
        }
        exchange(reached(&at_work), reductions[0]);
    }
    end
}

/// The first layer group with a trained parameter.
fn first_trained(link: &Link) -> usize {
    let trained = link.table().parameters().iter().filter(|parameter| parameter.trained);
    trained.flat_map(|parameter| &parameter.layer_groups).min().map_or(0, |&group| group as usize)
}

/// A replica in the course of its micro-batches.
struct Computing {
    /// Forward and backward of each micro-batch in ms.
    pairs: Vec<[f64; 2]>,
    /// End of the first forward.
    first: f64,
    clock: f64,
    /// End of the last exchange from each of the two gradient buffers.
    sent: BTreeMap<usize, f64>,
}

impl Computing {
    fn of(replica: &ReplicaPlan, batch: &Batch, cost: &CostModel, parameters: &[f64]) -> Result<Computing> {
        let times = ReplicaTimes::of(replica, batch, cost)?;
        let multiplier = times.stages[0];
        let pair = |ms: &f64| [times.forward_share, 1.0 - times.forward_share].map(|share| ms * multiplier * share);
        let pairs: Vec<[f64; 2]> = times.micro_batches.iter().map(pair).collect();
        let (mut first, mut arrival) = (0.0_f64, 0.0);
        for ms in parameters {
            arrival += ms;
            first = first.max(arrival) + pairs[0][0] / count(parameters.len());
        }
        Ok(Computing { pairs, first, clock: 0.0, sent: BTreeMap::new() })
    }

    /// End of a bucket's layer group in the micro-batch before which `left` ones are left, with itself.
    fn finish(&mut self, left: usize, bucket: usize, buckets: usize) -> f64 {
        let number = self.pairs.len() - left;
        let [forward, backward] = self.pairs[number];
        if bucket + 1 == buckets {
            self.clock = if number == 0 { self.first } else { self.clock + forward };
        }
        let free = self.sent.get(&(bucket % 2)).copied().unwrap_or_default();
        self.clock = self.clock.max(free) + backward / count(buckets);
        self.clock
    }
}
