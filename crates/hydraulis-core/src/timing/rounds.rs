//! The timeline of an iteration whose gradients leave after each micro-batch.
//!
//! All ranks exchange buckets in one order: in *rounds*, as many as the replica with most micro-batches has, and in each
//! round from the last bucket to the first. A replica takes part in the last rounds, one for each of its micro-batches,
//! because replicas tend to end together; a rank without a micro-batch in a round contributes nothing to it. A rank has
//! two gradient buffers, which the buckets use in turn. A backward waits before a layer group until the bucket that
//! used its buffer last has left. Schemes have no stages, so no other stage waits for that backward.

use crate::layout::Position;
use crate::spec::ShardingKind;
use crate::units::{Millis, count};

/// Buffers that the buckets of a rank use in turn.
pub(super) const BUFFERS: usize = 2;

/// The rounds of an iteration under sharded gradients or parameters.
#[derive(Clone, Copy, Debug)]
pub struct Rounds<'a> {
    /// Number of each rank's micro-batches.
    pub micro_batches: &'a [usize],
    /// Whether parameters are sharded: they come in each round.
    pub has_gathers: bool,
}

impl<'a> Rounds<'a> {
    /// The rounds of ranks with these numbers of micro-batches; none without sharding.
    pub fn of(sharding: ShardingKind, micro_batches: &'a [usize]) -> Option<Rounds<'a>> {
        let has_gathers = sharding == ShardingKind::Parameters;
        (!sharding.is_none()).then_some(Rounds { micro_batches, has_gathers })
    }
}

/// The round of a replica's first micro-batch; it takes part in the following ones.
pub fn first_round(rounds: usize, micro_batches: usize) -> usize {
    rounds - micro_batches.min(rounds)
}

/// The positions of the ranks that contribute to a round, given each rank's micro-batches.
pub(super) fn contributing(
    positions: &[Option<Position>],
    micro_batches: &[usize],
    round: usize,
    rounds: usize,
) -> Vec<Option<Position>> {
    let contributes = |&number: &usize| first_round(rounds, number) <= round;
    positions.iter().zip(micro_batches).map(|(position, number)| position.filter(|_| contributes(number))).collect()
}

/// The computation of a replica without stages.
#[derive(Clone, Debug)]
pub(super) struct RoundWork {
    /// Time of each micro-batch's forward.
    pub(super) forward: Vec<Millis>,
    /// Time of each micro-batch's backward.
    pub(super) backward: Vec<Millis>,
    /// Earliest end of the first forward, because it waits for parameters.
    pub(super) first_end: Millis,
}

#[cfg(test)]
impl RoundWork {
    /// Micro-batches of these times, of which forward is a third.
    pub(super) fn of_times(times: &[f64]) -> RoundWork {
        let part = |share: f64| times.iter().map(|&ms| Millis(ms * share)).collect();
        RoundWork { forward: part(1.0 / 3.0), backward: part(2.0 / 3.0), first_end: Millis::ZERO }
    }
}

/// An iteration in rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RoundRun {
    /// End of each computation of each replica: forward and backward of each micro-batch.
    pub(super) ends: Vec<Vec<[Millis; 2]>>,
    /// Start of each bucket's transfer in each round.
    pub(super) departures: Vec<Vec<Millis>>,
    /// Bucket, start and end of each gather of sharded parameters.
    pub(super) gathers: Vec<(usize, Millis, Millis)>,
    /// End of the last transfer.
    pub(super) end: Millis,
}

/// Runs the rounds; `gradients` has the transfer times of each bucket in each round.
pub(super) fn run_rounds(work: &[RoundWork], gradients: &[Vec<Millis>]) -> RoundRun {
    let mut replicas: Vec<Replica> = work.iter().map(|work| Replica::new(work, gradients.len())).collect();
    let mut run = RoundRun {
        departures: gradients.iter().map(|round| vec![Millis::ZERO; round.len()]).collect(),
        ..RoundRun::default()
    };
    for (round, times) in gradients.iter().enumerate() {
        for replica in &mut replicas {
            replica.forward(round);
        }
        for (bucket, &ms) in times.iter().enumerate().rev() {
            let ready = replicas.iter_mut().filter_map(|replica| replica.backward(round, bucket, times.len())).max();
            let departure = run.end.max(ready.unwrap_or_default());
            run.end = departure + ms;
            run.departures[round][bucket] = departure;
            for replica in replicas.iter_mut().filter(|replica| round >= replica.first) {
                replica.free[bucket % BUFFERS] = run.end;
            }
        }
        for replica in &mut replicas {
            replica.end_round(round);
        }
    }
    run.ends = replicas.into_iter().map(|replica| replica.ends).collect();
    run
}

