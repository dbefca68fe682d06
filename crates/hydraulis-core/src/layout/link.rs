//! What an iteration's transfers take between nodes, where nothing of them is hidden.
//!
//! Each node sends and receives at the same time, each way at one rate; a transfer ends when the busiest node is done.
//! Parameters go out from home and gradients come back, one after the other. What crosses between nodes is counted
//! once for each node that holds it ([`node_volumes`]). Links inside a node are free, and so is everything where there
//! is only one node.

use crate::error::{Error, Result};
use crate::layout::{Home, NodeVolume, ParameterTable, Position, node_volumes};
use crate::spec::Cluster;
use crate::units::{Millis, count};

/// The links between nodes, and what travels over them.
#[derive(Clone, Debug)]
pub struct Link {
    table: ParameterTable,
    traffic: Traffic,
}

/// How much an element weighs, and how fast it travels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// What each node sends, and at the same time receives: 1e9 bytes a second.
    pub gigabytes_per_s: f64,
    /// Bytes of a parameter on its way out.
    pub parameter_bytes: u32,
    /// Bytes of its gradient on the way back.
    pub gradient_bytes: u32,
}

impl Link {
    /// Links for the model of `table`; refused with `link_rate` unless the rate is above 0 and finite.
    pub fn new(table: ParameterTable, traffic: Traffic) -> Result<Link> {
        let rate = traffic.gigabytes_per_s;
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Error::LinkRate { value: rate.to_string() });
        }
        Ok(Link { table, traffic })
    }

    /// The transfers of an iteration in which each rank of the cluster stands at its position: parameters out,
    /// gradients back.
    ///
    /// Refused where the positions are not those of all ranks, or of a pipeline that the model has too few layers for.
    pub fn transfer_ms(&self, positions: &[Option<Position>], cluster: Cluster) -> Result<Millis> {
        let home = Home::new(&self.table, cluster.gpus());
        let volumes = node_volumes(&self.table, &home, positions, cluster.gpus_per_node())?;
        // What a node sends one way it receives the other, so the busiest one is the same.
        let busiest = volumes.iter().map(|&NodeVolume { sent, received }| sent.max(received)).max();
        let bytes = f64::from(self.traffic.parameter_bytes) + f64::from(self.traffic.gradient_bytes);
        Ok(Millis(count(busiest.unwrap_or_default()) * bytes / (self.traffic.gigabytes_per_s * 1e6)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Parameter, strategy_positions};

    /// One matrix of 8 rows in each of two layers, on two nodes of two ranks.
    fn link(gigabytes_per_s: f64) -> Result<Link> {
        let matrix =
            |block| Parameter { name: "matrix".into(), rows: 8, row_elements: 1_000, units: 8, blocks: vec![block] };
        let table = ParameterTable::new(vec![matrix(1), matrix(2)], 2).unwrap();
        let traffic = Traffic { gigabytes_per_s, parameter_bytes: 2, gradient_bytes: 4 };
        Link::new(table, traffic)
    }

    fn ms(strategy: &str) -> f64 {
        let cluster = Cluster::new(4, 2).unwrap();
        let positions = strategy_positions(&strategy.parse().unwrap(), cluster).unwrap();
        link(1.0).unwrap().transfer_ms(&positions, cluster).unwrap().0
    }

    /// Each node is the home of half of the 16,000 elements; six bytes for each element that crosses, at a million a ms.
    #[test]
    fn what_crosses_between_nodes_takes_its_time() {
        assert!((ms("2x<tp2>") - 0.048).abs() < 1e-12);
        assert!((ms("4x<1>") - 0.048).abs() < 1e-12, "once for each node, not for each rank");
        // One node holds everything: half of it comes from the other, which holds nothing.
        assert!((ms("1x<tp2>") - 0.048).abs() < 1e-12);
        // Each node holds one layer, half of which is at home there.
        assert!((ms("1x<tp2,pp2>") - 0.024).abs() < 1e-12);
    }

    #[test]
    fn a_rate_that_is_none_is_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(link(rate).unwrap_err().code(), "link_rate");
        }
        let short = link(1.0).unwrap().transfer_ms(&[None; 2], Cluster::new(4, 2).unwrap()).unwrap_err();
        assert_eq!(short.code(), "ranks_mismatch");
    }
}
