//! Ranks every mix of a few schemes by an estimate.
//!
//! Local search moves by one scheme at a time and may end in a worse optimum than a mix that a plain list has. A survey
//! sees all mixes: dual prices of the bound rule most of them out, since by the time of the best plan their replicas
//! together have a lower value than the batch's price. The others are estimated with the batch in portions: each long sequence
//! by itself, short ones of about equal length together, and smaller portions towards the end, so that replicas end
//! together. Where replicas have few sequences each, first fit decides which of these estimates are too late.

mod rounds;

use crate::capacity::ClassCapacity;
use crate::construct::dispatch::FirstFit;
use crate::construct::pack::Packer;
use crate::search::task::Task;
use crate::spec::SurveyBudget;
use crate::units::{Millis, Tokens};

/// A survey for one batch.
pub(super) struct Survey<'a> {
    task: &'a Task<'a>,
    packers: Vec<Packer<'a>>,
    /// The portions of the batch, longest sequences first, on each class.
    portions: Vec<Vec<Portion>>,
    gpus: u64,
    budget: SurveyBudget,
}

/// Sequences that an estimate assigns together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Portion {
    tokens: Tokens,
    /// Time that its sequences add on the class.
    ms: Millis,
    /// Time of the longest of them.
    longest: Millis,
    /// Whether the class admits the longest of them.
    is_admitted: bool,
}

/// The replicas of a mix: classes with their numbers.
pub(super) type Mix = Vec<(usize, usize)>;

