//! The placing of groups of ranks on pipelines (`stragglers`).
//!
//! Greedily: each group, the fastest first, goes to the pipeline of least speed, with any number of groups or as many as the
//! others have, and slower ones stay idle one after another.
//!
//! In every way: all sharings of each kind of group are tried, but for the kind with the most groups. Given the others, a plan
//! beats the best one exactly if its pipelines take all micro-batches before the best one ends. A dynamic program over the
//! pipelines finds the most micro-batches, with the speed of a pipeline in place of a split that is not known yet; the splits
//! of its answer are then made, and it runs again.

use std::collections::BTreeMap;
use std::rc::Rc;

use hydraulis_core::tuning::{StageSplit, share};

use super::stragglers::{Best, Kind, Search, float};

/// Most ways to share the groups of one kind that are listed.
const MOST_WAYS: u64 = 20_000;

/// Operations that a list for a pipeline takes, or a look for its split, in addition to those for its groups.
const LIST_WORK: usize = 20;

/// Operations that a split of layers takes, in addition to those for its stages.
const SPLIT_WORK: usize = 200;

/// The placing of one set of groups.
pub(super) struct Placing<'a, 'b> {
    search: &'b mut Search<'a>,
    /// Kinds of groups and their number, slowest first, but the kind with the most groups last.
    kinds: Vec<(Kind, usize)>,
    /// The splits of pipelines, by their groups of all kinds but the last, and by the number of that one.
    splits: BTreeMap<Vec<usize>, Vec<Option<KnownSplit>>>,
}

/// The split of a pipeline; none if its groups have no room for the layers.
type KnownSplit = Option<Rc<StageSplit>>;

impl<'a, 'b> Placing<'a, 'b> {
    /// The placing of groups of these kinds, slowest first.
    pub(super) fn new(search: &'b mut Search<'a>, mut kinds: Vec<(Kind, usize)>) -> Placing<'a, 'b> {
        if let Some(most) = (0..kinds.len()).max_by_key(|&place| kinds[place].1) {
            kinds[most..].rotate_left(1);
        }
        Placing { search, kinds, splits: BTreeMap::new() }
    }

    /// Judges plans of all groups, and without the slowest ones.
    pub(super) fn place_greedily(&mut self) {
        let mut fastest_first: Vec<usize> = Vec::new();
        for (kind, &(_, number)) in self.kinds.iter().enumerate() {
            fastest_first.extend(std::iter::repeat_n(kind, number));
        }
        let key = |kind: usize| self.kinds[kind].0.key();
        fastest_first.sort_by_key(|&kind| key(kind));
        fastest_first.truncate(self.search.inputs.most_groups());
        while fastest_first.len() >= self.search.inputs.dp && self.search.left > 0 {
            let speed: f64 = fastest_first.iter().map(|&kind| 1.0 / self.kinds[kind].0.time).sum();
            if !self.may_beat(self.search.inputs.work() / speed) {
                break;
            }
            // Pipelines of as many groups are slower, and have room where others have not.
            for most in [usize::MAX, fastest_first.len().div_ceil(self.search.inputs.dp)] {
                let pipelines = self.greedy(&fastest_first, most);
                self.judge(&pipelines);
            }
            fastest_first.pop();
        }
    }

    /// Pipelines of these groups in order, each of which goes to the pipeline of least speed with fewer than `most` groups.
    fn greedy(&mut self, groups: &[usize], most: usize) -> Vec<Vec<usize>> {
        let mut pipelines = self.empty();
        self.search.spend((groups.len() + self.kinds.len()) * pipelines.len());
        // The speed of each pipeline, and its number of groups.
        let mut so_far = vec![(0.0_f64, 0); pipelines.len()];
        for &kind in groups {
            let free = (0..pipelines.len()).filter(|&place| so_far[place].1 < most);
            let slowest = free.min_by(|&one, &other| so_far[one].0.total_cmp(&so_far[other].0));
            let slowest = slowest.expect("the pipelines have room for all groups");
            pipelines[slowest][kind] += 1;
            so_far[slowest] = (so_far[slowest].0 + 1.0 / self.kinds[kind].0.time, so_far[slowest].1 + 1);
        }
        pipelines
    }

    /// Finds the best plan, as long as operations are left.
    pub(super) fn place_in_every_way(&mut self) {
        let mut pipelines = self.empty();
        self.place(0, &mut pipelines);
    }

    /// Pipelines without a group.
    fn empty(&self) -> Vec<Vec<usize>> {
        vec![vec![0; self.kinds.len()]; self.search.inputs.dp]
    }

