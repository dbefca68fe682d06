//! Classes of replicas by their slowest stage, for bounds over every placement.
//!
//! Ranks are grouped into levels of like speed. A replica is of the level of its slowest stage, which is one of its
//! stages; all its ranks are at least of that level. Its relaxed class computes that stage at the greatest speed of its
//! device in the level, and every other stage at the greatest speed of the cluster: no replica of the same slowest stage
//! takes more work or tokens by any time. So where each level has one device there are at most
//! `1 + (levels - 1) * stages` relaxed classes of a scheme, however many ways there are to place its stages, and each
//! replica of any placement has exactly one.

use crate::capacity::ClassCapacity;
use crate::cost::{ClassCost, CostModel, RankPool, ReplicaClass};
use crate::spec::Cluster;

/// The levels of a cluster's ranks by speed, the slowest first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SpeedLevels {
    /// The devices of each level, each with its greatest speed there.
    devices: Vec<Vec<(u16, f64)>>,
    /// Number of ranks of each level and of faster ones.
    ranks: Vec<u32>,
}

/// A class that no replica with the same slowest stage exceeds.
#[derive(Clone, Debug)]
pub(crate) struct RelaxedClass {
    /// Its capacity.
    pub(crate) capacity: ClassCapacity,
    /// The level of its slowest stage.
    pub(crate) level: usize,
}

impl SpeedLevels {
    /// At most `most` levels of the cluster: its different rates, split where neighbouring ones differ most.
    pub(super) fn of_cluster(cluster: &Cluster, most: usize) -> SpeedLevels {
        let mut ranks: Vec<(f64, u16)> =
            (0..cluster.gpus()).map(|rank| (cluster.rate(rank), cluster.device(rank))).collect();
        ranks.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut rises: Vec<usize> = (1..ranks.len()).filter(|&place| ranks[place].0 > ranks[place - 1].0).collect();
        rises.sort_by(|&one, &other| {
            let rise = |place: usize| ranks[place].0 / ranks[place - 1].0;
            rise(other).total_cmp(&rise(one)).then(one.cmp(&other))
        });
        rises.truncate(most - 1);
        rises.sort_unstable();
        let starts = || std::iter::once(0).chain(rises.iter().copied());
        let ends = rises.iter().copied().chain([ranks.len()]);
        let devices = starts().zip(ends).map(|(start, end)| fastest_of_each_device(&ranks[start..end])).collect();
        let at_least = |start: usize| u32::try_from(ranks.len() - start).unwrap_or(u32::MAX);
        SpeedLevels { devices, ranks: starts().map(at_least).collect() }
    }

    pub(super) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The relaxed classes of every scheme that has room for a token; none if all ranks are alike.
    pub(super) fn relaxed(
        &self,
        cost: &CostModel,
        mut capacity: impl FnMut(ClassCost) -> ClassCapacity,
    ) -> Vec<RelaxedClass> {
        if cost.cluster().is_uniform() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for best in cost.best().iter().filter(|best| best.cap().0 > 0) {
            let (scheme, fastest) = (best.scheme(), best.class().stages[0].speed);
            let fitting = (0..self.devices.len()).filter(|&level| u64::from(self.ranks[level]) >= scheme.ranks()).rev();
            let slowest =
                fitting.flat_map(|level| self.devices[level].iter().map(move |&of_device| (level, of_device)));
            for (level, (device, speed)) in slowest {
                let stages = if speed < fastest { scheme.stages() } else { 1 };
                for stage in 0..stages {
                    let mut class: ReplicaClass = best.class().clone();
                    let pool = &mut class.stages[stage];
                    *pool = RankPool { speed, device, ..*pool };
                    let relaxed =
                        cost.exceeding(class).expect("memory as large as the best ranks' has room for a token");
                    found.push(RelaxedClass { capacity: capacity(relaxed), level });
                }
            }
        }
        found
    }
}

/// Each device of these ranks, which are in ascending order of speed, with its greatest speed.
fn fastest_of_each_device(ranks: &[(f64, u16)]) -> Vec<(u16, f64)> {
    let mut found: Vec<(u16, f64)> = Vec::new();
    for &(speed, device) in ranks.iter().rev() {
        if found.iter().all(|&(known, _)| known != device) {
            found.push((device, speed));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(rates: &[f64]) -> SpeedLevels {
        let gpus = u32::try_from(rates.len()).unwrap();
        SpeedLevels::of_cluster(&Cluster::new(gpus, gpus).unwrap().with_rates(rates.to_vec()).unwrap(), 4)
    }

    #[test]
    fn levels_are_split_where_speeds_differ_most() {
        let of_one = |speeds: &[f64]| speeds.iter().map(|&speed| vec![(0, speed)]).collect::<Vec<_>>();
        assert_eq!(levels(&[1.0, 1.0]), SpeedLevels { devices: of_one(&[1.0]), ranks: vec![2] });
        let two = SpeedLevels { devices: of_one(&[0.5, 1.0]), ranks: vec![4, 3] };
        assert_eq!(levels(&[1.0, 0.5, 1.0, 1.0]), two);
        let many = levels(&[0.2, 0.21, 0.4, 0.41, 0.7, 1.0, 1.02, 0.98]);
        assert_eq!(many, SpeedLevels { devices: of_one(&[0.21, 0.41, 0.7, 1.02]), ranks: vec![8, 6, 4, 3] });
    }
}
