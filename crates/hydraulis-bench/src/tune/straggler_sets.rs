//! Sets of groups of all nodes (`stragglers`): the ways to cut nodes into groups, and the sets that are worth a placing.

use std::collections::{BTreeMap, BTreeSet};

use super::straggler_settings::Inputs;
use super::stragglers::{Kind, float};

/// Most sets of groups of two parts that are compared for a kind of sets: about 10 ms.
const PAIRS: usize = 100_000;

/// Most groups that are copied for the sets that are kept: about 10 ms.
const COPIES: usize = 2_000_000;

/// Sets of groups that are kept for the next node if they are small: more rarely have a better plan.
const MOST_SETS: usize = 500;

/// Sets of groups that are kept if they are large.
const LEAST_SETS: usize = 4;

/// Sets of one number of groups that are kept in addition to those of the greatest speed.
const MOST_OF_A_NUMBER: usize = 8;

/// Groups as sorted kinds.
pub(super) type Groups = Vec<(u64, usize)>;

/// A set of groups with what its union with others needs.
struct Set {
    groups: Groups,
    /// Layers per time of all groups.
    speed: f64,
    /// A number that other sets do not have, and that of a union is the sum of both.
    mark: u64,
}

/// A union of two sets that is not made yet.
struct Pair<'a> {
    parts: (&'a Set, &'a Set),
    speed: f64,
}

impl Set {
    fn of(groups: Groups) -> Set {
        let speed = groups.iter().map(|&key| speed(key)).sum();
        let mark = groups.iter().fold(0, |sum: u64, &key| sum.wrapping_add(mark(key)));
        Set { groups, speed, mark }
    }
}

impl<'a> Pair<'a> {
    /// The pair with the speed of as many of its fastest groups as pipelines can have.
    fn new(parts: (&'a Set, &'a Set), most_groups: usize) -> Pair<'a> {
        let (one, other) = parts;
        let is_whole = one.groups.len() + other.groups.len() <= most_groups;
        let speed = if is_whole { one.speed + other.speed } else { fastest(&one.groups, &other.groups, most_groups) };
        Pair { parts, speed }
    }

    fn len(&self) -> usize {
        self.parts.0.groups.len() + self.parts.1.groups.len()
    }

    fn mark(&self) -> u64 {
        self.parts.0.mark.wrapping_add(self.parts.1.mark)
    }

    #[expect(clippy::stable_sort_primitive, reason = "it merges the two sorted parts, which the other sort does not")]
    fn united(&self) -> Set {
        let mut groups = [self.parts.0.groups.as_slice(), &self.parts.1.groups].concat();
        groups.sort();
        Set { groups, speed: self.parts.0.speed + self.parts.1.speed, mark: self.mark() }
    }
}

impl Inputs {
    /// Sets of groups of all nodes that may hold all layers, those with the least floor first.
    pub(super) fn sets(&self, nodes: &[Vec<f64>], with_equal_groups: bool) -> Vec<Groups> {
        let splits = |rates: &Vec<f64>| self.splits(rates, with_equal_groups).into_iter().map(Set::of).collect();
        let nodes: Vec<Vec<Set>> = nodes.iter().map(splits).collect();
        let ways: usize = nodes.iter().map(Vec::len).sum();
        let ranks: usize = nodes.iter().filter_map(|node| node.iter().map(|set| set.groups.len()).max()).sum();
        let most = (PAIRS / ways.max(1)).min(COPIES / (nodes.len() * ranks).max(1)).clamp(LEAST_SETS, MOST_SETS);
        let mut sets = vec![Set::of(Vec::new())];
        for node in &nodes {
            let all = sets.iter().flat_map(|set| node.iter().map(move |own| (set, own)));
            let all: Vec<Pair> = all.map(|parts| Pair::new(parts, self.most_groups())).collect();
            sets = most_promising(all, most);
        }
        let may_hold = |set: &Set| self.may_hold(set.groups.iter().map(|&(_, ranks)| ranks).collect());
        let groups = sets.into_iter().filter(may_hold).map(|set| set.groups);
        let mut floors: Vec<(f64, Groups)> = groups.map(|groups| (self.floor(&groups), groups)).collect();
        floors.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
        floors.into_iter().map(|(_, groups)| groups).collect()
    }

