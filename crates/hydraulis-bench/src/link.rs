//! The links of a run, and the transfer time of an answer by the core's model of them.

use hydraulis_core::Millis;
use hydraulis_core::cost::CostModel;
use hydraulis_core::layout::{ParameterTable, Position};
use hydraulis_core::pipeline::MakespanBuffers;
use hydraulis_core::plan::{Plan, ReplicaPlan};
use hydraulis_core::spec::{LayerSplit, LinkRates};
use hydraulis_core::timing;
use hydraulis_core::timing::{ReplicaWork, StepTimeline, Traffic, TransferTimes};

use crate::error::Result;

/// Creates the links at these rates for the profile's model.
///
/// Gradients travel in bf16 too, as in the methods compared with.
pub fn link(rates: LinkRates, cost: &CostModel) -> Result<timing::Link> {
    Ok(timing::Link::new(table(cost)?, Traffic { rates, parameter_bytes: 2, gradient_bytes: 2 })?)
}

/// The parameters of the profile's model, over even stages: the shipped profiles were measured with these.
fn table(cost: &CostModel) -> Result<ParameterTable> {
    let model = cost.profile().travelling_model()?;
    let split = LayerSplit::even(LayerSplit::of(model).layers());
    Ok(ParameterTable::with_split(model, split)?)
}

/// The transfer times of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfers {
    /// The exposed time.
    pub transfer_ms: Millis,
    /// The time of all transfers without overlap.
    pub alone_ms: Millis,
}

/// The transfers of phases that run one after another.
///
/// Phases in one layout run consecutively, whatever their order in the answer: parameters are gathered before the first
/// of them and gradients reduced after the last. Layouts do not overlap, since the next one needs the memory of the
/// previous.
pub fn of_phases(phases: &[Plan], cost: &CostModel, link: &timing::Link) -> Result<Transfers> {
    let mut layouts: Vec<(Vec<Option<Position>>, Vec<&Plan>)> = Vec::new();
    for phase in phases {
        let positions = phase.positions();
        match layouts.iter_mut().find(|(known, _)| *known == positions) {
            Some((_, alike)) => alike.push(phase),
            None => layouts.push((positions, vec![phase])),
        }
    }
    let mut all = Transfers::default();
    for (positions, alike) in layouts {
        // Phases run one after another in one layout: their gradients leave once, after the last of them.
        let times = link.transfer_times(&positions, None, cost.cluster(), &cost.profile().every_scheme())?;
        all.alone_ms += times.total();
        all.transfer_ms += match alike[..] {
            [only] => timeline(only, &times, cost, link)?.end - only.iteration_ms,
            [first, .., last] => {
                let still = vec![Millis::ZERO; times.parameters.len()];
                let filled = TransferTimes { gradients: still.clone(), ..times.clone() };
                let emptied = TransferTimes { parameters: still, ..times };
                (timeline(first, &filled, cost, link)?.end - first.iteration_ms)
                    + (timeline(last, &emptied, cost, link)?.end - last.iteration_ms)
            }
            [] => Millis::ZERO,
        };
    }
    Ok(all)
}

/// The timeline of a phase with its transfers.
fn timeline(phase: &Plan, times: &TransferTimes, cost: &CostModel, link: &timing::Link) -> Result<StepTimeline> {
    let at_work: Vec<&ReplicaPlan> =
        phase.replicas.iter().filter(|replica| !replica.micro_batches.is_empty()).collect();
    let micro_batches = |replica: &&ReplicaPlan| {
        let cost = cost.scheme(replica.scheme)?;
        Ok(cost.micro_batch_times(&replica.micro_batches, &phase.batch))
    };
    let durations: Vec<Vec<Millis>> = at_work.iter().map(micro_batches).collect::<Result<_>>()?;
    let work = at_work.iter().zip(&durations).map(|(replica, times)| {
        let cost = cost.scheme(replica.scheme)?;
        let (stage_multipliers, forward_share) = (cost.stage_multipliers(), cost.forward_share());
        Ok(ReplicaWork { scheme: replica.scheme, times, stage_multipliers, forward_share })
    });
    let work: Vec<ReplicaWork> = work.collect::<Result<_>>()?;
    Ok(StepTimeline::new(link.split(), times, work, &mut MakespanBuffers::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::count;
    use hydraulis_core::batch::Batch;
    use hydraulis_core::cost::preset;
    use hydraulis_core::search::Planner;
    use hydraulis_core::spec::Cluster;

    fn cost() -> CostModel {
        CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap())
    }

    /// A plan in which each replica of a strategy has work on 64 GPUs.
    fn plan(strategy: &str) -> Plan {
        let cost = cost();
        let planner =
            Planner::new(cost.profile().clone(), cost.cluster().clone(), Some(vec![strategy.parse().unwrap()]))
                .unwrap();
        let plan = planner.plan(&Batch::new(&[3_000; 64], None).unwrap()).unwrap();
        assert!(plan.replicas.iter().all(|replica| replica.sequences() > 0));
        plan
    }

    /// The time of its transfers without overlap, relative to the time of the whole model's bytes.
    fn share(strategy: &str) -> f64 {
        let link = link("200,1e9,0".parse().unwrap(), &cost()).unwrap();
        let alone = of_phases(&[plan(strategy)], &cost(), &link).unwrap().alone_ms;
        // 32.5 billion parameters of two bytes at 200 gigabytes a second: 325 ms each way.
        let table = table(&cost()).unwrap();
        let elements: u64 = table.parameters().iter().map(hydraulis_core::layout::Parameter::elements).sum();
        let whole = 4.0 * count(elements) / 200e6;
        assert!((whole / 650.0 - 1.0).abs() < 0.01, "{whole}");
        alone.0 / whole
    }

    /// Each node holds the whole model and owns an eighth of it.
    #[test]
    fn whole_models_cross_each_node_boundary_once() {
        for strategy in ["8x<tp8>", "16x<tp4>", "8x<tp4,pp2>"] {
            assert!((share(strategy) - 7.0 / 8.0).abs() < 1e-6, "{strategy}: {}", share(strategy));
        }
    }

    /// A node holds half the model, which contains between none and all of its own eighth of a bucket.
    #[test]
    fn wide_replicas_move_half_as_much() {
        for strategy in ["4x<tp16>", "1x<tp16>"] {
            assert!((3.0 / 8.0..=0.5).contains(&share(strategy)), "{strategy}: {}", share(strategy));
        }
    }

    #[test]
    fn a_layout_is_filled_and_emptied_once() {
        let link = link("200".parse().unwrap(), &cost()).unwrap();
        let (wide, narrow) = (plan("4x<tp16>"), plan("16x<tp4>"));
        let of = |phases: &[&Plan]| {
            let phases: Vec<Plan> = phases.iter().copied().cloned().collect();
            of_phases(&phases, &cost(), &link).unwrap()
        };
        let (one, other) = (of(&[&wide]), of(&[&narrow]));
        let turns = of(&[&wide, &narrow, &wide]);
        assert!(turns.alone_ms.is_close(one.alone_ms + other.alone_ms), "{turns:?}");
        let (again, once) = (of(&[&wide, &wide]), of(&[&wide]));
        assert!(again.alone_ms.is_close(once.alone_ms) && (again.transfer_ms.0 / once.transfer_ms.0 - 1.0).abs() < 0.1);
        assert!(turns.transfer_ms > other.transfer_ms);
    }
}
