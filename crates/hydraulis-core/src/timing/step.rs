//! The timeline of an iteration with its transfers: from updated parameters at their owners to all gradients at their
//! owners.
//!
//! Parameters travel bucket by bucket in the order in which forward needs them, the embedding first. The first forward
//! of a stage runs its layer groups one after another and waits if the next one's bucket has not arrived. Gradients
//! travel in the opposite order: a bucket is sent when the last backward has finished its layer group on every stage
//! that holds it, and the bucket before it is complete. Transfers therefore overlap the first forward and the last
//! backward, except for the first bucket and the last one. The layer groups of a stage share its time evenly.
//!
//! Parameters of several layer groups need nothing more: they arrive with the first of these groups, and the last
//! backward runs that group last.
//!
//! Under sharded gradients, buckets leave after each micro-batch (`timing/rounds.rs`), and sharded parameters come for each
//! forward and each backward (`timing/gather_rounds.rs`).

use crate::layout::stage_layer_groups;
use crate::pipeline::{MakespanBuffers, delayed_ends};
use crate::spec::{LayerSplit, Scheme};
use crate::timing::TransferTimes;
use crate::timing::gather_rounds::run_gather_rounds;
use crate::timing::rounds::{RoundWork, run_rounds};
use crate::units::{Millis, count};

/// The computation of a replica with work.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaWork<'a> {
    /// Scheme of the replica.
    pub scheme: Scheme,
    /// The time of each micro-batch on a stage of multiplier 1, in running order; at least one.
    pub times: &'a [Millis],
    /// Multiplier of each stage.
    pub stage_multipliers: &'a [f64],
    /// Forward share of a micro-batch's time.
    pub forward_share: f64,
}

/// The transfers of an iteration on its simulated timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeline {
    /// Arrival of each bucket's parameters.
    pub arrivals: Vec<Millis>,
    /// Start of each bucket's gradient transfer, of the last one under sharded gradients.
    pub departures: Vec<Millis>,
    /// Start of each bucket's gradient transfer in each earlier round; none if gradients leave once.
    pub earlier_departures: Vec<Vec<Millis>>,
    /// Bucket, start and end of each gather of sharded parameters.
    pub gathers: Vec<(usize, Millis, Millis)>,
    /// End of the forward and of the backward of each replica's micro-batches under sharded gradients, where a backward
    /// may wait for a gradient buffer; none if gradients leave once.
    pub computations: Vec<Vec<[Millis; 2]>>,
    /// End of the last backward of each replica.
    pub ends: Vec<Millis>,
    /// End of the step if each replica were the only one with gradients; without the others' waits that is its own last
    /// backward under sharded gradients.
    pub alone: Vec<Millis>,
    /// End of the last backward of all replicas.
    pub computed: Millis,
    /// Arrival of all gradients at their owners.
    pub end: Millis,
}

