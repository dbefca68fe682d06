//! Classes of replicas by their slowest stage, for bounds over every placement.
//!
//! Ranks are grouped into levels of like speed. A replica is of the level of its slowest stage, which is one of its
//! stages; all its ranks are at least of that level. Its relaxed class computes that stage at the greatest speed of the
//! level, and every other stage at the greatest speed of the cluster: no replica of the same slowest stage takes more
//! work or tokens by any time. So there are at most `1 + (levels - 1) * stages` relaxed classes of a scheme, however
//! many ways there are to place its stages, and each replica of any placement has exactly one.

use crate::capacity::ClassCapacity;
use crate::cost::{ClassCost, CostModel, RankPool, ReplicaClass};
use crate::spec::Cluster;

/// The levels of a cluster's ranks by speed, the slowest first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SpeedLevels {
    /// The greatest speed of each level.
    speeds: Vec<f64>,
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
        let mut rates: Vec<f64> = (0..cluster.gpus()).map(|rank| cluster.rate(rank)).collect();
        rates.sort_by(f64::total_cmp);
        let mut rises: Vec<usize> = (1..rates.len()).filter(|&place| rates[place] > rates[place - 1]).collect();
        rises.sort_by(|&one, &other| {
            let rise = |place: usize| rates[place] / rates[place - 1];
            rise(other).total_cmp(&rise(one)).then(one.cmp(&other))
        });
        rises.truncate(most - 1);
        rises.sort_unstable();
        let starts = || std::iter::once(0).chain(rises.iter().copied());
        let ends = rises.iter().copied().chain([rates.len()]);
        let ranks = |start: usize| u32::try_from(rates.len() - start).unwrap_or(u32::MAX);
        SpeedLevels { speeds: ends.map(|end| rates[end - 1]).collect(), ranks: starts().map(ranks).collect() }
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
            for (level, &speed) in self.speeds.iter().enumerate().rev() {
                let fits = u64::from(self.ranks[level]) >= best.scheme().ranks();
                let stages = if level + 1 == self.speeds.len() { 1 } else { best.scheme().stages() };
                for stage in (0..stages).filter(|_| fits) {
                    let mut class: ReplicaClass = best.class().clone();
                    let pool = &mut class.stages[stage];
                    *pool = RankPool { speed, ..*pool };
                    let relaxed = cost.class(class).expect("memory as large as the best ranks' has room for a token");
                    found.push(RelaxedClass { capacity: capacity(relaxed), level });
                }
            }
        }
        found
    }
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
        assert_eq!(levels(&[1.0, 1.0]), SpeedLevels { speeds: vec![1.0], ranks: vec![2] });
        let two = SpeedLevels { speeds: vec![0.5, 1.0], ranks: vec![4, 3] };
        assert_eq!(levels(&[1.0, 0.5, 1.0, 1.0]), two);
        let many = levels(&[0.2, 0.21, 0.4, 0.41, 0.7, 1.0, 1.02, 0.98]);
        assert_eq!(many, SpeedLevels { speeds: vec![0.21, 0.41, 0.7, 1.02], ranks: vec![8, 6, 4, 3] });
    }
}
