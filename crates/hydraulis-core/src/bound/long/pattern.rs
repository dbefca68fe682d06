//! The most valuable pattern of a replica, by depth-first branch and bound.

use crate::bound::long::replica::{Item, ROUNDING, Replica, Room};
use crate::bound::long::stages::Stages;
use crate::units::count;

/// The prices of one class, and of the long groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaPrices<'a> {
    pub(super) work: f64,
    pub(super) tokens: f64,
    pub(super) long: &'a [f64],
}

/// The best pattern found.
#[derive(Clone, Debug, Default)]
pub(super) struct Pattern {
    /// No pattern is worth more.
    pub(super) value: f64,
    /// Work and tokens that other sequences may fill.
    pub(super) left: (f64, f64),
    /// The group of each long sequence.
    pub(super) groups: Vec<usize>,
}

/// The most valuable pattern of the replica; only one worth more than `least` is found. After `visits` patterns the
/// value stays an upper bound, and the pattern is the best of those; so it does for patterns of more than `most` items.
pub(super) fn best_pattern(
    replica: &Replica,
    prices: ReplicaPrices,
    least: f64,
    [visits, most]: [usize; 2],
) -> Pattern {
    let gain = |item: &Item| prices.long[item.group] - prices.work * item.work - prices.tokens * item.tokens;
    let mut gains: Vec<(f64, Item)> = replica.items.iter().map(|item| (gain(item), *item)).collect();
    gains.retain(|(gain, _)| *gain > 0.0);
    let per_work = |(gain, item): &(f64, Item)| gain / item.work;
    gains.sort_by(|one, other| per_work(other).total_cmp(&per_work(one)).then(one.1.group.cmp(&other.1.group)));
    let found = Pattern { value: least, ..Pattern::default() };
    let mut search =
        PatternSearch { prices, gains, stages: replica.stages, chosen: Vec::new(), visits, most, found, upper: least };
    let base = |room: &Room| prices.work * room.work + prices.tokens * room.tokens;
    let mut rooms: Vec<&Room> = replica.rooms.iter().collect();
    rooms.sort_by(|one, other| base(other).total_cmp(&base(one)));
    for room in rooms {
        search.visit(0, State::of(room), room);
    }
    search.found.value = search.found.value.max(search.upper);
    search.found
}

struct PatternSearch<'a> {
    prices: ReplicaPrices<'a>,
    /// Items with their gain over other sequences in their place, the greatest gain per work first.
    gains: Vec<(f64, Item)>,
    stages: Option<Stages>,
    chosen: Vec<Item>,
    visits: usize,
    most: usize,
    found: Pattern,
    /// The greatest value that a branch which was not visited may have.
    upper: f64,
}

/// The sums of a pattern.
#[derive(Clone, Copy)]
struct State {
    /// Most work beside the pattern's own.
    most_work: f64,
    work: f64,
    tokens: f64,
    gain: f64,
    /// Number of items of which at most `i + 1` share a micro-batch.
    together: [usize; 4],
    /// Number of the last chosen item.
    repeated: usize,
}

impl State {
    fn of(room: &Room) -> State {
        let together = [0; 4];
        State { most_work: room.work, work: 0.0, tokens: 0.0, gain: 0.0, together, repeated: 0 }
    }

    /// The pattern with one more item; none if no replica with this room holds it.
    fn with(&self, gain: f64, item: &Item, is_repeated: bool, room: &Room) -> Option<State> {
        let mut next = *self;
        next.repeated = if is_repeated { self.repeated + 1 } else { 1 };
        next.work += item.work;
        next.tokens += item.tokens;
        next.gain += gain;
        next.together[item.together - 1..].iter_mut().for_each(|number| *number += 1);
        let fits = next.repeated <= item.number
            && next.work <= next.most_work + room.work * ROUNDING
            && next.tokens <= room.tokens * (1.0 + ROUNDING)
            && (item.together..next.together.len())
                .all(|most| next.together[most - 1] <= room.bins.saturating_mul(most));
        fits.then_some(next)
    }
}

