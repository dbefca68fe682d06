//! How long a micro-batch's hidden states travel from one stage to the next.
//!
//! Each rank of a stage sends its share of the tokens to the rank in its place in the next stage. Inside a node every
//! rank has a wire of its own; what leaves a node goes over the node's one wire. A boundary takes as long as the
//! slowest of its wires. That other replicas of a node send at the same moment is not counted.

use crate::error::{Error, Result};
use crate::spec::Cluster;
use crate::units::{Millis, Tokens, count};

/// The wires of a cluster, and what one token weighs on them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    token_bytes: f64,
    inside: Wire,
    between: Wire,
}

/// One way of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// 1e9 bytes a second.
    pub gigabytes_per_s: f64,
    /// Milliseconds before the first byte arrives.
    pub latency_ms: f64,
}

impl Network {
    /// A network on which a token's hidden state has `token_bytes`, over wires of each rank `inside` its node and of each
    /// node `between` nodes.
    ///
    /// Refused with `network_value` where a rate or the bytes are not finite and above 0, or a latency is below 0.
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
                return Err(Error::NetworkValue { field, value: value.to_string(), limit });
            }
        }
        Ok(Network { token_bytes, inside, between })
    }

    /// How long `tokens` of hidden states travel from the ranks of one stage to those of the next, or back.
    pub fn travel_ms(&self, cluster: Cluster, tokens: Tokens, from: &[u32], to: &[u32]) -> Millis {
        let share = tokens.as_f64() * self.token_bytes / count(from.len().max(1));
        let node = |rank: u32| rank / cluster.gpus_per_node();
        let pairs = || from.iter().zip(to).map(|(&rank, &partner)| (node(rank), node(partner)));
        let inside = pairs().any(|(here, there)| here == there);
        let leaving = |sender: u32| pairs().filter(|&(here, there)| here == sender && there != here).count();
        let most_leaving = pairs().map(|(here, _)| leaving(here)).max().unwrap_or(0);
        let inside = if inside { self.inside.takes(share) } else { Millis::ZERO };
        let between = if most_leaving > 0 { self.between.takes(share * count(most_leaving)) } else { Millis::ZERO };
        inside.max(between)
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

    const INSIDE: Wire = Wire { gigabytes_per_s: 100.0, latency_ms: 0.01 };
    const BETWEEN: Wire = Wire { gigabytes_per_s: 10.0, latency_ms: 0.5 };

    fn travel(from: &[u32], to: &[u32]) -> f64 {
        let network = Network::new(1e4, INSIDE, BETWEEN).unwrap();
        network.travel_ms(Cluster::new(16, 4).unwrap(), Tokens(1_000), from, to).0
    }

    /// 1,000 tokens of 10,000 bytes are 10 MB: 0.1 ms at 100 GB/s, 1 ms at 10 GB/s.
    #[test]
    fn each_rank_sends_its_share_over_its_own_wire_and_a_node_over_its_one() {
        for (from, to, expected) in [
            (vec![0], vec![1], 0.01 + 0.1),
            (vec![0, 1], vec![2, 3], 0.01 + 0.05),
            (vec![3], vec![4], 0.5 + 1.0),
            (vec![0, 1, 2, 3], vec![4, 5, 6, 7], 0.5 + 1.0),
            // Two nodes each send their half.
            ((0..8).collect(), (8..16).collect(), 0.5 + 0.5),
            // One of two pairs leaves its node.
            (vec![2, 3], vec![1, 4], 0.5 + 0.5),
        ] {
            assert!((travel(&from, &to) - expected).abs() < 1e-12, "{from:?} to {to:?}: {}", travel(&from, &to));
        }
    }

    #[test]
    fn its_values_have_limits() {
        let wire = |gigabytes_per_s, latency_ms| Wire { gigabytes_per_s, latency_ms };
        for (token_bytes, inside, between, field) in [
            (0.0, INSIDE, BETWEEN, "token_bytes"),
            (f64::NAN, INSIDE, BETWEEN, "token_bytes"),
            (1.0, wire(0.0, 0.0), BETWEEN, "inside gigabytes_per_s"),
            (1.0, INSIDE, wire(f64::INFINITY, 0.0), "between gigabytes_per_s"),
            (1.0, wire(1.0, -1.0), BETWEEN, "inside latency_ms"),
            (1.0, INSIDE, wire(1.0, f64::NAN), "between latency_ms"),
        ] {
            let error = Network::new(token_bytes, inside, between).unwrap_err();
            assert_eq!(error.code(), "network_value");
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
