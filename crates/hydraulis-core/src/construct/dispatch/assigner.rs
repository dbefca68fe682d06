//! Assigns sequences to a strategy's replicas one by one.

use std::ops::Range;

use crate::batch::Batch;
use crate::capacity::{Capacities, ClassCapacity};
use crate::construct::dispatch::assignment::{packers, replicas};
use crate::construct::dispatch::load::Ranking;
use crate::construct::dispatch::share::Share;
use crate::construct::dispatch::{Assignment, Load};
use crate::construct::pack::Packer;
use crate::cost::ClassCost;
use crate::error::{Admitting, Error, Result};
use crate::spec::{DispatchBudget, SearchBudget, Strategy};
use crate::units::{Millis, Tokens};

/// Assigns sequences one by one, longest first, each to the replica that then ends earliest.
pub(super) struct Assigner<'a> {
    tokens: &'a [Tokens],
    /// Packer of each distinct class.
    packers: Vec<Packer<'a>>,
    /// Class of each replica, an index into `packers`.
    class_of: Vec<usize>,
    loads: Vec<Load>,
    /// Replicas of each class, by time.
    rankings: Vec<Ranking>,
    /// Ratio of packed to estimated time, for each class.
    ratios: Vec<f64>,
    /// Time by which each replica ends later than its estimate.
    late: Vec<Millis>,
    /// Share of each replica, if it is known.
    shares: Vec<Share>,
    /// Average time of a token on each class, over the sequences not yet assigned.
    rates: Vec<f64>,
    budget: DispatchBudget,
}