    /// Tries every number of groups of `kind` and later kinds on each pipeline, as long as the best plan may be beaten.
    fn place(&mut self, kind: usize, pipelines: &mut [Vec<usize>]) {
        let (Some(&(Kind { time, .. }, number)), later) = (self.kinds.get(kind), &self.kinds[kind + 1..]) else {
            return;
        };
        if later.is_empty() {
            return self.place_last(pipelines);
        }
        self.search.spend(pipelines.len() * self.kinds.len());
        let placed: f64 = pipelines.iter().map(|counts| self.speed(counts)).sum();
        let later: f64 = later.iter().map(|(kind, number)| float(*number as u64) / kind.time).sum();
        for used in (0..=number).rev() {
            if !self.may_beat(self.search.inputs.work() / (placed + float(used as u64) / time + later)) {
                break;
            }
            if ways(used, pipelines.len()) > MOST_WAYS {
                continue;
            }
            for shares in self.shares(used).iter() {
                if self.search.left == 0 {
                    return;
                }
                self.search.spend(pipelines.len() * (kind + 1));
                // Pipelines are interchangeable: only those in descending order are tried.
                let order = |place: usize| (&pipelines[place][..kind], shares[place]);
                let is_ordered = (1..pipelines.len()).all(|place| order(place - 1) >= order(place));
                let groups = |place: usize| pipelines[place].iter().sum::<usize>() + shares[place];
                if is_ordered && (0..pipelines.len()).all(|place| groups(place) <= self.search.inputs.most_stages()) {
                    pipelines.iter_mut().zip(shares).for_each(|(pipeline, &own)| pipeline[kind] = own);
                    self.place(kind + 1, pipelines);
                }
                for pipeline in pipelines.iter_mut() {
                    pipeline[kind] = 0;
                }
            }
        }
    }

    /// The ways to share this number of groups among the pipelines.
    fn shares(&mut self, used: usize) -> Rc<Vec<Vec<usize>>> {
        let dp = self.search.inputs.dp;
        if !self.search.compositions.contains_key(&used) {
            let all = compositions(used, dp);
            self.search.spend(all.len() * dp * LIST_WORK);
            self.search.compositions.insert(used, Rc::new(all));
        }
        let all = Rc::clone(&self.search.compositions[&used]);
        self.search.spend(all.len() * dp);
        all
    }

    /// Shares the groups of the last kind as long as a sharing beats the best plan: the result is the best one.
    fn place_last(&mut self, pipelines: &mut [Vec<usize>]) {
        let last = self.kinds.len() - 1;
        let placed: usize = pipelines.iter().flatten().sum();
        // A pipeline has at least as many micro-batches as groups.
        let Some(more) = self.search.inputs.mbn.checked_sub(placed as u64) else { return };
        let number = usize::try_from(more).map_or(self.kinds[last].1, |more| more.min(self.kinds[last].1));
        while self.search.left > 0 {
            let sums = (number + 1) * (number + 2) / 2;
            self.search.spend(pipelines.len() * (LIST_WORK + sums + self.kinds.len()));
            let each: Vec<Vec<Option<u64>>> = pipelines.iter().map(|counts| self.most(counts, number)).collect();
            let (most, shares) = most_micro_batches(&each);
            if most < self.search.inputs.mbn {
                return;
            }
            pipelines.iter_mut().zip(shares).for_each(|(pipeline, own)| pipeline[last] = own);
            let is_known = pipelines.iter().all(|counts| self.known(counts).is_some());
            // Splits that are known from now on take the place of speeds.
            let is_better = self.judge(pipelines);
            for pipeline in pipelines.iter_mut() {
                pipeline[last] = 0;
            }
            if is_known && !is_better {
                return;
            }
        }
    }

    /// The most micro-batches that a pipeline takes before the best plan ends, by its number of groups of the last kind; none
    /// if it has no split, or takes fewer than its groups.
    ///
    /// A pipeline without a known split counts as if its layers could be divided.
    fn most(&self, counts: &[usize], number: usize) -> Vec<Option<u64>> {
        let mbn = self.search.inputs.mbn;
        let best = self.search.best.as_ref().map_or(f64::INFINITY, |best| best.objective);
        let others = &counts[..counts.len() - 1];
        let known = self.splits.get(others);
        let (groups, speed) = (counts.iter().sum::<usize>(), self.speed(counts));
        let (more, layers) = (1.0 / self.kinds[others.len()].0.time, float(self.search.inputs.layers));
        let most = |count: usize| {
            let most = match known.and_then(|known| known[count].as_ref()) {
                Some(split) => before(best, split.as_ref()?.time),
                None => below(best / layers * (speed + more * float(count as u64)) * (1.0 + 1e-12)),
            };
            (groups + count > 0 && most >= (groups + count) as u64).then_some(most.min(mbn))
        };
        let stages = self.search.inputs.most_stages();
        (0..=number).map(|count| most(count).filter(|_| groups + count <= stages)).collect()
    }

