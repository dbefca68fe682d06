//! What an iteration's transfers take, by the core's link model with both ways in bf16.

use std::collections::BTreeMap;

use hydraulis_core::Millis;
use hydraulis_core::cost::CostModel;
use hydraulis_core::layout::{self, Position, Traffic};
use hydraulis_core::spec::Cluster;

use crate::error::Result;
use crate::model::ModelShape;

/// Where each rank of the cluster stands, none for those that hold nothing.
pub type Layout = Vec<Option<Position>>;

/// The links between the nodes of a cluster, for one model; what was asked once is known.
#[derive(Clone, Debug)]
pub struct Link {
    core: layout::Link,
    cluster: Cluster,
    known: BTreeMap<Layout, Millis>,
}

/// The links of the profile's model that carry `gigabytes_per_s` (1e9 bytes a second) from and to each node.
///
/// Gradients travel in bf16 too: that is what the methods compared with do.
pub fn of_profile(cost: &CostModel, gigabytes_per_s: f64) -> Result<layout::Link> {
    let table = ModelShape::of_profile(&cost.profile().name)?.table()?;
    let traffic = Traffic { gigabytes_per_s, parameter_bytes: 2, gradient_bytes: 2 };
    Ok(layout::Link::new(table, traffic)?)
}

impl Link {
    /// See [`of_profile`].
    pub fn new(cost: &CostModel, gigabytes_per_s: f64) -> Result<Link> {
        Ok(Link { core: of_profile(cost, gigabytes_per_s)?, cluster: cost.cluster(), known: BTreeMap::new() })
    }

    /// The transfers of an iteration that uses these layouts, each of them filled and emptied once.
    pub fn transfer_ms(&mut self, layouts: &[Layout]) -> Result<Millis> {
        layouts.iter().map(|layout| self.there_and_back(layout)).sum()
    }

    fn there_and_back(&mut self, layout: &Layout) -> Result<Millis> {
        if let Some(&known) = self.known.get(layout) {
            return Ok(known);
        }
        let ms = self.core.transfer_ms(layout, self.cluster)?;
        self.known.insert(layout.clone(), ms);
        Ok(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::count;
    use hydraulis_core::cost::preset;
    use hydraulis_core::lengths::Batch;
    use hydraulis_core::plan::Planner;

    /// What a strategy all of whose replicas have work takes on 64 GPUs, over the time of the whole model's bytes.
    fn share(strategy: &str) -> f64 {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let planner =
            Planner::new(cost.profile().clone(), cost.cluster(), Some(vec![strategy.parse().unwrap()])).unwrap();
        let plan = planner.plan(&Batch::new(&[3_000; 64], None).unwrap()).unwrap();
        assert!(plan.replicas.iter().all(|replica| replica.sequences() > 0));
        let layout = layout::positions(&plan);
        let mut link = Link::new(&cost, 200.0).unwrap();
        let once = link.transfer_ms(std::slice::from_ref(&layout)).unwrap();
        assert!(link.transfer_ms(&[layout.clone(), layout]).unwrap().is_close(once * 2.0));
        // 32.5 billion parameters of two bytes at 200 gigabytes a second: 325 ms each way.
        let table = ModelShape::of_profile(&cost.profile().name).unwrap().table().unwrap();
        let elements: u64 = table.parameters().iter().map(layout::Parameter::elements).sum();
        let whole = 4.0 * count(elements) / 200e6;
        assert!((whole / 650.0 - 1.0).abs() < 0.01, "{whole}");
        once.0 / whole
    }

    /// Each node holds the whole model, an eighth of which is at home there.
    #[test]
    fn whole_models_leave_and_reach_each_node_once() {
        for strategy in ["8x<tp8>", "16x<tp4>", "8x<tp4,pp2>"] {
            assert!((share(strategy) - 7.0 / 8.0).abs() < 1e-6, "{strategy}: {}", share(strategy));
        }
    }

    /// A node holds half the model, and between nothing and all of its own eighth is part of that half.
    #[test]
    fn wide_replicas_move_half_as_much() {
        for strategy in ["4x<tp16>", "1x<tp16>"] {
            assert!((3.0 / 8.0..=0.5).contains(&share(strategy)), "{strategy}: {}", share(strategy));
        }
    }

    #[test]
    fn one_node_has_no_links() {
        let cost = CostModel::new(preset("llama-7b-a800").unwrap(), Cluster::new(8, 8).unwrap());
        let whole = Position::new("<tp8>".parse().unwrap(), 0, 0, 0).unwrap();
        let layouts = [vec![Some(whole); 8]];
        assert_eq!(Link::new(&cost, 200.0).unwrap().transfer_ms(&layouts).unwrap(), Millis::ZERO);
    }
}
