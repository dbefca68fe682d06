//! The time of each bucket's transfer by itself.

use std::ops::Range;

use crate::error::{LayoutError, Result};
use crate::layout::{BucketVolume, NodeVolume};
use crate::spec::LinkRates;
use crate::units::{Millis, count};

/// Bytes of an element, and the rates of the links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Rates of the links.
    pub rates: LinkRates,
    /// Bytes of a parameter in the parameter gather.
    pub parameter_bytes: u32,
    /// Bytes of a gradient in the gradient reduction.
    pub gradient_bytes: u32,
}

impl Traffic {
    /// Default bytes of a parameter: bfloat16.
    pub const USUAL_PARAMETER_BYTES: u32 = 2;
    /// Default bytes of a gradient: float32, in which contributions are added.
    pub const USUAL_GRADIENT_BYTES: u32 = 4;
}

/// Transfer times of an iteration, bucket by bucket, if nothing delays them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransferTimes {
    /// Time of each bucket's parameters, from their owners, before the first forward; zero for sharded parameters.
    pub parameters: Vec<Millis>,
    /// Time of each bucket's gradients, to their owners.
    pub gradients: Vec<Millis>,
    /// Time of each bucket's gradients in each round before the last, under sharded gradients; none of a run whose
    /// gradients leave once.
    pub earlier_rounds: Option<Vec<Vec<Millis>>>,
    /// Time of each layer group's parameters in each round, under sharded parameters.
    pub gathers: Vec<Vec<Millis>>,
    /// Layer groups whose sharded parameters a backward gathers again.
    pub gathered_again: Range<usize>,
    /// Bytes that cross between nodes, both ways.
    pub moved_bytes: u64,
}

impl TransferTimes {
    /// The times of these volumes. `messages` are those of the rank with most of them in a bucket; `node_slowdowns` are
    /// the factors of each node's times, none for nodes of equal links.
    ///
    /// Refused with `model_invalid` if more bytes cross between nodes than can be counted.
    pub(super) fn new(
        volumes: &[BucketVolume],
        traffic: Traffic,
        messages: u64,
        node_slowdowns: &[f64],
    ) -> Result<TransferTimes> {
        let LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us } = traffic.rates;
        let one_way = |volume: &BucketVolume, bytes: u32| {
            // A node receives as much in one direction as it sends in the other, so the busiest node is the same.
            let slowdowns = node_slowdowns.iter().copied().chain(std::iter::repeat(1.0));
            let busy = |(node, slowdown): (&NodeVolume, f64)| count(node.sent.max(node.received)) * slowdown;
            let busiest = volume.nodes.iter().zip(slowdowns).map(busy).fold(0.0, f64::max);
            let bytes = f64::from(bytes) * 1e-6;
            let between = busiest * bytes / gigabytes_per_s;
            let inside = count(volume.fullest_rank) * bytes / gpu_gigabytes_per_s;
            let alone = if volume.fullest_rank == 0 { 0.0 } else { count(messages) * message_us * 1e-3 };
            Millis(alone + between.max(inside))
        };
        let all = |bytes| volumes.iter().map(|volume| one_way(volume, bytes)).collect();
        let crossing: u64 = volumes.iter().flat_map(|volume| &volume.nodes).map(|node| node.sent).sum();
        let both_ways = u64::from(traffic.parameter_bytes) + u64::from(traffic.gradient_bytes);
        let moved_bytes = crossing.checked_mul(both_ways).ok_or_else(|| {
            let value = (u128::from(crossing) * u128::from(both_ways)).to_string();
            LayoutError::TableSize { field: "bytes that cross between nodes", value, limit: u64::MAX }
        })?;
        Ok(TransferTimes {
            parameters: all(traffic.parameter_bytes),
            gradients: all(traffic.gradient_bytes),
            earlier_rounds: None,
            gathers: Vec::new(),
            gathered_again: 0..0,
            moved_bytes,
        })
    }

    /// Sum of all times: the wait of an iteration without overlap.
    pub fn total(&self) -> Millis {
        let earlier = self.earlier_rounds.iter().flatten().flatten();
        let again = self.gathers.iter().flat_map(|round| &round[self.gathered_again.clone()]);
        let gathers = self.gathers.iter().flatten().chain(again);
        self.parameters.iter().chain(&self.gradients).chain(earlier).chain(gathers).copied().sum()
    }
}
