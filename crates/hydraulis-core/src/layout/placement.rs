//! Places replicas on ranks.

use crate::error::{Result, StrategyError};
use crate::spec::{Cluster, Strategy};

/// The ranks of each replica, stage by stage; within a stage context rank by context rank, each in tensor order.
///
/// A stage is an aligned group of ranks: inside one node up to the node's size, whole nodes above it. Alignment keeps
/// tensor- and context-parallel traffic on the fast links, and the set of process groups small, because the same groups
/// recur under every strategy. The strategy's canonical order places wide groups first, so narrow ones fill the rest;
/// each group takes the first free place, and so stages follow each other.
pub fn place(strategy: &Strategy, cluster: Cluster) -> Result<Vec<Vec<u32>>> {
    if strategy.ranks() > u64::from(cluster.gpus()) {
        let (needed, gpus) = (strategy.ranks(), cluster.gpus());
        return Err(StrategyError::TooLarge { strategy: strategy.to_string(), needed, gpus }.into());
    }
    let mut free = FreeRanks::new(cluster);
    let replicas = strategy.schemes().iter().enumerate().map(|(replica, &scheme)| {
        let mut ranks = Vec::new();
        for _stage in 0..scheme.pp() {
            let stage_group = free.take(scheme.stage_group_ranks()).ok_or_else(|| StrategyError::PlacementFailed {
                strategy: strategy.to_string(),
                replica,
                scheme,
                stage_group: scheme.stage_group_ranks(),
                gpus_per_node: cluster.gpus_per_node(),
            })?;
            ranks.extend(stage_group);
        }
        Ok(ranks)
    });
    replicas.collect()
}

struct FreeRanks {
    taken: Vec<bool>,
    cluster: Cluster,
    /// End of the last search for a group of this size: earlier places cannot have become free.
    resume: (u32, u32),
}

impl FreeRanks {
    fn new(cluster: Cluster) -> FreeRanks {
        FreeRanks { taken: vec![false; cluster.gpus() as usize], cluster, resume: (0, 0) }
    }

    /// The first free aligned group.
    fn take(&mut self, stage_group: u32) -> Option<std::ops::Range<u32>> {
        let (gpus, node) = (self.cluster.gpus(), self.cluster.gpus_per_node());
        if stage_group > node && !stage_group.is_multiple_of(node) {
            return None;
        }
        let mut start = if self.resume.0 == stage_group { self.resume.1 } else { 0 };
        while start + stage_group <= gpus {
            let offset = start % node;
            if stage_group <= node && offset + stage_group > node {
                start += node - offset;
                continue;
            }
            let ranks = start as usize..(start + stage_group) as usize;
            if self.taken[ranks.clone()].iter().all(|taken| !taken) {
                self.taken[ranks].fill(true);
                self.resume = (stage_group, start + stage_group);
                return Some(start..start + stage_group);
            }
            // Above a node's size the next place is the next node; below it, groups tile the node.
            start += stage_group.min(node);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn placed(strategy: &str, gpus: u32, node: u32) -> Result<Vec<Vec<u32>>> {
        place(&strategy.parse().unwrap(), Cluster::new(gpus, node).unwrap())
    }

    #[test]
    fn stage_groups_are_aligned_and_consecutive() {
        let ranks = placed("1x<tp4>+1x<tp2,pp2>+2x<1>", 16, 8).unwrap();
        assert_eq!(ranks, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8], vec![9]]);
        let ranks = placed("1x<tp16>+2x<tp8,pp3>", 64, 8).unwrap();
        assert_eq!(ranks[1], (16..40).collect::<Vec<_>>());
        // Context ranks are part of the group.
        let ranks = placed("1x<tp2,cp4>+1x<cp2,pp2>+2x<cp2>", 16, 8).unwrap();
        assert_eq!(ranks, [vec![0, 1, 2, 3, 4, 5, 6, 7], vec![8, 9, 10, 11], vec![12, 13], vec![14, 15]]);
        // Three ranks do not divide a node of eight: the third group starts on the next node.
        assert_eq!(placed("3x<tp3>", 16, 8).unwrap()[2], [8, 9, 10]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        assert_eq!(placed("3x<tp4>", 8, 8).unwrap_err().code(), "strategy_unplaceable");
        assert!(matches!(
            placed("3x<tp4>", 8, 8),
            Err(Error::Strategy(StrategyError::TooLarge { needed: 12, gpus: 8, .. }))
        ));
        for (strategy, group) in [("1x<tp12>", 12), ("1x<tp3,cp4>", 12), ("5x<tp3>", 3)] {
            let error = placed(strategy, 16, 8).unwrap_err();
            assert_eq!(error.code(), "strategy_unplaceable");
            assert!(
                matches!(error, Error::Strategy(StrategyError::PlacementFailed { stage_group, .. }) if stage_group == group)
            );
        }
    }

    #[test]
    fn no_rank_is_used_twice() {
        let ranks = placed("1x<tp8>+3x<tp4>+1x<tp2,pp4>+2x<pp2>", 32, 8).unwrap();
        let mut all: Vec<u32> = ranks.concat();
        let used = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), used);
    }
}
