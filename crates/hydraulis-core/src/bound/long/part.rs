//! Programs with whole long sequences over the classes that matter.
//!
//! As in `bound::active`, a program over many classes has a part of them. Each other class gets the prices at which its
//! replicas have the least value while no sequence that is not long costs less on it than on the classes of the part. If
//! a replica then has a greater value than the price of its ranks, its class joins the part. The proof counts every class at its prices.

use crate::bound::active::{BETTER, least_value};
use crate::bound::batch_sums::{Price, least_price};
use crate::bound::long::program::{LongPrices, LongProgram};
use crate::bound::long::relaxation::{LongRelaxation, LongSolution};
use crate::bound::long::replica::Replica;
use crate::units::Millis;

/// Whether the program at `time` proves that time impossible, and its solution. With many classes `program.active` is
/// the part of them that it has, and grows.
pub(super) fn prove(program: &mut LongProgram, time: Millis) -> (bool, LongSolution) {
    let replicas = program.replicas_by(time);
    if program.active.is_empty() {
        let solution = LongRelaxation::new(program, &replicas).solve();
        return (program.is_impossible(&solution.prices, &replicas), solution);
    }
    let mut rounds = program.budget.class_rounds;
    loop {
        let (part, of_part) = program.part(&replicas);
        let found = LongRelaxation::new(&part, &of_part).solve();
        let is_part_proven = part.is_impossible(&found.prices, &of_part);
        let (per_rank, prices) = (found.per_rank, program.with_least_values(time, &found.prices, &replicas));
        let mut used = vec![0.0; replicas.len()];
        program.active.iter().zip(&found.used).for_each(|(&class, own)| used[class] = *own);
        // A batch that fits on a part of the classes fits on all.
        let is_proven = is_part_proven && program.is_impossible(&prices, &replicas);
        let dearer = if is_proven || !is_part_proven || rounds == 0 {
            Vec::new()
        } else {
            program.dearer(&prices, &replicas, per_rank)
        };
        if dearer.is_empty() {
            return (is_proven, LongSolution { prices, used, per_rank });
        }
        rounds -= 1;
        program.active.extend(dearer);
        program.active.sort_unstable();
    }
}

impl<'a> LongProgram<'a> {
    /// The program over the active classes, with their replicas.
    fn part(&self, replicas: &[Replica]) -> (LongProgram<'a>, Vec<Replica>) {
        let classes = self.active.iter().map(|&class| self.classes[class].clone()).collect();
        let of_part = self.active.iter().map(|&class| replicas[class].clone()).collect();
        (LongProgram { classes, active: Vec::new(), ..self.clone() }, of_part)
    }

    /// These prices of the active classes, with prices of all others at which their replicas are worth least.
    fn with_least_values(&self, time: Millis, of_part: &LongPrices, replicas: &[Replica]) -> LongPrices {
        let (part, own) = self.part(replicas);
        let lines = part.lines(of_part, &own);
        let corners = self.long.others.corners(&lines);
        let priced = |class: usize| match self.active.binary_search(&class) {
            Ok(place) => of_part.classes[place],
            Err(_) => self.least_prices(class, time, &replicas[class], (&lines, &corners), &of_part.long),
        };
        LongPrices { classes: (0..replicas.len()).map(priced).collect(), long: of_part.long.clone() }
    }

    /// The prices of a class outside the part: the better of two, which differ in whether a long sequence may gain on
    /// the class.
    fn least_prices(
        &self,
        class: usize,
        time: Millis,
        replica: &Replica,
        (lines, corners): (&[Price], &[(f64, f64)]),
        long: &[f64],
    ) -> (f64, f64) {
        let last = self.long.others.at_most(replica.limit);
        let at_limit = last.and_then(|length| Some((length, least_price(length, lines)?)));
        let admitted = corners.iter().copied().filter(|(length, _)| *length <= replica.limit);
        let mut lengths: Vec<(f64, f64)> = admitted.chain(at_limit).collect();
        let by_end = self.classes[class].capacity_by(time, self.batch.sequences(), self.counted);
        let least = |lengths: &[(f64, f64)]| {
            let found = least_value(&self.classes[class], &by_end, lengths, self.price_steps);
            let prices = LongPrices { classes: vec![(found.work, found.tokens)], long: long.to_vec() };
            (self.pattern_at(prices.of(0), replica, 0.0).value, (found.work, found.tokens))
        };
        let gaining = least(&lengths);
        lengths.extend(replica.items.iter().map(|item| (item.tokens, long[item.group])));
        let even = least(&lengths);
        if even.0 < gaining.0 { even.1 } else { gaining.1 }
    }