impl<'a> Assigner<'a> {
    pub(super) fn new(
        batch: &'a Batch,
        strategy: &Strategy,
        capacities: &'a Capacities,
        budget: &SearchBudget,
    ) -> Result<Assigner<'a>> {
        Ok(Assigner::of_classes(batch, &capacities.classes(strategy)?, budget))
    }

    /// A first round for these numbers of replicas of each class.
    pub(super) fn of_classes(
        batch: &'a Batch,
        classes: &[(&'a ClassCapacity, usize)],
        budget: &SearchBudget,
    ) -> Assigner<'a> {
        let (packers, class_of) = packers(batch, classes, budget.packing);
        Assigner::on(batch.tokens(), packers, class_of, budget.dispatch)
    }

    /// A new round for the replicas of an assignment.
    pub(super) fn again(tokens: &'a [Tokens], assignment: &Assignment<'a>, budget: DispatchBudget) -> Assigner<'a> {
        Assigner::on(tokens, assignment.packers.clone(), assignment.class_of.clone(), budget)
    }

    fn on(
        tokens: &'a [Tokens],
        packers: Vec<Packer<'a>>,
        class_of: Vec<usize>,
        budget: DispatchBudget,
    ) -> Assigner<'a> {
        let (classes, replicas) = (packers.len(), class_of.len());
        let mut assigner = Assigner {
            tokens,
            packers,
            class_of,
            loads: vec![Load::default(); replicas],
            rankings: Vec::new(),
            ratios: vec![1.0; classes],
            late: vec![Millis::ZERO; replicas],
            shares: vec![Share::default(); replicas],
            rates: vec![0.0; classes],
            budget,
        };
        assigner.rank();
        assigner
    }

    /// Assigns all sequences again and packs them; none if one is not admitted.
    pub(super) fn all(&mut self, by_length: &[usize]) -> Option<Assignment<'a>> {
        self.shares.fill(Share::default());
        self.loads.fill(Load::default());
        self.rates.fill(0.0);
        self.rank();
        let mut sequences = vec![Vec::new(); self.loads.len()];
        for &id in by_length {
            sequences[self.take(id, self.budget.compared_replicas)?].push(id);
        }
        Some(Assignment::new(self.packers.clone(), self.class_of.clone(), sequences))
    }

    /// The same, with a share for each replica: a replica's end counts the tokens that its share still lacks, at the
    /// average of the sequences left.
    pub(super) fn by_shares(&mut self, by_length: &[usize], shares: &[Share]) -> Option<Assignment<'a>> {
        self.loads.fill(Load::default());
        self.shares.clone_from_slice(shares);
        let mut sequences = vec![Vec::new(); self.loads.len()];
        let mut left = self.left(by_length);
        let mut weighed = f64::INFINITY;
        for &id in by_length {
            let length = self.tokens[id].as_f64();
            if length < weighed * (1.0 - self.budget.reweighing) {
                weighed = length;
                self.weigh(&left);
            }
            left.take(id, self.tokens[id], &self.packers);
            sequences[self.take(id, self.budget.compared_replicas)?].push(id);
        }
        Some(Assignment::new(self.packers.clone(), self.class_of.clone(), sequences))
    }

    /// Adds sequences to those that each replica of a new round already has, which are longer; `late` is the time by
    /// which each replica ends later than its estimate.
    pub(super) fn add(
        &mut self,
        mut sequences: Vec<Vec<usize>>,
        late: Vec<Millis>,
        by_length: &[usize],
    ) -> Option<Assignment<'a>> {
        self.late = late;
        for (replica, ids) in sequences.iter().enumerate() {
            self.loads[replica] = self.load(replica, ids);
        }
        self.rank();
        for &id in by_length {
            sequences[self.take(id, self.budget.compared_replicas)?].push(id);
        }
        Some(Assignment::new(self.packers.clone(), self.class_of.clone(), sequences))
    }

    /// A replica with these sequences.
    pub(super) fn load(&self, replica: usize, ids: &[usize]) -> Load {
        let packer = &self.packers[self.class_of[replica]];
        let mut load = ids.iter().fold(Load::default(), |load, &id| load.grown(id, self.tokens[id], packer));
        load.end = self.end_of(replica, load);
        load
    }

    fn left(&self, ids: &[usize]) -> Left {
        let ms = |packer: &Packer| ids.iter().map(|&id| packer.sequence_ms()[id]).sum();
        Left { tokens: ids.iter().map(|&id| self.tokens[id]).sum(), ms: self.packers.iter().map(ms).collect() }
    }

    /// Estimates each replica's end again, at the average rates of the sequences left.
    fn weigh(&mut self, left: &Left) {
        self.rates = left.ms.iter().map(|ms| (ms.0 / left.tokens.as_f64()).max(0.0)).collect();
        for replica in 0..self.loads.len() {
            self.loads[replica].end = self.end_of(replica, self.loads[replica]);
        }
        self.rank();
    }

    /// Estimated end of a replica with this load and the remainder of its share.
    fn end_of(&self, replica: usize, load: Load) -> Millis {
        let class = self.class_of[replica];
        let expected = self.shares[replica].expected;
        load.end_with(expected, self.rates[class], &self.packers[class]) * self.ratios[class] + self.late[replica]
    }

    /// Orders the replicas of each class by time.
    fn rank(&mut self) {
        let replicas = |class: usize| self.replicas(class).map(|replica| (replica, self.loads[replica].end));
        self.rankings = (0..self.packers.len()).map(|class| Ranking::new(replicas(class))).collect();
    }

    /// Compares the estimates of the last round with the packed times.
    pub(super) fn learn(&mut self, packed: &Assignment) {
        for class in 0..self.packers.len() {
            let took: Millis = self.replicas(class).map(|replica| packed.times[replica]).sum();
            let estimated: Millis = self.replicas(class).map(|replica| self.loads[replica].end).sum();
            if estimated > Millis::ZERO {
                self.ratios[class] *= took.0 / estimated.0;
            }
        }
    }

    fn replicas(&self, class: usize) -> Range<usize> {
        replicas(&self.class_of, class)
    }

    /// Estimated end of the last replica.
    pub(super) fn end(&self) -> Option<Millis> {
        self.loads.iter().map(|load| load.end).max()
    }

    /// Whether the strategy has more than one class.
    pub(super) fn is_mixed(&self) -> bool {
        self.packers.len() > 1
    }

    /// Assigns a sequence to the replica that then ends earliest, among `looked_at` replicas of each class; none if no
    /// replica admits it.
    pub(super) fn take(&mut self, id: usize, looked_at: usize) -> Option<usize> {
        let tokens = self.tokens[id];
        let mut best: Option<(Load, usize)> = None;
        for class in (0..self.packers.len()).filter(|&class| self.packers[class].cost().admits(tokens)) {
            let adds = self.least_added(class, id);
            let open = |replica: &usize| self.loads[*replica].tokens() + tokens <= self.shares[*replica].most;
            for replica in self.rankings[class].earliest().filter(open).take(looked_at) {
                // The replicas after this one end no earlier, and the sequence adds at least as much to each.
                if best.is_some_and(|(best, _)| self.loads[replica].end + adds >= best.end) {
                    break;
                }
                let mut load = self.loads[replica].grown(id, tokens, &self.packers[class]);
                load.end = self.end_of(replica, load);
                if best.is_none_or(|(best, other)| (load.end, replica) < (best.end, other)) {
                    best = Some((load, replica));
                }
            }
        }
        let (load, replica) = best?;
        self.rankings[self.class_of[replica]].change(replica, self.loads[replica].end, load.end);
        self.loads[replica] = load;
        Some(replica)
    }

    /// The least time that a sequence adds to the end of a class's replicas: its own time, less the time of the share
    /// that it replaces.
    fn least_added(&self, class: usize, id: usize) -> Millis {
        let packer = &self.packers[class];
        let replaced = Millis(self.rates[class] * self.tokens[id].as_f64());
        let added = packer.least_added(packer.sequence_ms()[id] - replaced);
        added * (packer.cost().slowest_multiplier() * self.ratios[class])
    }

    pub(super) fn too_long(&self, sequence: usize, strategy: &Strategy) -> Error {
        let widest = self.packers.iter().map(Packer::cost).max_by_key(|cost| cost.longest());
        Error::SequenceTooLong {
            sequence,
            tokens: self.tokens[sequence],
            admitting: Admitting::Strategy(strategy.clone()),
            limit: widest.map(ClassCost::longest).unwrap_or_default(),
            scheme: widest.map(ClassCost::scheme),
        }
    }
}

