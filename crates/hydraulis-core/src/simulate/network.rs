//! The travel time of a micro-batch's hidden states from one stage to the next.
//!
//! Each rank of a stage sends its share of the tokens to the rank at its position in the next stage. Inside a node
//! every rank has its own wire. Messages that leave a node use the node's one wire. All messages that leave the node
//! during the iteration have an even share of this wire, for every replica, boundary and direction, even if the others
//! do not send at that moment. This share assumes the largest possible interference. A boundary takes as long as the
//! slowest of its wires.

use std::collections::BTreeMap;

use crate::cost::{CostProfile, MeasuredLink};
use crate::error::{LinkError, Result};
use crate::spec::{Cluster, LinkRates};
use crate::units::{Millis, Tokens, count};

/// The wires of a cluster and the bytes of one token's hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    token_bytes: f64,
    inside: Wire,
    between: Wire,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// Rate in 1e9 bytes per second.
    pub gigabytes_per_s: f64,
    /// Latency: milliseconds before the first byte arrives.
    pub latency_ms: f64,
}

impl Wire {
    /// Default latency: milliseconds before the first byte arrives.
    pub const USUAL_LATENCY_MS: f64 = 0.0;
}

impl Network {
    /// A network in which a token's hidden state has `token_bytes` bytes. Each rank has a wire `inside` its node, and
    /// each node has a wire `between` nodes.
    ///
    /// Rates and bytes must be finite and above 0, and latencies finite and at least 0. Other values are refused with
    /// `argument_invalid`.
    pub fn new(token_bytes: f64, inside: Wire, between: Wire) -> Result<Network> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        for (field, value, sound, limit) in [
            ("token_bytes", token_bytes, positive(token_bytes), "above 0"),
            ("inside gigabytes_per_s", inside.gigabytes_per_s, positive(inside.gigabytes_per_s), "above 0"),
            ("between gigabytes_per_s", between.gigabytes_per_s, positive(between.gigabytes_per_s), "above 0"),
            ("inside latency_ms", inside.latency_ms, not_negative(inside.latency_ms), "from 0"),
            ("between latency_ms", between.latency_ms, not_negative(between.latency_ms), "from 0"),
        ] {
            if !sound {
                return Err(LinkError::NetworkValue { field, value: value.to_string(), limit }.into());
            }
        }
        Ok(Network { token_bytes, inside, between })
    }

    /// The network for hidden states of the profile's model at these rates: the GPU's rate inside a node and the node's
    /// rate between nodes.
    ///
    /// A profile that does not name its model is refused with `profile_invalid`. Other refusals are those of
    /// [`Network::new`].
    pub fn of_profile(profile: &CostProfile, rates: LinkRates) -> Result<Network> {
        let hidden_size = profile.travelling_model()?.fields().hidden_size;
        let token_bytes = count(hidden_size) * count(profile.travelling_dtype().bytes());
        let wire = |gigabytes_per_s| Wire { gigabytes_per_s, latency_ms: rates.message_us / 1e3 };
        Network::new(token_bytes, wire(rates.gpu_gigabytes_per_s), wire(rates.gigabytes_per_s))
    }

    /// The network with the wires that the profile measured point to point, and with these rates for the others. The
    /// rate of a node's wire is the sum over all its ranks, which sent at once in the measurement.
    pub fn measured(profile: &CostProfile, otherwise: LinkRates) -> Result<Network> {
        let Network { token_bytes, inside, between } = Network::of_profile(profile, otherwise)?;
        let wire = |link: &MeasuredLink, senders: u32| Wire {
            gigabytes_per_s: link.gigabytes_per_s * f64::from(senders),
            latency_ms: link.latency_ms,
        };
        let inside = profile.send_inside().map_or(inside, |link| wire(link, 1));
        let between = profile.send_between().map_or(between, |link| wire(link, profile.hardware.gpus_per_node));
        Network::new(token_bytes, inside, between)
    }

    /// Number of bytes of one token's hidden state.
    pub fn token_bytes(&self) -> f64 {
        self.token_bytes
    }

    /// The wire of each rank inside its node.
    pub fn inside(&self) -> Wire {
        self.inside
    }

    /// The wire of each node.
    pub fn between(&self) -> Wire {
        self.between
    }

    /// The travel time of the hidden states of `tokens` from the ranks of one stage to those of the next, or back.
    pub(super) fn travel_ms(&self, crossings: &Crossings, tokens: Tokens, from: &[u32], to: &[u32]) -> Millis {
        let share = tokens.as_f64() * self.token_bytes / count(from.len().max(1));
        let pairs = || from.iter().zip(to).map(|(&rank, &partner)| (crossings.node(rank), crossings.node(partner)));
        let inside = pairs().any(|(here, there)| here == there);
        let crossing = pairs().filter(|(here, there)| here != there);
        let most_leaving =
            crossing.flat_map(|(here, there)| [here, there]).map(|node| crossings.of(node)).max().unwrap_or(0);
        let inside = if inside { self.inside.takes(share) } else { Millis::ZERO };
        let between = if most_leaving > 0 { self.between.takes(share * count(most_leaving)) } else { Millis::ZERO };
        inside.max(between)
    }
}