    /// Whether an objective is below that of the best plan.
    fn may_beat(&self, objective: f64) -> bool {
        self.search.best.as_ref().is_none_or(|best| objective < best.objective)
    }

    /// Layers per time of a pipeline whose layers can be divided.
    fn speed(&self, counts: &[usize]) -> f64 {
        self.kinds.iter().zip(counts).map(|((kind, _), &count)| float(count as u64) / kind.time).sum()
    }

    /// Keeps the plan of these pipelines if it is the best, and returns whether it is.
    fn judge(&mut self, pipelines: &[Vec<usize>]) -> bool {
        let splits: Option<Vec<Rc<StageSplit>>> = pipelines.iter().map(|counts| self.split(counts)).collect();
        let Some(splits) = splits else { return false };
        // The core gives the last micro-batches out one by one.
        self.search.spend(splits.len() * (LIST_WORK + splits.len()));
        let times: Vec<f64> = splits.iter().map(|split| split.time).collect();
        let least: Vec<u64> = splits.iter().map(|split| split.layers.len() as u64).collect();
        let Some((objective, micro_batches)) = share(&times, &least, self.search.inputs.mbn) else { return false };
        let is_better = self.may_beat(objective);
        if is_better {
            let pipelines = pipelines.iter().map(|counts| self.stages(counts)).collect();
            let layers = splits.iter().map(|split| split.layers.clone()).collect();
            self.search.best = Some(Best { objective, pipelines, layers, micro_batches });
        }
        is_better
    }

    fn split(&mut self, counts: &[usize]) -> KnownSplit {
        self.search.spend(LIST_WORK + counts.len());
        if let Some(known) = self.known(counts) {
            return known.clone();
        }
        let stages: usize = counts.iter().sum();
        self.search.spend(SPLIT_WORK + stages * stages);
        let (&own, others) = counts.split_last()?;
        let split = self.search.pipeline(&self.stages(counts)).map(Rc::new);
        let number = self.kinds[others.len()].1;
        self.splits.entry(others.to_vec()).or_insert_with(|| vec![None; number + 1])[own] = Some(split.clone());
        split
    }

    fn known(&self, counts: &[usize]) -> Option<&KnownSplit> {
        let (&own, others) = counts.split_last()?;
        self.splits.get(others)?[own].as_ref()
    }

    /// The groups of a pipeline, slowest first.
    fn stages(&self, counts: &[usize]) -> Vec<Kind> {
        let kinds = self.kinds.iter().zip(counts);
        let mut stages: Vec<Kind> = kinds.flat_map(|(&(kind, _), &count)| std::iter::repeat_n(kind, count)).collect();
        stages.sort_by_key(|kind| std::cmp::Reverse(kind.key()));
        stages
    }
}

/// The most micro-batches of this time that end before `best`.
fn before(best: f64, time: f64) -> u64 {
    let near = below(best / time * (1.0 + 1e-12));
    // The product is what the objective compares.
    if time * float(near) < best { near } else { near.saturating_sub(1) }
}

/// The greatest whole number below `x`; 0 without one.
fn below(x: f64) -> u64 {
    super::layer_choice::whole((x.ceil() - 1.0).max(0.0))
}

/// The most micro-batches of all pipelines together, and the groups that each of them gets.
///
/// # Arguments
///
/// - `most`: the most micro-batches of each pipeline, by its number of groups; none for a number that it cannot have
fn most_micro_batches(most: &[Vec<Option<u64>>]) -> (u64, Vec<usize>) {
    let number = most.first().map_or(0, Vec::len);
    // The most micro-batches of the pipelines so far, by the groups that they have together.
    let mut sums: Vec<Option<u64>> = vec![None; number];
    if let Some(first) = sums.first_mut() {
        *first = Some(0);
    }
    let mut chosen: Vec<Vec<usize>> = Vec::with_capacity(most.len());
    for of_pipeline in most {
        let mut next: Vec<Option<u64>> = vec![None; number];
        let mut own_groups = vec![0; number];
        for (before, sum) in sums.iter().enumerate() {
            let Some(sum) = sum else { continue };
            for (own, more) in of_pipeline[..number - before].iter().enumerate() {
                let Some(more) = more else { continue };
                if next[before + own].is_none_or(|known| known < sum + more) {
                    next[before + own] = Some(sum + more);
                    own_groups[before + own] = own;
                }
            }
        }
        sums = next;
        chosen.push(own_groups);
    }
    let Some((mut groups, found)) =
        (0..number).filter_map(|groups| Some((groups, sums[groups]?))).max_by_key(|&(_, sum)| sum)
    else {
        return (0, vec![0; most.len()]);
    };
    let mut shares = vec![0; most.len()];
    for (share, own_groups) in shares.iter_mut().zip(&chosen).rev() {
        *share = own_groups[groups];
        groups -= *share;
    }
    (found, shares)
}