struct Replica<'a> {
    work: &'a RoundWork,
    /// Round of the first micro-batch.
    first: usize,
    clock: Millis,
    /// End of the last transfer from each buffer.
    free: [Millis; BUFFERS],
    ends: Vec<[Millis; 2]>,
}

impl Replica<'_> {
    fn new(work: &RoundWork, rounds: usize) -> Replica<'_> {
        let first = first_round(rounds, work.forward.len());
        Replica { work, first, clock: Millis::ZERO, free: [Millis::ZERO; BUFFERS], ends: Vec::new() }
    }

    fn forward(&mut self, round: usize) {
        let Some(number) = round.checked_sub(self.first) else { return };
        self.clock += self.work.forward[number];
        if number == 0 {
            self.clock = self.clock.max(self.work.first_end);
        }
        self.ends.push([self.clock; 2]);
    }

    /// End of a layer group's backward; none if the replica has no micro-batch in the round.
    fn backward(&mut self, round: usize, bucket: usize, buckets: usize) -> Option<Millis> {
        let number = round.checked_sub(self.first)?;
        let share = self.work.backward[number] * (1.0 / count(buckets));
        self.clock = self.clock.max(self.free[bucket % BUFFERS]) + share;
        Some(self.clock)
    }

    fn end_round(&mut self, round: usize) {
        if let (true, Some(ends)) = (round >= self.first, self.ends.last_mut()) {
            ends[1] = self.clock;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(replicas: &[&[f64]], ms: f64, buckets: usize) -> RoundRun {
        let replicas: Vec<RoundWork> = replicas.iter().map(|times| RoundWork::of_times(times)).collect();
        let rounds = replicas.iter().map(|one| one.forward.len()).max().unwrap_or_default();
        run_rounds(&replicas, &vec![vec![Millis(ms); buckets]; rounds])
    }

    /// Four buckets: 3 of forward, and 6 of backward in parts of 1.5.
    #[test]
    fn a_short_transfer_is_overlapped_but_for_the_last_bucket() {
        let run = run(&[&[9.0, 9.0]], 1.0, 4);
        assert!(run.end.is_close(Millis(19.0)), "{run:?}");
        assert!(run.ends[0][1][1].is_close(Millis(18.0)));
        assert!(run.departures[0][3].is_close(Millis(4.5)) && run.departures[1][0].is_close(Millis(18.0)));
    }

    #[test]
    fn a_backward_waits_for_its_buffer() {
        // Buckets 3 and 2 leave at 4.5 and 9.5; bucket 1 waits for bucket 3 until 9.5, and bucket 0 for bucket 2.
        let run = run(&[&[9.0]], 5.0, 4);
        assert!(run.departures[0].iter().rev().zip([4.5, 9.5, 14.5, 19.5]).all(|(at, ms)| at.is_close(Millis(ms))));
        assert!(run.ends[0][0][1].is_close(Millis(16.0)) && run.end.is_close(Millis(24.5)), "{run:?}");
    }

    /// One micro-batch of 27 beside three of 9: the long one takes part in the last round alone.
    #[test]
    fn a_replica_takes_part_in_the_last_rounds() {
        let run = run(&[&[9.0, 9.0, 9.0], &[27.0]], 0.0, 4);
        assert!(run.ends[0][1][1].is_close(Millis(18.0)), "{run:?}");
        // Its first two buckets have free buffers; the third waits for the others' last round, which begins at 22.5.
        assert!(run.departures[2][3].is_close(Millis(22.5)));
        assert!(run.ends[1][0][1].is_close(Millis(31.5)) && run.end.is_close(Millis(31.5)), "{run:?}");
        assert_eq!([first_round(3, 1), first_round(3, 3), first_round(3, 0)], [2, 0, 3]);
    }
}
