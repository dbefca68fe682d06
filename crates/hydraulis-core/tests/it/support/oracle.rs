//! The exact optimum of small instances, by exhaustive search: the reference for bound and plan.

use hydraulis_core::cost::{ClassCost, CostModel};
use hydraulis_core::pipeline::{StageTimes, simulate};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{Cluster, Scheme, Strategy};
use hydraulis_core::{Millis, Tokens};

/// The least iteration time over all strategies of `planner`, placements, assignments and ordered packings; infinite if
/// some sequence fits nowhere.
pub(crate) fn optimum(planner: &Planner, tokens: &[Tokens]) -> Millis {
    planner.strategies().iter().map(|strategy| best_of(strategy, planner, tokens)).min().unwrap()
}

fn best_of(strategy: &Strategy, planner: &Planner, tokens: &[Tokens]) -> Millis {
    let cost = planner.cost();
    if cost.cluster().is_uniform() {
        let costs = strategy.schemes().iter().map(|&scheme| cost.scheme(scheme).unwrap().clone());
        return best_on(&costs.collect::<Vec<_>>(), tokens);
    }
    let mut placements = Vec::new();
    place_rest(strategy.schemes(), &mut Vec::new(), 0, cost, &mut placements);
    placements.iter().map(|costs| best_on(costs, tokens)).min().unwrap_or(Millis::INFINITY)
}

/// Adds the costs of the strategy's replicas for every way to place the remaining ones on ranks that are free in the
/// bit mask `taken`; equal costs are added once.
fn place_rest(
    schemes: &[Scheme],
    placed: &mut Vec<ClassCost>,
    taken: u64,
    cost: &CostModel,
    found: &mut Vec<Vec<ClassCost>>,
) {
    let Some((&scheme, rest)) = schemes.split_first() else {
        if !found.contains(placed) {
            found.push(placed.clone());
        }
        return;
    };
    let mut groups = Vec::new();
    stage_groups(scheme, taken, cost.cluster(), &mut Vec::new(), &mut groups);
    for ranks in groups {
        // Ranks without memory for a token are no place.
        let Ok(own) = cost.replica(scheme, &ranks) else { continue };
        placed.push(own.into_owned());
        place_rest(rest, placed, ranks.iter().fold(taken, |taken, rank| taken | 1 << rank), cost, found);
        placed.pop();
    }
}

/// The ranks of every way to place the stages of a replica after those in `ranks`.
fn stage_groups(scheme: Scheme, taken: u64, cluster: &Cluster, ranks: &mut Vec<u32>, found: &mut Vec<Vec<u32>>) {
    if ranks.len() as u64 == scheme.ranks() {
        return found.push(ranks.clone());
    }
    let (width, node) = (scheme.stage_group_ranks(), cluster.gpus_per_node());
    for first in (0..cluster.gpus()).filter(|first| first + width <= cluster.gpus()) {
        let in_node = first % node + width <= node && (first % node).is_multiple_of(width);
        let on_nodes = first.is_multiple_of(node) && width.is_multiple_of(node);
        let group = (first..first + width).fold(0, |group, rank| group | 1 << rank);
        if (in_node || on_nodes) && taken & group == 0 {
            ranks.extend(first..first + width);
            stage_groups(scheme, taken | group, cluster, ranks, found);
            ranks.truncate(ranks.len() - width as usize);
        }
    }
}

/// Assigns the sequences of a set, a bit mask, to the replicas of these costs one after another in every way.
fn best_on(costs: &[ClassCost], tokens: &[Tokens]) -> Millis {
    let all = 1_usize << tokens.len();
    let mut best = vec![Millis::INFINITY; all];
    best[0] = Millis::ZERO;
    for alike in costs.chunk_by(|one, other| one == other) {
        let times: Vec<Millis> =
            (0..all).map(|set| best_packing(set, tokens, &alike[0], &|times| simulated(times, &alike[0]))).collect();
        for _ in alike {
            let share = |set: usize| {
                let own = (0..all).filter(|own| own & !set == 0);
                own.map(|own| times[own].max(best[set & !own])).min().unwrap()
            };
            best = (0..all).map(share).collect();
        }
    }
    best[all - 1]
}

/// The least `end` of any ordered packing of a set of the sequences, a bit mask.
pub(crate) fn best_packing(
    set: usize,
    tokens: &[Tokens],
    cost: &ClassCost,
    end: &dyn Fn(&[Millis]) -> Millis,
) -> Millis {
    if set == 0 { Millis::ZERO } else { best_order(set, &mut Packed::default(), tokens, cost, end) }
}

/// Micro-batches in running order.
#[derive(Default)]
struct Packed {
    times: Vec<Millis>,
    tokens: Vec<Tokens>,
}

/// The least time of micro-batches that start with `packed` and contain the set `left`: every set of sequences that
/// memory admits comes next once, after the empty micro-batches that it needs.
fn best_order(
    left: usize,
    packed: &mut Packed,
    tokens: &[Tokens],
    cost: &ClassCost,
    end: &dyn Fn(&[Millis]) -> Millis,
) -> Millis {
    if left == 0 {
        return end(&packed.times);
    }
    let mut best = Millis::INFINITY;
    for set in (1..=left).filter(|set| set & !left == 0) {
        let members = (0..tokens.len()).filter(|id| set >> id & 1 == 1).map(|id| tokens[id]);
        let total = members.clone().sum::<Tokens>();
        if total <= cost.longest() {
            let before = packed.times.len();
            while !fits(&packed.tokens, total, cost) {
                packed.times.push(cost.ms_of_work(Millis::ZERO));
                packed.tokens.push(Tokens(0));
            }
            packed.times.push(cost.micro_batch_ms(members));
            packed.tokens.push(total);
            best = best.min(best_order(left & !set, packed, tokens, cost, end));
            packed.times.truncate(before);
            packed.tokens.truncate(before);
        }
    }
    best
}

/// Whether a micro-batch of `next` tokens may follow these.
fn fits(before: &[Tokens], next: Tokens, cost: &ClassCost) -> bool {
    let with_next = before.len().min(cost.in_flight_limit().micro_batches - 1);
    before[before.len() - with_next..].iter().copied().sum::<Tokens>() + next <= cost.longest()
}

fn simulated(times: &[Millis], cost: &ClassCost) -> Millis {
    let scaled = |factor: f64| times.iter().map(|&time| time * factor).collect();
    let stage = |&multiplier: &f64| StageTimes {
        forward: scaled(multiplier * cost.forward_share()),
        backward: scaled(multiplier * (1.0 - cost.forward_share())),
    };
    simulate(&cost.stage_multipliers().iter().map(stage).collect::<Vec<_>>()).makespan()
}
