//! The exact optimum of small instances, by exhaustive search: the reference for bound and plan.

use hydraulis_core::cost::ClassCost;
use hydraulis_core::pipeline::{StageTimes, simulate};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Strategy;
use hydraulis_core::{Millis, Tokens};

/// The least iteration time over all strategies of `planner`, assignments and ordered packings; infinite if some
/// sequence fits nowhere.
pub(crate) fn optimum(planner: &Planner, tokens: &[Tokens]) -> Millis {
    planner.strategies().iter().map(|strategy| best_of(strategy, planner, tokens)).min().unwrap()
}

/// Assigns the sequences of a set, a bit mask, to the replicas one after another in every way.
fn best_of(strategy: &Strategy, planner: &Planner, tokens: &[Tokens]) -> Millis {
    let all = 1_usize << tokens.len();
    let mut best = vec![Millis::INFINITY; all];
    best[0] = Millis::ZERO;
    for (scheme, replicas) in strategy.groups() {
        let cost = planner.cost().scheme(scheme).unwrap();
        let times: Vec<Millis> = (0..all).map(|set| best_order(set, &mut Packed::default(), tokens, cost)).collect();
        for _ in 0..replicas {
            let share = |set: usize| {
                let own = (0..all).filter(|own| own & !set == 0);
                own.map(|own| times[own].max(best[set & !own])).min().unwrap()
            };
            best = (0..all).map(share).collect();
        }
    }
    best[all - 1]
}

/// Micro-batches in running order.
#[derive(Default)]
struct Packed {
    times: Vec<Millis>,
    tokens: Vec<Tokens>,
}

/// The least time of micro-batches that start with `packed` and contain the set `left`: every set of sequences that
/// memory admits comes next once, after the empty micro-batches that it needs.
fn best_order(left: usize, packed: &mut Packed, tokens: &[Tokens], cost: &ClassCost) -> Millis {
    if left == 0 {
        return simulated(&packed.times, cost);
    }
    let mut best = Millis::INFINITY;
    for set in (1..=left).filter(|set| set & !left == 0) {
        let members = (0..tokens.len()).filter(|id| set >> id & 1 == 1).map(|id| tokens[id]);
        let total = members.clone().sum::<Tokens>();
        if total <= cost.longest() {
            let before = packed.times.len();
            while !fits(&packed.tokens, total, cost) {
                packed.times.push(cost.fixed_ms());
                packed.tokens.push(Tokens(0));
            }
            packed.times.push(cost.micro_batch_ms(members));
            packed.tokens.push(total);
            best = best.min(best_order(left & !set, packed, tokens, cost));
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
