//! As many replicas of one scheme as fit on a cluster.

use hydraulis_core::batch::Batch;
use hydraulis_core::capacity::ClassCapacity;
use hydraulis_core::construct::usable_schemes;
use hydraulis_core::cost::{ClassCost, CostModel};
use hydraulis_core::layout::place;
use hydraulis_core::pipeline::{MakespanBuffers, makespan};
use hydraulis_core::spec::{CapacityBudget, Strategy};
use hydraulis_core::{Millis, Result};

use crate::baseline::Work;
use crate::baseline::packs::spaced;

/// Equal replicas that fill a cluster.
#[derive(Clone, Debug)]
pub struct EqualReplicas<'a> {
    /// The cost of a replica.
    pub cost: &'a ClassCost,
    /// The capacity of a replica within a given time.
    pub capacity: ClassCapacity,
    /// The strategy.
    pub strategy: Strategy,
}

impl<'a> EqualReplicas<'a> {
    /// Equal replicas of each scheme that the cluster and its memory allow.
    pub fn every(cost: &'a CostModel) -> Result<Vec<EqualReplicas<'a>>> {
        let schemes = usable_schemes(cost).into_iter();
        schemes.map(|scheme| EqualReplicas::fill(cost, cost.scheme(scheme)?)).collect()
    }

    /// Places as many replicas as fit; replicas whose ranks do not divide a node may leave ranks idle.
    fn fill(model: &CostModel, cost: &'a ClassCost) -> Result<EqualReplicas<'a>> {
        let cluster = model.cluster();
        let most = usize::try_from(u64::from(cluster.gpus()) / cost.scheme().ranks()).unwrap_or(1);
        let of = |count: usize| Strategy::new(vec![cost.scheme(); count]);
        let placed = (1..=most)
            .rev()
            .map(of)
            .find(|strategy| strategy.as_ref().is_ok_and(|strategy| place(strategy, cluster).is_ok()));
        let capacity = ClassCapacity::new(cost.clone(), CapacityBudget::ONLINE);
        Ok(EqualReplicas { cost, capacity, strategy: placed.unwrap_or_else(|| of(1))? })
    }

    /// Number of replicas.
    pub fn count(&self) -> usize {
        self.strategy.schemes().len()
    }

    /// The work with the empty micro-batches that each replica's memory needs.
    pub(crate) fn spaced(&self, batch: &Batch, work: Work) -> Work {
        work.into_iter().map(|micro_batches| spaced(micro_batches, batch, self.cost)).collect()
    }

    /// The simulated time of the slowest replica.
    pub fn time(&self, batch: &Batch, work: &[Vec<Vec<usize>>]) -> Millis {
        let mut buffers = MakespanBuffers::default();
        let work = self.spaced(batch, work.to_vec());
        let slowest = work.iter().map(|micro_batches| replica_ms(self.cost, batch, micro_batches, &mut buffers)).max();
        slowest.unwrap_or_default()
    }
}

/// The simulated time of one replica's micro-batches.
fn replica_ms(cost: &ClassCost, batch: &Batch, work: &[Vec<usize>], buffers: &mut MakespanBuffers) -> Millis {
    let times = cost.micro_batch_times(work, batch);
    makespan(&times, cost.stage_multipliers(), cost.forward_share(), buffers)
}
