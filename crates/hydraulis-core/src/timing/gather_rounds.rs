//! The timeline of an iteration under sharded parameters.
//!
//! Each round (see `rounds`) has one list of exchanges on all ranks: the gathers of the forward, from the first bucket to
//! the last; then, from the last bucket to the first, the reduction of a bucket's gradients and the gather of the bucket
//! two before it. An exchange begins when the one before has ended and every replica of the round has reached the
//! computation that launches it: that of the bucket before for a gather, and that of the next bucket for a reduction. A
//! computation waits for its parameters, and a backward for the gradient buffer of its bucket.

use std::ops::Range;

use crate::timing::rounds::{BUFFERS, RoundRun, RoundWork, first_round};
use crate::units::{Millis, count};

/// Runs the rounds; `gradients` and `gathers` have the transfer times of each bucket in each round, and a backward gathers
/// the buckets `again`.
pub(super) fn run_gather_rounds(
    work: &[RoundWork],
    gradients: &[Vec<Millis>],
    gathers: &[Vec<Millis>],
    again: Range<usize>,
) -> RoundRun {
    let replicas: Vec<Replica> = work.iter().map(|work| Replica::new(work, gradients.len())).collect();
    let mut run = GatherRounds { replicas, again, run: RoundRun::default() };
    for (round, (reductions, gathers)) in gradients.iter().zip(gathers).enumerate() {
        let times = Round { number: round, reductions, gathers };
        run.forward(&times);
        run.backward(&times);
    }
    run.run.ends = run.replicas.into_iter().map(|replica| replica.ends).collect();
    run.run
}

/// The transfer times of a round.
struct Round<'a> {
    number: usize,
    reductions: &'a [Millis],
    gathers: &'a [Millis],
}

struct GatherRounds<'a> {
    replicas: Vec<Replica<'a>>,
    again: Range<usize>,
    run: RoundRun,
}

impl<'a> GatherRounds<'a> {
    fn forward(&mut self, round: &Round) {
        let buckets = round.gathers.len();
        let mut arrival = self.gather(round, 0);
        for bucket in 0..buckets {
            self.wait_until(round, arrival);
            if bucket + 1 < buckets {
                arrival = self.gather(round, bucket + 1);
            }
            for replica in self.at_work(round) {
                replica.clock += replica.work.forward[round.number - replica.first] * (1.0 / count(buckets));
            }
        }
        for replica in self.at_work(round) {
            replica.ends.push([replica.clock; 2]);
        }
    }

    fn backward(&mut self, round: &Round) {
        let buckets = round.gathers.len();
        self.run.departures.push(vec![Millis::ZERO; buckets]);
        let mut free = [Millis::ZERO; BUFFERS];
        let mut arrival = Millis::ZERO;
        for bucket in (0..buckets).rev() {
            self.wait_until(round, arrival.max(free[bucket % BUFFERS]));
            if bucket + 1 < buckets {
                free[(bucket + 1) % BUFFERS] = self.reduce(round, bucket + 1);
            }
            if bucket > 0 && self.again.contains(&(bucket - 1)) {
                arrival = self.gather(round, bucket - 1);
            }
            for replica in self.at_work(round) {
                replica.clock += replica.work.backward[round.number - replica.first] * (1.0 / count(buckets));
                if let Some(ends) = replica.ends.last_mut() {
                    ends[1] = replica.clock;
                }
            }
        }
        self.reduce(round, 0);
    }