/// The number of messages that share the wire of each node: one for each direction of each of the node's ranks with a
/// partner in another node.
#[derive(Clone, Debug)]
pub(super) struct Crossings {
    gpus_per_node: u32,
    leaving: BTreeMap<u32, usize>,
}

impl Crossings {
    /// The messages over all boundaries between stages. Each boundary is given by the ranks on both sides.
    pub(super) fn new<'a>(
        cluster: &Cluster,
        boundaries: impl IntoIterator<Item = (&'a [u32], &'a [u32])>,
    ) -> Crossings {
        let mut crossings = Crossings { gpus_per_node: cluster.gpus_per_node(), leaving: BTreeMap::new() };
        for (from, to) in boundaries {
            for (&rank, &partner) in from.iter().zip(to) {
                let (here, there) = (crossings.node(rank), crossings.node(partner));
                if here != there {
                    // An activation leaves one node, and its gradient leaves the other.
                    *crossings.leaving.entry(here).or_default() += 1;
                    *crossings.leaving.entry(there).or_default() += 1;
                }
            }
        }
        crossings
    }

    fn node(&self, rank: u32) -> u32 {
        rank / self.gpus_per_node
    }

    fn of(&self, node: u32) -> usize {
        self.leaving.get(&node).copied().unwrap_or_default()
    }
}