impl<'a> Survey<'a> {
    /// A survey for `gpus` ranks with the classes of `capacities`.
    pub(super) fn new(task: &'a Task<'a>, capacities: &[&'a ClassCapacity], gpus: u32) -> Survey<'a> {
        let budget = task.budget.survey;
        let packers = capacities.iter().map(|capacity| Packer::new(capacity, task.batch, task.budget.packing));
        let packers: Vec<Packer> = packers.collect();
        let ranges = portions(task, budget);
        let tokens = task.batch.tokens();
        let of_class = |packer: &Packer| {
            let portion = |ids: &&[usize]| Portion {
                tokens: ids.iter().map(|&id| tokens[id]).sum(),
                ms: ids.iter().map(|&id| packer.sequence_ms()[id]).sum(),
                longest: packer.sequence_ms()[ids[0]],
                is_admitted: packer.cost().admits(tokens[ids[0]]),
            };
            ranges.iter().map(portion).collect()
        };
        let portions = packers.iter().map(of_class).collect();
        Survey { task, packers, portions, gpus: u64::from(gpus), budget }
    }

    /// The mixes with estimates soon after `cutoff` at the latest, best first, of at most `most` estimates; empty if there are
    /// too many mixes to enumerate. Mixes whose replicas, at these values of each class, have together a lower value than
    /// the batch's price are ruled out.
    pub(super) fn promising(
        &self,
        batch_price: f64,
        of_replica: &[f64],
        cutoff: Millis,
        most: usize,
    ) -> Vec<(Millis, Mix)> {
        let Some(mut mixes) = self.mixes(batch_price, of_replica) else { return Vec::new() };
        mixes.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        mixes.truncate(most);
        let SurveyBudget { schemes, slack, slack_of_few, slack_of_first_fit, .. } = self.budget;
        let late = cutoff * (1.0 + slack_of_first_fit);
        let mut buffers = vec![Vec::new(); schemes];
        let mut first_fit = FirstFit::new(
            &self.packers,
            self.task.batch.tokens(),
            self.task.by_length(),
            self.task.budget.dispatch.first_fit,
        );
        let estimated = mixes.into_iter().filter_map(|(_, mix)| {
            if !first_fit.has_few(&mix) {
                return Some((self.estimate(&mix, cutoff * (1.0 + slack), &mut buffers)?, mix));
            }
            let estimate = self.estimate(&mix, cutoff * (1.0 + slack_of_few), &mut buffers)?;
            let end = first_fit.end(&mix, late.min(estimate)).unwrap_or(estimate);
            (end <= late).then_some((end, mix))
        });
        let mut promising: Vec<(Millis, Mix)> = estimated.collect();
        promising.sort();
        promising
    }

    /// Every mix that leaves no ranks for one more of its replicas and is not ruled out, with its value.
    fn mixes(&self, batch_price: f64, of_replica: &[f64]) -> Option<Vec<(f64, Mix)>> {
        let classes = self.classes(of_replica);
        // The value of a rank of this class, the greatest of it and of each later one.
        let rates = classes.iter().map(|&class| self.rate(class, of_replica)).collect();
        let (counts, mixes) = (self.budget.counts, Vec::new());
        let mut enumeration = Enumeration { batch_price, of_replica, classes, rates, counts, mixes };
        let taken = (&mut Vec::new(), self.gpus, 0.0);
        self.extend(0, self.budget.schemes, taken, &mut enumeration).then_some(enumeration.mixes)
    }

    /// The classes of the greatest value per rank, and a few more that admit the longest sequence, in that order.
    fn classes(&self, of_replica: &[f64]) -> Vec<usize> {
        let mut classes: Vec<usize> = (0..self.packers.len()).collect();
        let rate = |class: usize| self.rate(class, of_replica);
        classes.sort_by(|&one, &other| rate(other).total_cmp(&rate(one)).then(one.cmp(&other)));
        let rest = classes.split_off(self.budget.classes.min(classes.len()));
        let admits = |class: &usize| self.portions[*class].first().is_some_and(|portion| portion.is_admitted);
        classes.extend(rest.into_iter().filter(admits).take(self.budget.wide_classes));
        classes
    }

    /// The value of a rank of a class.
    fn rate(&self, class: usize, of_replica: &[f64]) -> f64 {
        of_replica[class] / Tokens(self.ranks(class)).as_f64()
    }

    /// Adds each number of replicas of each later class; false if the budget ends first.
    fn extend(
        &self,
        first: usize,
        most: usize,
        (taken, left, value): (&mut Mix, u64, f64),
        enumeration: &mut Enumeration,
    ) -> bool {
        if enumeration.batch_price <= value && taken.iter().all(|&(class, _)| self.ranks(class) > left) {
            enumeration.mixes.push((value, taken.clone()));
        }
        if most == 0 {
            return true;
        }
        for place in first..enumeration.classes.len() {
            let class = enumeration.classes[place];
            if value + enumeration.rates[place] * Tokens(left).as_f64() < enumeration.batch_price {
                break;
            }
            let ranks = self.ranks(class);
            let all = left / ranks;
            // Of two schemes every number counts.
            let step = if taken.is_empty() { 1 } else { (self.gpus / (self.budget.steps * ranks)).max(1) };
            // Fewer replicas of the last scheme leave ranks for one more.
            let numbers = (1..=all).filter(|number| *number == all || most > 1 && (number - 1) % step == 0);
            for number in numbers.filter_map(|number| usize::try_from(number).ok()) {
                let Some(counts) = enumeration.counts.checked_sub(1) else { return false };
                enumeration.counts = counts;
                taken.push((class, number));
                let (rest, of_one) = (left - ranks * number as u64, enumeration.of_replica[class]);
                let grown = (&mut *taken, rest, value + of_one * Tokens(number as u64).as_f64());
                let is_whole = self.extend(place + 1, most - 1, grown, enumeration);
                taken.pop();
                if !is_whole {
                    return false;
                }
            }
        }
        true
    }

    /// Estimated end of a mix if each portion goes to the replica that then ends earliest; none if it is later than
    /// `cutoff` or a sequence is not admitted.
    fn estimate(&self, mix: &Mix, cutoff: Millis, groups: &mut [Vec<Replica>]) -> Option<Millis> {
        for (&(_, number), group) in mix.iter().zip(groups.iter_mut()) {
            group.clear();
            group.resize(number, Replica::default());
        }
        for place in 0..self.portions.first()?.len() {
            let mut best: Option<(Replica, usize)> = None;
            for (at, &(class, _)) in mix.iter().enumerate() {
                let (portion, earliest) = (self.portions[class][place], groups[at][0]);
                let adds = self.packers[class].least_added(portion.ms);
                let is_later = best.is_some_and(|(best, _)| earliest.end + adds >= best.end);
                if portion.is_admitted && !is_later {
                    let grown = earliest.with(portion, &self.packers[class]);
                    best = best.filter(|(best, _)| best.end <= grown.end).or(Some((grown, at)));
                }
            }
            let (grown, at) = best?;
            if grown.end > cutoff {
                return None;
            }
            replace_earliest(&mut groups[at], grown);
        }
        groups[..mix.len()].iter().flatten().map(|replica| replica.end).max()
    }

    fn ranks(&self, class: usize) -> u64 {
        self.packers[class].cost().scheme().ranks()
    }
}

/// The mixes found so far, and the numbers that may still be tried.
struct Enumeration<'a> {
    batch_price: f64,
    of_replica: &'a [f64],
    classes: Vec<usize>,
    rates: Vec<f64>,
    counts: usize,
    mixes: Vec<(f64, Mix)>,
}

/// A replica of an estimate.
#[derive(Clone, Copy, Default)]
struct Replica {
    ms: Millis,
    tokens: Tokens,
    longest: Millis,
    end: Millis,
}

impl Replica {
    fn with(self, portion: Portion, packer: &Packer) -> Replica {
        let (ms, tokens) = (self.ms + portion.ms, self.tokens + portion.tokens);
        let longest = self.longest.max(portion.longest);
        Replica { ms, tokens, longest, end: packer.estimate(ms, tokens, longest) }
    }
}

/// Replaces the earliest replica of a heap, its first one, by one that ends later.
fn replace_earliest(heap: &mut [Replica], later: Replica) {
    let mut place = 0;
    loop {
        let children = 2 * place + 1..(2 * place + 3).min(heap.len());
        let Some(child) = children.min_by_key(|&child| heap[child].end).filter(|&child| heap[child].end < later.end)
        else {
            break;
        };
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = later;
}

/// The batch's ids in portions, longest first: each has a part of the tokens that remain, and at least one sequence.
fn portions<'a>(task: &'a Task, budget: SurveyBudget) -> Vec<&'a [usize]> {
    let tokens = task.batch.tokens();
    let total: Tokens = tokens.iter().copied().sum();
    let (mut left, mut rest, mut portions) = (total.0, task.by_length(), Vec::new());
    while !rest.is_empty() {
        let most = (left / budget.portion).max(total.0 / budget.least_portion);
        let mut taken = 0;
        let fits = |id: &&usize| {
            taken += tokens[**id].0;
            taken <= most
        };
        let (portion, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        left -= portion.iter().map(|&id| tokens[id].0).sum::<u64>();
        portions.push(portion);
        rest = others;
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::bound::{AnyClass, Bounder};
    use crate::cancellation::NEVER_CANCELLED;
    use crate::capacity::Capacities;
    use crate::construct::usable_schemes;
    use crate::cost::{CostModel, preset};
    use crate::spec::{Cluster, SearchBudget, Strategy};
    use crate::units::count;

    /// The promising mixes with their estimates and planned times, and the time of the best plan so far.
    fn surveyed(lengths: &[i64], cutoff: f64, budget: &SearchBudget) -> Vec<(Millis, Millis, String)> {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let schemes = usable_schemes(&cost);
        let capacities = Capacities::new(cost, budget.capacity);
        let of_schemes: Vec<&ClassCapacity> =
            schemes.iter().map(|&scheme| capacities.scheme(scheme).unwrap()).collect();
        let batch = Batch::new(lengths, None).unwrap();
        let bounder = Bounder::new(&batch, budget.bound);
        let task = Task::new(&batch, std::slice::from_ref(&capacities), None, budget, NEVER_CANCELLED);
        let classes: Vec<AnyClass> = of_schemes.iter().map(|&capacity| AnyClass { capacity, level: 0 }).collect();
        let branches = bounder.of_any(&classes, &[64], Millis::ZERO).unwrap();
        let cutoff = branches.least() * cutoff;
        let (batch_price, of_replica) = branches.values(cutoff).unwrap();
        let survey = Survey::new(&task, &of_schemes, 64);
        let promising = survey.promising(batch_price, &of_replica, cutoff, budget.survey.estimates);
        let planned = promising.into_iter().take(40).map(|(estimated, mix)| {
            let replicas = mix.iter().flat_map(|&(class, number)| std::iter::repeat_n(schemes[class], number));
            let strategy = Strategy::new(replicas.collect()).unwrap();
            (estimated, task.evaluate(&strategy).unwrap().iteration_ms, strategy.to_string())
        });
        planned.collect()
    }

    /// Three long sequences of a batch of Wikipedia lengths, and short ones.
    fn three_long() -> Vec<i64> {
        [25_092, 24_617, 21_943].into_iter().chain((0..159).map(|i| 150 + 190_000 / (120 + 8 * i))).collect()
    }

    #[test]
    fn each_long_sequence_finds_its_replica() {
        let promising = surveyed(&three_long(), 1.5, &SearchBudget::ONLINE);
        assert!(promising[0].2.starts_with("3x<tp16>"), "{promising:?}");
        let least = promising.iter().map(|(_, planned, _)| *planned).min().unwrap();
        assert!(promising[..8].iter().any(|(_, planned, _)| *planned == least), "{promising:?}");
    }

    #[test]
    fn estimates_are_near_the_planned_times() {
        for (estimated, planned, mix) in surveyed(&three_long(), 1.3, &SearchBudget::ONLINE) {
            // A pipeline with few long micro-batches fills worse than estimated.
            let tolerance = if mix.contains("pp") { 0.2 } else { 0.03 };
            assert!((estimated.0 / planned.0 - 1.0).abs() < tolerance, "{mix}: {estimated:?} {planned:?}");
        }
    }

    #[test]
    fn mixes_of_two_schemes_have_every_number() {
        let cost = CostModel::new(preset("llama-13b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let (schemes, budget) = (usable_schemes(&cost), SearchBudget::ONLINE);
        let capacities = Capacities::new(cost, budget.capacity);
        let of_schemes: Vec<&ClassCapacity> =
            schemes.iter().map(|&scheme| capacities.scheme(scheme).unwrap()).collect();
        let batch = Batch::new(&three_long(), None).unwrap();
        let task = Task::new(&batch, std::slice::from_ref(&capacities), None, &budget, NEVER_CANCELLED);
        let survey = Survey::new(&task, &of_schemes, 64);
        let values: Vec<f64> = schemes.iter().map(|scheme| count(scheme.ranks())).collect();
        let mixes = survey.mixes(64.0, &values).unwrap();
        let place = |text: &str| schemes.iter().position(|scheme| scheme.to_string() == text).unwrap();
        let (narrow, wide) = (place("<tp2>"), place("<tp4>"));
        for number in 1..=15 {
            let mut mix = vec![(narrow, 32 - 2 * number), (wide, number)];
            mix.sort_unstable();
            let is_found = |found: &Mix| {
                let mut found = found.clone();
                found.sort_unstable();
                found == mix
            };
            assert!(mixes.iter().any(|(_, found)| is_found(found)), "{number}");
        }
    }

    #[test]
    fn a_survey_of_too_many_mixes_is_left_out() {
        let few = SurveyBudget { counts: 500, ..SurveyBudget::ONLINE };
        let budget = SearchBudget { survey: few, ..SearchBudget::ONLINE };
        assert!(surveyed(&three_long(), 1.3, &budget).is_empty());
        // By the time of the bound itself no mix of whole replicas is enough.
        assert!(surveyed(&three_long(), 1.0, &SearchBudget::ONLINE).is_empty());
    }

    #[test]
    fn a_portion_is_a_part_of_the_rest_in_the_batchs_order() {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let budget = SearchBudget::ONLINE;
        let capacities = Capacities::new(cost, budget.capacity);
        let batch = Batch::new(&three_long(), None).unwrap();
        let task = Task::new(&batch, std::slice::from_ref(&capacities), None, &budget, NEVER_CANCELLED);
        let portions = portions(&task, SurveyBudget { portion: 10, least_portion: 200, ..SurveyBudget::ONLINE });
        assert_eq!(portions.concat(), task.by_length());
        assert!(portions[..3].iter().all(|portion| portion.len() == 1));
        let tokens = |ids: &[usize]| ids.iter().map(|&id| batch.tokens()[id].0).sum::<u64>();
        let mut left = batch.total_tokens().0;
        for portion in portions {
            assert!(portion.len() == 1 || tokens(portion) <= (left / 10).max(batch.total_tokens().0 / 200));
            left -= tokens(portion);
        }
    }

    #[test]
    fn the_earliest_replica_is_the_first_of_its_heap() {
        let mut heap = vec![Replica::default(); 6];
        for end in [5, 3, 9, 4, 7, 8, 6, 10, 11, 5] {
            let later = Replica { end: heap[0].end + Millis(f64::from(end)), ..Replica::default() };
            replace_earliest(&mut heap, later);
            assert_eq!(heap.iter().map(|replica| replica.end).min(), Some(heap[0].end));
        }
    }
}