impl StepTimeline {
    /// The timeline of these replicas of a model whose layers `split` assigns to stages, with these transfer times.
    ///
    /// # Panics
    ///
    /// If a pipeline has more stages than the model has layers; such a layout has no transfer times.
    pub fn new<'a>(
        split: &LayerSplit,
        transfers: &TransferTimes,
        replicas: impl IntoIterator<Item = ReplicaWork<'a>>,
        buffers: &mut MakespanBuffers,
    ) -> StepTimeline {
        let replicas: Vec<ReplicaWork> = replicas.into_iter().collect();
        if let Some(earlier) = &transfers.earlier_rounds {
            return StepTimeline::in_rounds(split, transfers, earlier, &replicas);
        }
        let delayed = |place: usize, first_ends: &[Millis]| {
            let ReplicaWork { times, stage_multipliers, forward_share, .. } = replicas[place];
            delayed_ends(times, stage_multipliers, forward_share, first_ends, buffers)
        };
        StepTimeline::of_runs(split, transfers, replicas.iter().copied(), delayed)
    }

    /// The timeline of replicas without stages whose gradients, or parameters too, travel in rounds.
    fn in_rounds(
        split: &LayerSplit,
        transfers: &TransferTimes,
        earlier: &[Vec<Millis>],
        replicas: &[ReplicaWork],
    ) -> StepTimeline {
        let arrivals = arrivals(&transfers.parameters);
        let work = replicas.iter().map(|work| {
            let multiplier = work.stage_multipliers.first().copied().unwrap_or(1.0);
            let share = |share: f64| work.times.iter().map(|&ms| ms * (multiplier * share)).collect();
            let first_end = first_ends(split, &arrivals, *work).into_iter().max().unwrap_or_default();
            RoundWork { forward: share(work.forward_share), backward: share(1.0 - work.forward_share), first_end }
        });
        let work: Vec<RoundWork> = work.collect();
        let mut gradients = earlier.to_vec();
        gradients.push(transfers.gradients.clone());
        let mut run = match transfers.gathers.as_slice() {
            [] => run_rounds(&work, &gradients),
            gathers => run_gather_rounds(&work, &gradients, gathers, transfers.gathered_again.clone()),
        };
        let last = |ends: &Vec<[Millis; 2]>| ends.last().map_or(Millis::ZERO, |&[_, backward]| backward);
        let ends: Vec<Millis> = run.ends.iter().map(last).collect();
        let computed = ends.iter().copied().max().unwrap_or_default();
        StepTimeline {
            arrivals,
            departures: run.departures.pop().unwrap_or_default(),
            earlier_departures: run.departures,
            gathers: run.gathers,
            computations: run.ends,
            alone: ends.clone(),
            ends,
            computed,
            end: run.end.max(computed),
        }
    }

    /// As [`StepTimeline::new`], for replicas whose gradients leave once and whose pipelines `run` simulates.
    ///
    /// `run` receives the index of a replica and the earliest end of the first forward of each of its stages; it
    /// returns the end of the last backward of each stage.
    ///
    /// # Panics
    ///
    /// As [`StepTimeline::new`].
    pub fn of_runs<'a>(
        split: &LayerSplit,
        transfers: &TransferTimes,
        replicas: impl IntoIterator<Item = ReplicaWork<'a>>,
        mut run: impl FnMut(usize, &[Millis]) -> Vec<Millis>,
    ) -> StepTimeline {
        let arrivals = arrivals(&transfers.parameters);
        let following = self::arrivals(&transfers.gradients);
        let mut ready = vec![Millis::ZERO; arrivals.len()];
        let (mut ends, mut alone) = (Vec::new(), Vec::new());
        for (place, work) in replicas.into_iter().enumerate() {
            let stages = run(place, &first_ends(split, &arrivals, work));
            ends.push(stages.iter().copied().max().unwrap_or_default());
            alone.push(note_ready(split, work, &stages, &following, &mut ready));
        }
        let computed = ends.iter().copied().max().unwrap_or_default();
        let mut end = Millis::ZERO;
        let mut departures = ready;
        for (departure, &ms) in departures.iter_mut().zip(&transfers.gradients).rev() {
            *departure = end.max(*departure);
            end = *departure + ms;
        }
        StepTimeline {
            arrivals,
            departures,
            earlier_departures: Vec::new(),
            gathers: Vec::new(),
            computations: Vec::new(),
            ends,
            alone,
            computed,
            end: end.max(computed),
        }
    }
}

/// The sum of these times up to each of them: the arrivals of parameters one after another, or the time from the
/// departure of each bucket's gradients to the end, since later buckets leave first.
fn arrivals(times: &[Millis]) -> Vec<Millis> {
    let travel = times.iter().scan(Millis::ZERO, |end, &ms| {
        *end += ms;
        Some(*end)
    });
    travel.collect()
}

/// Earliest end of the first forward of each stage, because it waits for parameters.
fn first_ends(split: &LayerSplit, arrivals: &[Millis], work: ReplicaWork<'_>) -> Vec<Millis> {
    let first = work.times.first().copied().unwrap_or_default() * work.forward_share;
    let first_end = |(stage, &multiplier): (usize, &f64)| {
        let layer_groups = layer_groups(split, work.scheme, stage);
        let number = layer_groups.len();
        // From its arrival on, a layer group and those after it take their share of the time.
        let after = |(place, &arrival): (usize, &Millis)| {
            arrival + first * (multiplier * count(number - place) / count(number))
        };
        arrivals[layer_groups].iter().enumerate().map(after).max().unwrap_or_default()
    };
    work.stage_multipliers.iter().enumerate().map(first_end).collect()
}

/// Raises the ready time of each bucket to the end of its layer group in the last backward of this replica; returns when
/// its gradients alone would be at their owners, of which those of each bucket take the time `following` with all after
/// them.
fn note_ready(
    split: &LayerSplit,
    work: ReplicaWork<'_>,
    ends: &[Millis],
    following: &[Millis],
    ready: &mut [Millis],
) -> Millis {
    let last = work.times.last().copied().unwrap_or_default() * (1.0 - work.forward_share);
    let mut alone = Millis::ZERO;
    for (stage, (&end, &multiplier)) in ends.iter().zip(work.stage_multipliers).enumerate() {
        let layer_groups = layer_groups(split, work.scheme, stage);
        let number = layer_groups.len();
        let buckets = ready[layer_groups.clone()].iter_mut().zip(&following[layer_groups]);
        for (place, (ready, &following)) in buckets.enumerate() {
            let own = end - last * (multiplier * count(place) / count(number));
            *ready = (*ready).max(own);
            alone = alone.max(own + following);
        }
    }
    alone
}

fn layer_groups(split: &LayerSplit, scheme: Scheme, stage: usize) -> std::ops::Range<usize> {
    let stage = u16::try_from(stage).unwrap_or(u16::MAX);
    let layer_groups =
        stage_layer_groups(split, scheme, stage).expect("a layout with transfer times has layers for its stages");
    *layer_groups.start() as usize..*layer_groups.end() as usize + 1
}

#[cfg(test)]
mod tests;
