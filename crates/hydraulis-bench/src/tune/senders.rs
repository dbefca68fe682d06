//! Senders of amounts that several of them have, so that the one that sends most sends least.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An amount that any of some senders may send, in parts.
pub(super) type Demands = BTreeMap<BTreeSet<usize>, u64>;

/// The greatest load of a sender where that is least, found by a search over limits with a maximum flow for each.
pub(super) fn least_greatest_load(demands: &Demands) -> u64 {
    let total: u64 = demands.values().sum();
    if total == 0 {
        return 0;
    }
    let mut network = Network::new(demands);
    // No limit is below an equal load; mostly it is enough.
    let equal = total.div_ceil(network.senders.max(1) as u64);
    let (mut below, mut enough) = (equal - 1, total);
    let mut limit = equal;
    while enough - below > 1 {
        if network.sent(limit) == total {
            enough = limit;
        } else {
            below = limit;
        }
        limit = below + (enough - below) / 2;
    }
    enough
}

/// Room on the way from one node to another.
struct Edge {
    to: usize,
    /// Room of an empty network; none on the way to the sink, where it is the limit.
    own: Option<u64>,
    room: u64,
}

/// Amounts, their senders, and a sink; each edge is followed by its reverse.
struct Network {
    senders: usize,
    edges: Vec<Edge>,
    /// The edges from each node.
    from: Vec<Vec<usize>>,
}

const SOURCE: usize = 0;
const SINK: usize = 1;

impl Network {
    fn new(demands: &Demands) -> Network {
        let senders: BTreeSet<usize> = demands.keys().flatten().copied().collect();
        let first = SINK + 1 + demands.len();
        let node: BTreeMap<usize, usize> = senders.into_iter().zip(first..).collect();
        let nodes = first + node.len();
        let mut network = Network { senders: node.len(), edges: Vec::new(), from: vec![Vec::new(); nodes] };
        for (place, (set, &amount)) in (SINK + 1..).zip(demands) {
            network.join(SOURCE, place, Some(amount));
            for sender in set {
                network.join(place, node[sender], Some(amount));
            }
        }
        for &sender in node.values() {
            network.join(sender, SINK, None);
        }
        network
    }

    fn join(&mut self, from: usize, to: usize, own: Option<u64>) {
        for (from, to, own) in [(from, to, own), (to, from, Some(0))] {
            self.from[from].push(self.edges.len());
            self.edges.push(Edge { to, own, room: 0 });
        }
    }

    /// The amount sent if no sender sends more than `limit`: a maximum flow by shortest ways, all of a length at once.
    fn sent(&mut self, limit: u64) -> u64 {
        for edge in &mut self.edges {
            edge.room = edge.own.unwrap_or(limit);
        }
        let mut flow = 0;
        while let Some(steps) = self.steps() {
            // The edges of each node that are used up.
            let mut used = vec![0; self.from.len()];
            loop {
                match self.push(SOURCE, u64::MAX, &steps, &mut used) {
                    0 => break,
                    sent => flow += sent,
                }
            }
        }
        flow
    }

    /// The steps from the source to each node with room on the way; none if no way leads to the sink.
    fn steps(&self) -> Option<Vec<usize>> {
        let mut steps = vec![usize::MAX; self.from.len()];
        steps[SOURCE] = 0;
        let mut open = VecDeque::from([SOURCE]);
        while let Some(node) = open.pop_front() {
            for edge in self.from[node].iter().map(|&edge| &self.edges[edge]) {
                if edge.room > 0 && steps[edge.to] == usize::MAX {
                    steps[edge.to] = steps[node] + 1;
                    open.push_back(edge.to);
                }
            }
        }
        (steps[SINK] < usize::MAX).then_some(steps)
    }

    /// Sends up to `most` from a node on one of the shortest ways, and returns the amount.
    fn push(&mut self, node: usize, most: u64, steps: &[usize], used: &mut [usize]) -> u64 {
        if node == SINK {
            return most;
        }
        while let Some(&place) = self.from[node].get(used[node]) {
            let Edge { to, room, .. } = self.edges[place];
            if room > 0 && steps[to] == steps[node] + 1 {
                let sent = self.push(to, most.min(room), steps, used);
                if sent > 0 {
                    self.edges[place].room -= sent;
                    self.edges[place ^ 1].room += sent;
                    return sent;
                }
            }
            used[node] += 1;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        /// Some senders send at least the amounts that they alone have; of all such loads the greatest decides.
        #[test]
        fn the_busiest_senders_send_what_only_they_have(
            amounts in proptest::collection::vec((proptest::collection::btree_set(0..5_usize, 1..5), 0..40_u64), 0..8),
        ) {
            let mut demands = Demands::new();
            for (set, amount) in amounts {
                *demands.entry(set).or_default() += amount;
            }
            let load = |senders: u32| {
                let has = |sender: &usize| senders >> sender & 1 == 1;
                let own = demands.iter().filter(|(set, _)| set.iter().all(has)).map(|(_, amount)| amount).sum::<u64>();
                own.div_ceil(senders.count_ones().into())
            };
            prop_assert_eq!(Some(least_greatest_load(&demands)), (1..32).map(load).max());
        }
    }
}
