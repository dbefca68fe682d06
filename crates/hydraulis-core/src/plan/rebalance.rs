//! A strategy with more replicas of the schemes that end late.
//!
//! On a large cluster there are so many replicas of each scheme that their numbers can be read off one plan: those of a
//! scheme that ends late in a first deal are too few by about as much. A walk to neighbours would find the same, one replica at
//! a time.

use crate::error::Result;
use crate::plan::attempt::Task;
use crate::spec::{Cluster, Scheme, Strategy};
use crate::units::{Millis, count, whole};

/// A scheme ends late by its mean, and by this many times what its last replica is behind that: longest first leaves a
/// smaller spread where there are more. One plan at 16,384 GPUs gets no shorter by 1 or 2.
const SPREAD: f64 = 1.5;

/// The replicas of one scheme.
struct Group {
    scheme: Scheme,
    replicas: usize,
    total: Millis,
    latest: Millis,
}

/// The strategy with as many replicas of each scheme as would end together, once the batch is dealt to it; none where
/// nothing is left.
pub(super) fn rebalanced(task: &Task, strategy: &Strategy, cluster: Cluster) -> Result<Option<Strategy>> {
    let mut groups = groups(strategy, &task.ends(strategy)?);
    Ok(resized(&mut groups, cluster).and_then(|()| {
        let replicas = groups.iter().flat_map(|group| std::iter::repeat_n(group.scheme, group.replicas));
        Strategy::new(replicas.collect()).ok()
    }))
}

fn resized(groups: &mut [Group], cluster: Cluster) -> Option<()> {
    let taken =
        |groups: &[Group]| -> u64 { groups.iter().map(|group| group.scheme.ranks() * group.replicas as u64).sum() };
    let gpu_ms: f64 = groups.iter().map(|group| count(group.scheme.ranks()) * group.total.0).sum();
    let ranks = taken(groups);
    let mean = gpu_ms / count(ranks);
    for group in groups.iter_mut() {
        let own = group.total.0 / count(group.replicas);
        let late = own + SPREAD * (group.latest.0 - own);
        // The last of a scheme may be the only one that admits the longest sequence.
        group.replicas = usize::try_from(whole(count(group.replicas) * late / mean + 0.5)).ok()?.max(1);
    }
    // The scheme of most replicas misses one least.
    while taken(groups) > u64::from(cluster.gpus()) {
        groups.iter_mut().max_by_key(|group| group.replicas)?.replicas -= 1;
    }
    Some(())
}

/// A strategy's replicas by scheme, with their ends; those of one stand side by side.
fn groups(strategy: &Strategy, ends: &[Millis]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (&scheme, &end) in strategy.schemes().iter().zip(ends) {
        match groups.last_mut() {
            Some(group) if group.scheme == scheme => {
                group.replicas += 1;
                group.total += end;
                group.latest = group.latest.max(end);
            }
            _ => groups.push(Group { scheme, replicas: 1, total: end, latest: end }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Capacities;
    use crate::cost::{CostModel, preset};
    use crate::lengths::Batch;
    use crate::watch::UNWATCHED;

    #[test]
    fn ranks_go_to_the_scheme_that_ends_late() {
        // 12 sequences that <tp8> alone admits make its 8 replicas end long after those of <tp4>.
        let cluster = Cluster::new(128, 8).unwrap();
        let capacities = Capacities::new(CostModel::new(preset("llama-32b-a800").unwrap(), cluster));
        let lengths = [vec![20_000; 12], vec![500; 60]].concat();
        let batch = Batch::new(&lengths, None).unwrap();
        let task = Task::new(&batch, &capacities, None, 0, UNWATCHED);
        let before = "8x<tp8>+16x<tp4>".parse().unwrap();
        let strategy = rebalanced(&task, &before, cluster).unwrap().unwrap();
        let ranks: u64 = strategy.schemes().iter().map(|scheme| scheme.ranks()).sum();
        assert!(strategy.groups()[0].1 > 8 && ranks <= 128, "{strategy}");
        assert!(task.draft(&strategy).unwrap().ms() < task.draft(&before).unwrap().ms());
    }
}