/// Number of ways to write `total` as an ordered sum of `parts` numbers, as far as it is below a great bound.
fn ways(total: usize, parts: usize) -> u64 {
    let factors = (1..parts as u64).map(|place| (total as u64 + place, place));
    factors.fold(1, |ways, (more, less)| ways.saturating_mul(more) / less)
}

/// All ways to write `total` as an ordered sum of `parts` numbers.
fn compositions(total: usize, parts: usize) -> Vec<Vec<usize>> {
    if parts == 1 {
        return vec![vec![total]];
    }
    (0..=total)
        .flat_map(|own| compositions(total - own, parts - 1).into_iter().map(move |rest| [vec![own], rest].concat()))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::straggler_settings::Inputs;
    use super::*;

    fn inputs(dp: usize, layers: u64, mbn: u64, memory: u64) -> Inputs {
        let document = json!({
            "dp": dp, "tp": 2, "layers": layers, "mbn": mbn, "hetero_tp_alpha": [1.0, 2.0],
            "memory_k": [13, 12, 11, 10], "memory_embedding": 3, "memory_extra": 1, "memory_bound": memory,
            "memory_safe_gap": 0, "used_devices_sr": {},
        });
        serde_json::from_value(document).unwrap()
    }

    /// The groups as kinds with their numbers, slowest first.
    fn kinds(mut groups: Vec<(u32, usize)>) -> Vec<(Kind, usize)> {
        groups.sort_unstable_by(|one, other| other.cmp(one));
        let kinds = groups.chunk_by(|one, other| one == other);
        kinds.map(|same| (Kind { time: f64::from(same[0].0) / 2.0, ranks: same[0].1 }, same.len())).collect()
    }

    /// The least objective of all ways to give each group to a pipeline or to leave it idle.
    pub(in super::super) fn least(inputs: &Inputs, groups: &[Kind], pipelines: &mut Vec<Vec<Kind>>) -> Option<f64> {
        let Some((&group, rest)) = groups.split_first() else {
            let search = Search::new(inputs);
            let splits: Option<Vec<StageSplit>> = pipelines.iter().map(|stages| search.pipeline(stages)).collect();
            let (times, numbers): (Vec<f64>, Vec<u64>) =
                splits?.iter().map(|split| (split.time, split.layers.len() as u64)).unzip();
            return Some(share(&times, &numbers, inputs.mbn)?.0);
        };
        let mut best = least(inputs, rest, pipelines);
        for place in 0..pipelines.len() {
            pipelines[place].push(group);
            let found = least(inputs, rest, pipelines);
            pipelines[place].pop();
            best = [best, found].into_iter().flatten().min_by(f64::total_cmp);
        }
        best
    }

    proptest! {
        #[test]
        fn no_other_placing_is_better(
            groups in vec((2..6_u32, 1..3_usize), 1..7),
            dp in 1..4_usize,
            layers in 1..9_u64,
            mbn in 1..12_u64,
            memory in 10..90_u64,
            is_greedy_first: bool,
        ) {
            let inputs = inputs(dp, layers, mbn, memory);
            let kinds = kinds(groups);
            let mut search = Search::new(&inputs);
            if is_greedy_first {
                Placing::new(&mut search, kinds.clone()).place_greedily();
            }
            Placing::new(&mut search, kinds.clone()).place_in_every_way();
            let each: Vec<Kind> = kinds.iter().flat_map(|&(kind, number)| vec![kind; number]).collect();
            let best = least(&inputs, &each, &mut vec![Vec::new(); dp]);
            prop_assert_eq!(search.best.as_ref().map(|best| best.objective), best);
            if let Some(best) = search.best {
                prop_assert_eq!(best.micro_batches.iter().sum::<u64>(), mbn);
                prop_assert!(best.layers.iter().all(|layers_of| layers_of.iter().sum::<u64>() == layers));
            }
        }

        #[test]
        fn shares_have_the_most_micro_batches(most in vec(vec(proptest::option::of(0..9_u64), 4), 1..4)) {
            let (found, shares) = most_micro_batches(&most);
            let sum = |shares: &[usize]| most.iter().zip(shares).map(|(most, &own)| most[own]).sum::<Option<u64>>();
            let all = (0..4).flat_map(|groups| compositions(groups, most.len()));
            let best = all.filter_map(|shares| sum(&shares)).max();
            prop_assert_eq!(found, best.unwrap_or(0));
            prop_assert!(best.is_none() || sum(&shares) == best);
        }
    }
}
