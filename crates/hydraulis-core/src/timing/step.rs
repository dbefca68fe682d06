//! An iteration with its transfers: from new parameters at home to all gradients at home.
//!
//! Parameters travel bucket by bucket in the order in which forward needs them, the embedding first. The first forward of
//! a stage goes through its blocks one after another and waits where the next one's bucket is not there yet. Gradients
//! travel in the opposite order: a bucket leaves when the last backward has gone through its block on every stage that
//! holds it, and the bucket before it is at home. So transfers are hidden behind the first forward and the last backward,
//! but for the first bucket and the last one. The blocks of a stage share its time evenly.
//!
//! Parameters that several blocks use need no more than that: they arrive with the first of these blocks, and the last
//! backward goes through that one last.

use crate::layout::stage_blocks;
use crate::pipeline::{MakespanBuffers, delayed_ends};
use crate::spec::{LayerSplit, Scheme};
use crate::timing::TransferTimes;
use crate::units::{Millis, count};

/// What a replica with work computes.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaWork<'a> {
    /// How it is cut.
    pub scheme: Scheme,
    /// The time of each micro-batch on a stage of multiplier 1, in running order; at least one.
    pub times: &'a [Millis],
    /// By stage.
    pub stage_multipliers: &'a [f64],
    /// The share of a micro-batch's time that is its forward.
    pub forward_share: f64,
}

/// The transfers of an iteration on its simulated timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeline {
    /// When the parameters of each bucket have arrived.
    pub arrivals: Vec<Millis>,
    /// When the gradients of each bucket leave.
    pub departures: Vec<Millis>,
    /// When the last backward of each replica ends.
    pub ends: Vec<Millis>,
    /// When the last of them ends.
    pub computed: Millis,
    /// When all gradients are at home.
    pub end: Millis,
}

impl StepTimeline {
    /// The timeline of these replicas of a model whose layers are shared out by `split`, and whose transfers take so long.
    ///
    /// # Panics
    ///
    /// Where a pipeline has more stages than the model has layers; there are no transfer times of such a layout.
    pub fn new<'a>(
        split: &LayerSplit,
        transfers: &TransferTimes,
        replicas: impl IntoIterator<Item = ReplicaWork<'a>>,
        buffers: &mut MakespanBuffers,
    ) -> StepTimeline {
        let replicas: Vec<ReplicaWork> = replicas.into_iter().collect();
        let delayed = |place: usize, first_ends: &[Millis]| {
            let ReplicaWork { times, stage_multipliers, forward_share, .. } = replicas[place];
            delayed_ends(times, stage_multipliers, forward_share, first_ends, buffers)
        };
        StepTimeline::of_runs(split, transfers, replicas.iter().copied(), delayed)
    }

    /// As [`StepTimeline::new`], of replicas that are run by something else.
    ///
    /// `run` is given the place of a replica among those given, and when the first forward of each of its stages ends at the
    /// earliest; it gives when the last backward of each stage ends.
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
        let travel = transfers.parameters.iter().scan(Millis::ZERO, |end, &ms| {
            *end += ms;
            Some(*end)
        });
        let arrivals: Vec<Millis> = travel.collect();
        let mut ready = vec![Millis::ZERO; arrivals.len()];
        let mut ends = Vec::new();
        for (place, work) in replicas.into_iter().enumerate() {
            let stages = run(place, &first_ends(split, &arrivals, work));
            ends.push(stages.iter().copied().max().unwrap_or_default());
            note_ready(split, work, &stages, &mut ready);
        }
        let computed = ends.iter().copied().max().unwrap_or_default();
        let mut end = Millis::ZERO;
        let mut departures = ready;
        for (departure, &ms) in departures.iter_mut().zip(&transfers.gradients).rev() {
            *departure = end.max(*departure);
            end = *departure + ms;
        }
        StepTimeline { arrivals, departures, ends, computed, end: end.max(computed) }
    }
}

/// When the first forward of each stage ends at the earliest, because it waits for parameters.
fn first_ends(split: &LayerSplit, arrivals: &[Millis], work: ReplicaWork<'_>) -> Vec<Millis> {
    let first = work.times.first().copied().unwrap_or_default() * work.forward_share;
    let first_end = |(stage, &multiplier): (usize, &f64)| {
        let blocks = blocks(split, work.scheme, stage);
        let number = blocks.len();
        // From its arrival on, a block and those after it take their share of the time.
        let after = |(place, &arrival): (usize, &Millis)| {
            arrival + first * (multiplier * count(number - place) / count(number))
        };
        arrivals[blocks].iter().enumerate().map(after).max().unwrap_or_default()
    };
    work.stage_multipliers.iter().enumerate().map(first_end).collect()
}

/// Raises when each bucket is ready to when the last backward of this replica has gone through its block.
fn note_ready(split: &LayerSplit, work: ReplicaWork<'_>, ends: &[Millis], ready: &mut [Millis]) {
    let last = work.times.last().copied().unwrap_or_default() * (1.0 - work.forward_share);
    for (stage, (&end, &multiplier)) in ends.iter().zip(work.stage_multipliers).enumerate() {
        let blocks = blocks(split, work.scheme, stage);
        let number = blocks.len();
        for (place, ready) in ready[blocks].iter_mut().enumerate() {
            let left = last * (multiplier * count(place) / count(number));
            *ready = (*ready).max(end - left);
        }
    }
}

fn blocks(split: &LayerSplit, scheme: Scheme, stage: usize) -> std::ops::Range<usize> {
    let stage = u16::try_from(stage).unwrap_or(u16::MAX);
    let blocks = stage_blocks(split, scheme, stage).expect("a layout with transfer times has layers for its stages");
    *blocks.start() as usize..*blocks.end() as usize + 1
}

#[cfg(test)]
mod tests;