    /// Time of a layer on a group of this many ranks with this greatest rate.
    pub(super) fn kind(&self, ranks: usize, rate: f64) -> Option<Kind> {
        Some(Kind { time: self.time(ranks, rate)?, ranks })
    }

    /// The ways to cut a node's ranks into groups of a power of two up to the tensor-parallel degree.
    ///
    /// Within a group only the greatest rate counts, so groups of consecutive ranks by rate contain the best ones. Two equal
    /// groups that fit together into one mostly need more memory apart, and are left out unless they are asked for. Whole
    /// groups may stay idle later; a rank that has no time on its own is in no group.
    fn splits(&self, rates: &[f64], with_equal_groups: bool) -> BTreeSet<Groups> {
        let whole = |place: usize| self.kind(self.tp, rates[place]);
        // A node of equal ranks has whole groups.
        let is_even = !with_equal_groups && whole(0) == whole(rates.len() - 1);
        if let (true, Some(kind)) = (is_even && rates.len().is_multiple_of(self.tp), whole(0)) {
            return BTreeSet::from([vec![kind.key(); rates.len() / self.tp]]);
        }
        let mut found: Vec<BTreeSet<Groups>> = vec![BTreeSet::new(); rates.len() + 1];
        found[0].insert(Vec::new());
        let is_timed = self.kind(1, 1.0).is_some();
        for end in 1..=rates.len() {
            if !is_timed {
                let shorter = found[end - 1].clone();
                found[end].extend(shorter);
            }
            let sizes = (0..).map(|power| 1_usize << power).take_while(|&size| size <= self.tp && size <= end);
            for size in sizes {
                // Rates ascend, so the last rank of a group is its slowest.
                let Some(kind) = self.kind(size, rates[end - 1]) else { continue };
                let is_any = with_equal_groups || size == self.tp;
                let apart = found[end - size].iter().filter(|groups| is_any || !groups.contains(&kind.key()));
                let longer: Vec<Groups> = apart.map(|groups| with(groups, kind)).collect();
                found[end].extend(longer);
            }
        }
        found.pop().unwrap_or_default()
    }

    /// No plan on these groups ends earlier: all work over the speeds of the fastest ones.
    pub(super) fn floor(&self, groups: &Groups) -> f64 {
        self.work() / fastest(groups, &[], self.most_groups())
    }

    /// Whether groups of these many ranks may have room for the layers of all pipelines; if not, no plan exists on them.
    ///
    /// The widest groups take the places where a layer needs the least memory, whatever pipeline these are in, and layers are
    /// divided. The last stage of each pipeline also holds the embedding.
    pub(super) fn may_hold(&self, mut ranks: Vec<usize>) -> bool {
        ranks.sort_unstable_by(|one, other| other.cmp(one));
        let mut memory_k = self.memory_k.clone();
        let last = memory_k.last().copied().unwrap_or(f64::INFINITY);
        memory_k.sort_by(f64::total_cmp);
        let places = memory_k.iter().flat_map(|&by_layer| std::iter::repeat_n(by_layer, self.dp));
        let shares = ranks.iter().take(self.most_groups()).map(|&own| float(own as u64) / float(self.tp as u64));
        let layers: f64 = places.zip(shares).map(|(by_layer, share)| self.room() * share / by_layer).sum();
        let pipelines = float(self.dp as u64);
        let most = layers - pipelines * self.memory_embedding / last;
        most * (1.0 + 1e-9) >= pipelines * float(self.layers)
    }

    /// Memory of a whole group for layers and embeddings.
    pub(super) fn room(&self) -> f64 {
        self.memory_bound - self.memory_safe_gap - self.memory_extra
    }

    /// Most stages of a pipeline: each has its memory by layer, and a micro-batch. A stage may have no layer.
    pub(super) fn most_stages(&self) -> usize {
        let memories = self.memory_k.len();
        usize::try_from(self.mbn).map_or(memories, |mbn| mbn.min(memories))
    }