    /// The classes outside the part whose replicas are worth more than their ranks cost, those worth most.
    fn dearer(&self, prices: &LongPrices, replicas: &[Replica], per_rank: f64) -> Vec<usize> {
        let others = (0..replicas.len()).filter(|class| self.active.binary_search(class).is_err());
        let above = |class: usize| {
            let own = self.pattern(class, &replicas[class], prices, 0.0).value;
            own / self.classes[class].ranks() - per_rank * (1.0 + BETTER)
        };
        let mut dearer: Vec<(f64, usize)> =
            others.map(|class| (above(class), class)).filter(|(above, _)| *above > 0.0).collect();
        dearer.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        dearer.truncate(self.budget.joining_classes);
        dearer.into_iter().map(|(_, class)| class).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::batch::Batch;
    use crate::bound::{AnyClass, Bounder, ProofRange};
    use crate::cancellation::NEVER_CANCELLED;
    use crate::capacity::Capacities;
    use crate::construct::usable_schemes;
    use crate::cost::{CostModel, CostProfile, Efficiency, device, preset};
    use crate::spec::{BoundBudget, CapacityBudget, CheckpointingKind, Cluster, LongBudget, Strategy};
    use crate::units::Millis;

    #[test]
    fn a_part_of_the_classes_proves_about_as_much_as_all() {
        let (model, cluster) = (preset("llama-7b-a800").unwrap().model.unwrap(), Cluster::new(16, 8).unwrap());
        let (kinds, on) = ([CheckpointingKind::None, CheckpointingKind::Full], device("H100").unwrap());
        let efficiency = Efficiency::shipped(&on).unwrap();
        let profile = CostProfile::analytic(&model, &cluster, &on, &kinds, &efficiency).unwrap();
        let capacities = Capacities::new(CostModel::new(profile, cluster), CapacityBudget::ONLINE);
        let schemes = usable_schemes(capacities.cost());
        let classes: Vec<AnyClass> =
            schemes.iter().map(|&scheme| AnyClass { capacity: capacities.scheme(scheme).unwrap(), level: 0 }).collect();
        let long = [30_000, 21_000, 16_000].into_iter().chain((0..60).map(|i| 300 + 17 * i)).collect();
        for lengths in [long, vec![9_000; 11]] {
            let batch = Batch::new(&lengths, None).unwrap();
            let of_long = |budget: BoundBudget, leading: usize| {
                let bounder = Bounder::new(&batch, budget);
                let branches = bounder.of_any(&classes, &[16], Millis::ZERO).unwrap();
                let (from, leading) = (branches.least(), (0..classes.len()).step_by(classes.len() / leading).collect());
                (
                    from,
                    bounder
                        .of_long(&classes, leading, 16, ProofRange { proven: from, until: from * 1.3 }, NEVER_CANCELLED)
                        .unwrap(),
                )
            };
            let budget =
                BoundBudget { long: LongBudget { class_rounds: 8, ..LongBudget::ONLINE }, ..BoundBudget::ONLINE };
            let (_, all) = of_long(BoundBudget { whole_classes: usize::MAX, pivots: 10_000, ..budget }, 1);
            let (from, part) = of_long(budget, 8);
            assert!(part > from * 1.005 && part <= from * 1.3, "{part:?} {from:?}");
            assert!((part.0 / all.0 - 1.0).abs() < 0.02, "{part:?} {all:?}");
            // No plan is shorter than a bound.
            for scheme in &schemes {
                let number = usize::try_from(16 / scheme.ranks()).unwrap();
                let Ok(strategy) = Strategy::new(vec![*scheme; number]) else { continue };
                let planner = crate::search::Planner::new(
                    capacities.cost().profile().clone(),
                    capacities.cost().cluster().clone(),
                    Some(vec![strategy]),
                );
                let planned = planner.and_then(|planner| planner.plan(&batch));
                assert!(planned.is_err() || planned.unwrap().iteration_ms >= part * (1.0 - 1e-9), "{scheme}");
            }
        }
    }
}