impl Wire {
    fn takes(self, bytes: f64) -> Millis {
        Millis(self.latency_ms + bytes / (self.gigabytes_per_s * 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::LinkOperation;

    const INSIDE: Wire = Wire { gigabytes_per_s: 100.0, latency_ms: 0.01 };
    const BETWEEN: Wire = Wire { gigabytes_per_s: 10.0, latency_ms: 0.5 };

    fn wire(gigabytes_per_s: f64, latency_ms: f64) -> Wire {
        Wire { gigabytes_per_s, latency_ms }
    }

    fn travel(from: &[u32], to: &[u32]) -> f64 {
        among(from, to, &[])
    }

    /// The travel time in a network with other boundaries.
    fn among(from: &[u32], to: &[u32], others: &[(&[u32], &[u32])]) -> f64 {
        let network = Network::new(1e4, INSIDE, BETWEEN).unwrap();
        let all = others.iter().copied().chain([(from, to)]);
        let crossings = Crossings::new(&Cluster::new(16, 4).unwrap(), all);
        network.travel_ms(&crossings, Tokens(1_000), from, to).0
    }

    /// 1,000 tokens of 10,000 bytes are 10 MB, which take 0.1 ms at 100 GB/s and 1 ms at 10 GB/s.
    #[test]
    fn ranks_send_over_their_own_links_and_nodes_over_one() {
        for (from, to, expected) in [
            (vec![0], vec![1], 0.01 + 0.1),
            (vec![0, 1], vec![2, 3], 0.01 + 0.05),
            (vec![3], vec![4], 0.5 + 1.0),
            (vec![0, 1, 2, 3], vec![4, 5, 6, 7], 0.5 + 1.0),
            // Each of two nodes sends half of the tokens.
            ((0..8).collect(), (8..16).collect(), 0.5 + 0.5),
            // One of two pairs leaves its node.
            (vec![2, 3], vec![1, 4], 0.5 + 0.5),
        ] {
            assert!((travel(&from, &to) - expected).abs() < 1e-12, "{from:?} to {to:?}: {}", travel(&from, &to));
        }
    }

    /// The cases are another replica's boundary between the same nodes, a boundary from the second node to a third, and
    /// boundaries that leave neither node.
    #[test]
    fn all_traffic_of_a_node_shares_its_link() {
        for (others, messages) in [
            (vec![(&[2][..], &[5][..])], 2.0),
            (vec![(&[2, 1], &[5, 6])], 3.0),
            (vec![(&[5, 6, 7], &[8, 9, 10])], 4.0),
            (vec![(&[8], &[12]), (&[0], &[1])], 1.0),
        ] {
            let expected = 0.5 + messages;
            let found = among(&[3], &[4], &others);
            assert!((found - expected).abs() < 1e-12, "{others:?}: {found}");
        }
        // Each rank has its own wire inside a node.
        assert!((among(&[0], &[1], &[(&[2], &[3])]) - travel(&[0], &[1])).abs() < 1e-12);
    }

    #[test]
    fn point_to_point_measurements_precede_the_rates_of_links() {
        let rates = LinkRates { gigabytes_per_s: 20.0, gpu_gigabytes_per_s: 200.0, message_us: 10.0 };
        let (stated_inside, stated_between) = (wire(200.0, 0.01), wire(20.0, 0.01));
        let send = |ranks: u32, latency_ms: f64, gigabytes_per_s: f64| MeasuredLink {
            operation: LinkOperation::Send,
            ranks,
            latency_ms,
            gigabytes_per_s,
        };
        let other = MeasuredLink { operation: LinkOperation::AllToAll, ..send(8, 9.0, 9.0) };
        for (links, inside, between) in [
            (vec![], stated_inside, stated_between),
            (vec![other], stated_inside, stated_between),
            (vec![send(2, 0.1, 90.0)], wire(90.0, 0.1), stated_between),
            (vec![send(2, 0.1, 90.0), send(8, 0.2, 70.0)], wire(70.0, 0.2), stated_between),
            // In a measurement with 24 ranks the first 12 send, some of them inside their own node. With 16 ranks, each
            // of the first 8 sends to the other node.
            (vec![send(8, 0.2, 70.0), send(24, 9.0, 9.0)], wire(70.0, 0.2), stated_between),
            (vec![send(2, 0.1, 90.0), send(16, 0.3, 5.0)], wire(90.0, 0.1), wire(40.0, 0.3)),
            (vec![send(16, 0.3, 5.0), send(32, 0.4, 4.0)], stated_inside, wire(32.0, 0.4)),
        ] {
            let mut profile = crate::cost::preset("llama-7b-a800").unwrap();
            profile.hardware.links = links;
            let network = Network::measured(&profile, rates).unwrap();
            assert_eq!(network, Network { token_bytes: 8_192.0, inside, between }, "{:?}", profile.hardware.links);
        }
        // Nodes of one GPU have no wires inside.
        let mut profile = crate::cost::preset("llama-7b-a800").unwrap();
        (profile.hardware.gpus_per_node, profile.hardware.links) = (1, vec![send(2, 0.1, 3.0)]);
        let network = Network::measured(&profile, rates).unwrap();
        assert_eq!((network.inside, network.between), (stated_inside, wire(3.0, 0.1)));
        profile.hardware.links = vec![send(2, 0.1, 0.0)];
        assert_eq!(Network::measured(&profile, rates).unwrap_err().code(), "argument_invalid");
    }

    #[test]
    fn values_of_the_network_have_limits() {
        for (token_bytes, inside, between, field) in [
            (0.0, INSIDE, BETWEEN, "token_bytes"),
            (f64::NAN, INSIDE, BETWEEN, "token_bytes"),
            (1.0, wire(0.0, 0.0), BETWEEN, "inside gigabytes_per_s"),
            (1.0, INSIDE, wire(f64::INFINITY, 0.0), "between gigabytes_per_s"),
            (1.0, wire(1.0, -1.0), BETWEEN, "inside latency_ms"),
            (1.0, INSIDE, wire(1.0, f64::NAN), "between latency_ms"),
        ] {
            let error = Network::new(token_bytes, inside, between).unwrap_err();
            assert_eq!(error.code(), "argument_invalid");
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