    /// Most groups that pipelines have together: each group is a stage, and each pipeline has a micro-batch for each stage.
    pub(super) fn most_groups(&self) -> usize {
        let most = self.most_stages().saturating_mul(self.dp);
        usize::try_from(self.mbn).map_or(most, |mbn| mbn.min(most))
    }

    /// Layers of all micro-batches.
    pub(super) fn work(&self) -> f64 {
        float(self.layers) * float(self.mbn)
    }
}

/// The unions of the greatest speed, and the fastest ones of each number of groups: fewer groups hold more layers.
fn most_promising(mut pairs: Vec<Pair>, most: usize) -> Vec<Set> {
    pairs.sort_by(|one, other| other.speed.total_cmp(&one.speed));
    let mut known: BTreeSet<u64> = BTreeSet::new();
    let mut kept: Vec<Set> = Vec::new();
    let mut of_numbers: BTreeMap<usize, Vec<Pair>> = BTreeMap::new();
    for pair in pairs {
        if kept.len() < most {
            if known.insert(pair.mark()) {
                kept.push(pair.united());
            }
            continue;
        }
        let of_number = of_numbers.entry(pair.len()).or_default();
        if of_number.len() < MOST_OF_A_NUMBER && known.insert(pair.mark()) {
            of_number.push(pair);
        }
    }
    let others: Vec<Pair> = of_numbers.into_values().flatten().collect();
    // Few groups and many alike if not all of them are kept.
    let (all, number) = (others.len(), others.len().min(most));
    kept.extend((0..number).map(|place| others[place * all / number].united()));
    kept
}

/// Groups with one more, in order.
pub(super) fn with(groups: &Groups, kind: Kind) -> Groups {
    let mut longer = groups.clone();
    longer.push(kind.key());
    longer.sort_unstable();
    longer
}

/// Layers per time of a group.
fn speed((time, _): (u64, usize)) -> f64 {
    1.0 / f64::from_bits(time)
}

/// Layers per time of this many groups of two lists, the fastest ones.
fn fastest(one: &[(u64, usize)], other: &[(u64, usize)], number: usize) -> f64 {
    let (mut one, mut other) = (one.iter().copied().peekable(), other.iter().copied().peekable());
    let next = || {
        // Times ascend.
        let is_first = one.peek().is_some_and(|key| other.peek().is_none_or(|next| key <= next));
        if is_first { one.next() } else { other.next() }
    };
    std::iter::from_fn(next).take(number).map(speed).sum()
}

/// The mark of a kind: a number that looks drawn by chance, so that sums of them differ.
fn mark((time, ranks): (u64, usize)) -> u64 {
    let mixed = (time ^ (ranks as u64).rotate_right(8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two pipelines of 8 layers, with at most two stages and room for 4 layers on a whole group.
    fn inputs(embedding: u32) -> Inputs {
        let document = json!({
            "dp": 2, "tp": 2, "layers": 8, "mbn": 8, "hetero_tp_alpha": [1.0, 2.0], "memory_k": [10, 10],
            "memory_embedding": embedding, "memory_extra": 1, "memory_bound": 43, "memory_safe_gap": 2,
            "used_devices_sr": {},
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn groups_without_room_for_all_layers_are_found() {
        assert!(inputs(0).may_hold(vec![2; 4]) && inputs(0).may_hold(vec![1, 2, 2, 2, 2]));
        assert!(!inputs(1).may_hold(vec![2; 4]), "the embedding takes the room of a layer");
        assert!(!inputs(0).may_hold(vec![2, 2, 2, 1, 1]), "a fifth group is no stage of two pipelines of two");
    }

    #[test]
    fn sets_have_room_and_are_different() {
        let nodes = vec![vec![1.0, 1.0, 1.0, 2.0]; 3];
        let sets = inputs(0).sets(&nodes, true);
        assert_eq!(sets.iter().collect::<BTreeSet<_>>().len(), sets.len());
        assert!(sets.iter().all(|set| set.iter().filter(|&&(_, ranks)| ranks == 2).count() >= 4), "{sets:?}");
        assert!(sets.len() > 3 && sets.is_sorted_by_key(|set| inputs(0).floor(set).to_bits()));
    }
}