    /// The replicas that compute in a round.
    fn at_work(&mut self, round: &Round) -> impl Iterator<Item = &mut Replica<'a>> {
        let number = round.number;
        self.replicas.iter_mut().filter(move |replica| replica.first <= number)
    }

    fn wait_until(&mut self, round: &Round, time: Millis) {
        for replica in self.at_work(round) {
            replica.clock = replica.clock.max(time);
        }
    }

    /// Launches an exchange at the computation that the replicas have reached; gives its start.
    fn launch(&mut self, round: &Round, ms: Millis) -> Millis {
        let launched = self.at_work(round).map(|replica| replica.clock).max().unwrap_or_default();
        let start = self.run.end.max(launched);
        self.run.end = start + ms;
        start
    }

    fn gather(&mut self, round: &Round, bucket: usize) -> Millis {
        let start = self.launch(round, round.gathers[bucket]);
        self.run.gathers.push((bucket, start, self.run.end));
        self.run.end
    }

    fn reduce(&mut self, round: &Round, bucket: usize) -> Millis {
        let start = self.launch(round, round.reductions[bucket]);
        self.run.departures[round.number][bucket] = start;
        self.run.end
    }
}

struct Replica<'a> {
    work: &'a RoundWork,
    /// Round of the first micro-batch.
    first: usize,
    clock: Millis,
    ends: Vec<[Millis; 2]>,
}

impl Replica<'_> {
    fn new(work: &RoundWork, rounds: usize) -> Replica<'_> {
        Replica { work, first: first_round(rounds, work.forward.len()), clock: Millis::ZERO, ends: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four buckets: parts of 1 of forward and of 2 of backward.
    fn run(replicas: &[&[f64]], gather: f64, reduction: f64) -> RoundRun {
        let replicas: Vec<RoundWork> = replicas.iter().map(|times| RoundWork::of_times(times)).collect();
        let rounds = replicas.iter().map(|one| one.forward.len()).max().unwrap_or_default();
        let times = |ms| vec![vec![Millis(ms); 4]; rounds];
        run_gather_rounds(&replicas, &times(reduction), &times(gather), 1..2)
    }

    #[test]
    fn short_gathers_are_overlapped_but_for_the_first() {
        let run = run(&[&[12.0]], 0.5, 0.0);
        assert!(run.ends[0][0][0].is_close(Millis(4.5)) && run.end.is_close(Millis(12.5)), "{run:?}");
        // Those of the forward, and of bucket 1 again.
        let gathered: Vec<usize> = run.gathers.iter().map(|&(bucket, ..)| bucket).collect();
        assert_eq!(gathered, [0, 1, 2, 3, 1]);
        let starts = run.gathers.iter().map(|&(_, start, _)| start.0);
        assert!(starts.zip([0.0, 0.5, 1.5, 2.5, 6.5]).all(|(at, ms)| (at - ms).abs() < 1e-12), "{run:?}");
    }

    #[test]
    fn a_computation_waits_for_long_gathers() {
        // The forward ends 1 after the fourth gather; the backward of bucket 1 waits for its gather, launched at 15.
        let run = run(&[&[12.0]], 3.0, 0.0);
        assert!(run.ends[0][0][0].is_close(Millis(13.0)), "{run:?}");
        assert!(run.ends[0][0][1].is_close(Millis(22.0)), "{run:?}");
    }

    #[test]
    fn reductions_and_gathers_follow_each_other() {
        // Bucket 3 leaves at 6.5 for 3, and bucket 1 arrives at 10; its own gradients wait no longer.
        let run = run(&[&[12.0]], 0.5, 3.0);
        assert!(run.departures[0][3].is_close(Millis(6.5)), "{run:?}");
        assert!(run.gathers[4].1.is_close(Millis(9.5)) && run.departures[0][2].is_close(Millis(10.0)), "{run:?}");
        // Bucket 0 waits for the buffer of bucket 2, and leaves 2 after its backward has begun.
        assert!(run.ends[0][0][1].is_close(Millis(15.0)) && run.end.is_close(Millis(19.0)), "{run:?}");
    }

    /// Three micro-batches of 12, and one of 24, which takes part in the last round alone and begins with it.
    #[test]
    fn a_replica_begins_with_its_first_round() {
        let run = run(&[&[12.0, 12.0, 12.0], &[24.0]], 0.0, 0.0);
        assert!(run.ends[0][1][1].is_close(Millis(24.0)), "{run:?}");
        assert!(run.ends[1][0][1].is_close(Millis(48.0)) && run.end.is_close(Millis(48.0)), "{run:?}");
    }
}