impl PatternSearch<'_> {
    /// Most work of a replica with the chosen items, by the way of the longest of them through its stages.
    fn most_work(&self, room: &Room) -> f64 {
        let Some(stages) = &self.stages else { return f64::INFINITY };
        let mut works: Vec<f64> = self.chosen.iter().map(|item| item.work).collect();
        works.sort_by(|one, other| other.total_cmp(one));
        stages.most_time(&works) - room.fixed
    }

    /// The most that items from `from` on, of which the first is already chosen some times, gain within this work, if
    /// the last of them may be divided.
    fn most_gain(&self, from: usize, chosen: usize, work: f64) -> f64 {
        let (mut left, mut most, mut chosen) = (work.max(0.0), 0.0, chosen);
        for (gain, item) in &self.gains[from..] {
            let number = count(item.number - chosen).min(left / item.work);
            most += gain * number;
            left -= item.work * number;
            chosen = 0;
            if left <= 0.0 {
                break;
            }
        }
        most
    }

    fn visit(&mut self, from: usize, state: State, room: &Room) {
        let value = self.prices.work * state.most_work + self.prices.tokens * room.tokens + state.gain;
        if value > self.found.value {
            self.found.value = value;
            self.found.left = ((state.most_work - state.work).max(0.0), (room.tokens - state.tokens).max(0.0));
            self.found.groups = self.chosen.iter().map(|item| item.group).collect();
        }
        for place in from..self.gains.len() {
            let (gain, item) = self.gains[place];
            let repeated = if place == from { state.repeated } else { 0 };
            let most = value + self.most_gain(place, repeated, state.most_work - state.work);
            if most <= self.found.value {
                break;
            }
            if self.visits == 0 || self.chosen.len() >= self.most {
                self.upper = self.upper.max(most);
                break;
            }
            let is_repeated = place == from && state.repeated > 0;
            let Some(mut next) = state.with(gain, &item, is_repeated, room) else { continue };
            self.visits -= 1;
            self.chosen.push(item);
            next.most_work = next.most_work.min(self.most_work(room));
            if next.work <= next.most_work + room.work * ROUNDING {
                self.visit(place, next, room);
            }
            self.chosen.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The greatest value of all patterns with these items from `from` on, one by one.
    fn best_of_all(search: &mut PatternSearch, from: usize, state: State, room: &Room) -> f64 {
        let mut best = search.prices.work * state.most_work + search.prices.tokens * room.tokens + state.gain;
        for place in from..search.gains.len() {
            let (gain, item) = search.gains[place];
            let chosen = search.chosen.iter().filter(|other| other.group == item.group).count();
            let next = State { repeated: chosen, ..state }.with(gain, &item, true, room);
            if let Some(next) = next {
                search.chosen.push(item);
                best = best.max(best_of_all(search, place, next, room));
                search.chosen.pop();
            }
        }
        best
    }

    fn items(works: &[f64]) -> Vec<Item> {
        let item = |(group, &work): (usize, &f64)| Item {
            group,
            number: 1 + group % 3,
            work,
            tokens: 10.0 * work,
            together: if work > 4.0 { 1 } else { 4 },
        };
        works.iter().enumerate().map(item).collect()
    }

    proptest! {
        #[test]
        fn no_pattern_is_worth_more_than_the_best(
            works in prop::collection::vec(1.0..8.0_f64, 1..6),
            long in prop::collection::vec(0.0..9.0_f64, 6),
            rooms in prop::collection::vec((4.0..20.0_f64, 50.0..300.0_f64, 1..4_usize), 1..4),
            work in 0.0..1.0_f64,
            visits in 0..9_usize,
        ) {
            let rooms = rooms.into_iter().map(|(work, tokens, bins)| Room { work, tokens, bins, fixed: 0.0 });
            let replica = Replica { rooms: rooms.collect(), items: items(&works), limit: 100.0, stages: None };
            let prices = ReplicaPrices { work, tokens: 0.01, long: &long };
            let found = best_pattern(&replica, prices, 0.0, [10_000, 99]);
            let gain = |item: &Item| (long[item.group] - work * item.work - 0.01 * item.tokens, *item);
            let mut search = PatternSearch {
                prices,
                gains: replica.items.iter().map(gain).collect(),
                stages: None,
                chosen: Vec::new(),
                visits: 0,
                most: 0,
                found: Pattern::default(),
                upper: 0.0,
            };
            let best = replica.rooms.iter().map(|room| best_of_all(&mut search, 0, State::of(room), room));
            let best = best.fold(0.0, f64::max);
            prop_assert!((found.value - best).abs() <= 1e-9 * best, "{} {best}", found.value);
            // A search that ends early gives an upper bound.
            prop_assert!(best_pattern(&replica, prices, 0.0, [visits, 3]).value >= best * (1.0 - 1e-9));
        }
    }
}
