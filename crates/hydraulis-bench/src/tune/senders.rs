//! Senders of amounts that several of them have, so that the one that sends most sends least.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An amount that any of some senders may send, in parts.
pub(super) type Demands = BTreeMap<BTreeSet<usize>, u64>;

/// The greatest load of a sender where that is least, found by a search over limits with a maximum flow for each.
pub(super) fn least_greatest_load(demands: &Demands) -> u64 {
    let total: u64 = demands.values().sum();
    let (mut below, mut enough) = (0, total);
    if total == 0 {
        return 0;
    }
    while enough - below > 1 {
        let limit = below + (enough - below) / 2;
        if sent(demands, limit) == total { enough = limit } else { below = limit }
    }
    enough
}

/// The amount sent if no sender sends more than `limit`: a maximum flow by shortest augmenting paths.
fn sent(demands: &Demands, limit: u64) -> u64 {
    let senders: BTreeSet<usize> = demands.keys().flatten().copied().collect();
    let senders: Vec<usize> = senders.into_iter().collect();
    let sets: Vec<(&BTreeSet<usize>, u64)> = demands.iter().map(|(set, &amount)| (set, amount)).collect();
    let (source, sink) = (0, 1);
    let set_node = |place: usize| 2 + place;
    let sender_node = |place: usize| 2 + sets.len() + place;
    let nodes = 2 + sets.len() + senders.len();
    let mut room = vec![vec![0_u64; nodes]; nodes];
    for (place, (set, amount)) in sets.iter().enumerate() {
        room[source][set_node(place)] = *amount;
        for (number, sender) in senders.iter().enumerate().filter(|(_, sender)| set.contains(sender)) {
            debug_assert!(set.contains(sender));
            room[set_node(place)][sender_node(number)] = *amount;
        }
    }
    for number in 0..senders.len() {
        room[sender_node(number)][sink] = limit;
    }
    let mut flow = 0;
    while let Some(path) = augmenting(&room, source, sink) {
        let steps = path.windows(2).map(|pair| room[pair[0]][pair[1]]);
        let amount = steps.min().unwrap_or_default();
        for pair in path.windows(2) {
            room[pair[0]][pair[1]] -= amount;
            room[pair[1]][pair[0]] += amount;
        }
        flow += amount;
    }
    flow
}

/// The shortest path with room.
fn augmenting(room: &[Vec<u64>], source: usize, sink: usize) -> Option<Vec<usize>> {
    let mut before: Vec<Option<usize>> = vec![None; room.len()];
    let mut open = VecDeque::from([source]);
    while let Some(node) = open.pop_front() {
        for next in 0..room.len() {
            if room[node][next] > 0 && before[next].is_none() && next != source {
                before[next] = Some(node);
                open.push_back(next);
            }
        }
    }
    let mut path = vec![sink];
    while let Some(node) = before[path[path.len() - 1]] {
        path.push(node);
    }
    path.reverse();
    (path[0] == source).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demands(list: &[(&[usize], u64)]) -> Demands {
        list.iter().map(|(set, amount)| (set.iter().copied().collect(), *amount)).collect()
    }

    #[test]
    fn loads_are_balanced_as_far_as_owners_allow() {
        assert_eq!(least_greatest_load(&demands(&[])), 0);
        assert_eq!(least_greatest_load(&demands(&[(&[0, 1, 2], 9)])), 3);
        assert_eq!(least_greatest_load(&demands(&[(&[0], 7), (&[0, 1], 3)])), 7);
        assert_eq!(least_greatest_load(&demands(&[(&[0], 4), (&[0, 1], 6), (&[1, 2], 2)])), 5);
        assert_eq!(least_greatest_load(&demands(&[(&[0, 1], 7)])), 4);
    }
}