/// The sequences not yet assigned.
struct Left {
    tokens: Tokens,
    /// Their time on each class.
    ms: Vec<Millis>,
}

impl Left {
    fn take(&mut self, id: usize, tokens: Tokens, packers: &[Packer]) {
        self.tokens = self.tokens - tokens;
        self.ms.iter_mut().zip(packers).for_each(|(ms, packer)| *ms = *ms - packer.sequence_ms()[id]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostModel, preset};
    use crate::spec::{CapacityBudget, Cluster, SearchBudget};

    fn capacities(least_ms: f64) -> Capacities {
        let mut profile = preset("llama-32b-a800").unwrap();
        profile.schemes.iter_mut().for_each(|entry| entry.least_ms = least_ms);
        Capacities::new(CostModel::new(profile, Cluster::new(64, 8).unwrap()), CapacityBudget::ONLINE)
    }

    #[test]
    fn no_sequence_adds_less_than_its_stated_price() {
        for least_ms in [0.0, 300.0, 900.0] {
            no_sequence_adds_less(&capacities(least_ms));
        }
    }

    fn no_sequence_adds_less(capacities: &Capacities) {
        let lengths: Vec<i64> = (0..60).map(|i| 7_000 - 113 * i).collect();
        let batch = Batch::new(&lengths, None).unwrap();
        let assigner =
            Assigner::new(&batch, &"1x<tp16>+2x<tp8,pp2>+4x<tp4>".parse().unwrap(), capacities, &SearchBudget::ONLINE)
                .unwrap();
        for (scheme, replica) in [(0, 0), (1, 1), (2, 3)] {
            let mut load = Load::default();
            for id in 0..lengths.len() {
                let mut grown = load.grown(id, batch.tokens()[id], &assigner.packers[scheme]);
                grown.end = assigner.end_of(replica, grown);
                assert!(grown.end.0 >= (load.end + assigner.least_added(scheme, id)).0 - 1e-6, "{scheme} {id}");
                load = grown;
            }
        }
    }

    /// The replica of `<tp8>` ends at its least time, with work for a part of it. That of `<tp16>` ends earlier, and later
    /// than that with one more sequence, whose own time on `<tp8>` is longer than the difference.
    #[test]
    fn a_sequence_goes_where_it_fits_into_the_least_time() {
        let mut profile = preset("llama-32b-a800").unwrap();
        let narrow = profile.schemes.iter_mut().find(|entry| entry.scheme.to_string() == "<tp8>").unwrap();
        narrow.least_ms = 2_000.0;
        let cost = CostModel::new(profile, Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(cost, CapacityBudget::ONLINE);
        let batch = Batch::new(&[1_000, 14_000, 5_000], None).unwrap();
        let strategy = "1x<tp16>+1x<tp8>".parse().unwrap();
        let mut assigner = Assigner::new(&batch, &strategy, &capacities, &SearchBudget::ONLINE).unwrap();
        let loads = [assigner.load(0, &[1]), assigner.load(1, &[0])];
        for (class, load) in loads.into_iter().enumerate() {
            assigner.rankings[class].change(class, Millis::ZERO, load.end);
            assigner.loads[class] = load;
        }
        let own = assigner.packers[1].sequence_ms()[2];
        let elsewhere = assigner.load(0, &[1, 2]).end;
        assert!(loads[0].end < loads[1].end && loads[1].end < elsewhere, "{loads:?} {elsewhere:?}");
        assert!(elsewhere < loads[1].end + own, "{loads:?} {elsewhere:?} {own:?}");
        assert_eq!(assigner.take(2, 2), Some(1));
        assert!(assigner.loads[1].end.is_close(loads[1].end));
    }

    #[test]
    fn no_replica_takes_more_than_its_share() {
        let capacities = capacities(0.0);
        let lengths: Vec<i64> = (0..300).map(|i| 3_000 - 9 * i).collect();
        let (batch, by_length) = (Batch::new(&lengths, None).unwrap(), (0..300).collect::<Vec<usize>>());
        let mut assigner =
            Assigner::new(&batch, &"2x<tp8>".parse().unwrap(), &capacities, &SearchBudget::ONLINE).unwrap();
        let most = Tokens(200_000);
        let shares = [Share { expected: most, most }, Share { expected: Tokens(297_000), ..Share::default() }];
        let assigned_again = assigner.by_shares(&by_length, &shares).unwrap();
        let assigned =
            |replica: usize| assigned_again.sequences[replica].iter().map(|&id| batch.tokens()[id]).sum::<Tokens>();
        assert!(assigned(0) <= most && assigned(0).0 > 199_000, "{} {}", assigned(0), assigned(1));
        // The replica with fewer tokens has the longer sequences: both end at about the same time.
        let mean = |replica: usize| assigned(replica).0 / assigned_again.sequences[replica].len() as u64;
        assert!(mean(0) > mean(1), "{} {}", mean(0), mean(1));
        let none = [Share { expected: Tokens(1), most: Tokens(1) }; 2];
        assert!(assigner.by_shares(&by_length, &none).is_none());
    }
}
