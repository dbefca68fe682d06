//! How much each node sends and receives when gradients go home, and parameters come back.
//!
//! Between nodes an element crosses once for each node that holds it, however many of its ranks do: gradients of
//! ranks that hold the same elements are added inside the node first, and a parameter that came in once is shared
//! inside it. This counts; [`transfer()`](crate::layout::transfer()), which moves, adds at home alone.
//!
//! Nodes whose ranks stand at the same positions hold the same elements, so the cost grows with the distinct ones
//! among them times the nodes, not with pairs of ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::{Error, Result};
use crate::layout::{Home, ParameterTable, Position, held_slices};

/// Elements that one node trades with the others, in the direction of gradients; parameters go the other way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeVolume {
    /// Elements that leave the node: held there, at home elsewhere.
    pub sent: u64,
    /// Elements that come to it: at home there, held elsewhere, once for each node that holds them.
    pub received: u64,
}

/// The volume of each node of `gpus_per_node` ranks, between home and the layout in which each rank stands at its
/// position.
///
/// Refused with `ranks_mismatch` where home is not over the same ranks, with `too_many_stages` where a position is
/// of a pipeline that the model has too few layers for.
pub fn node_volumes(
    table: &ParameterTable,
    home: &Home,
    positions: &[Option<Position>],
    gpus_per_node: u32,
) -> Result<Vec<NodeVolume>> {
    let gpus = positions.len() as u64;
    if gpus != home.ranks() {
        return Err(Error::RanksMismatch { rank: 0, gpus, home: home.ranks() });
    }
    let node = gpus_per_node.max(1) as usize;
    let mut alike: BTreeMap<BTreeSet<Position>, Vec<usize>> = BTreeMap::new();
    for (index, ranks) in positions.chunks(node).enumerate() {
        alike.entry(ranks.iter().flatten().copied().collect()).or_default().push(index);
    }
    let mut volumes = vec![NodeVolume::default(); positions.len().div_ceil(node)];
    for (held, nodes) in &alike {
        let shared = shared_with_homes(table, home, &held_runs(table, held)?, node);
        let all: u64 = shared.iter().sum();
        for &holder in nodes {
            volumes[holder].sent = all - shared[holder];
        }
        for (index, volume) in volumes.iter_mut().enumerate() {
            let others = nodes.len() - usize::from(nodes.binary_search(&index).is_ok());
            volume.received += shared[index] * others as u64;
        }
    }
    Ok(volumes)
}

/// What ranks at these positions hold together: by bucket, disjoint runs of its elements in order.
fn held_runs(table: &ParameterTable, positions: &BTreeSet<Position>) -> Result<Vec<Vec<Range<u64>>>> {
    let mut runs: Vec<Vec<Range<u64>>> = vec![Vec::new(); table.buckets()];
    for &position in positions {
        for slice in held_slices(table, position)? {
            let (bucket, place) = table.place(slice.parameter);
            let width = table.parameters()[slice.parameter].row_elements;
            runs[bucket].push(place.start + slice.rows.start * width..place.start + slice.rows.end * width);
        }
    }
    Ok(runs.into_iter().map(joined).collect())
}

/// The same elements, each once.
fn joined(mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
    runs.sort_by_key(|run| run.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => joined.push(run),
        }
    }
    joined
}

/// How many of these elements are at home in each node.
fn shared_with_homes(table: &ParameterTable, home: &Home, runs: &[Vec<Range<u64>>], node: usize) -> Vec<u64> {
    let ranks = 0..home.ranks();
    let nodes = ranks.clone().step_by(node).map(|first| first..(first + node as u64).min(ranks.end));
    let in_bucket = |bucket: usize, ranks: &Range<u64>| -> u64 {
        let (start, end) = (home.piece(bucket, ranks.start).start, home.piece(bucket, ranks.end - 1).end);
        runs[bucket].iter().map(|run| run.end.min(end).saturating_sub(run.start.max(start))).sum()
    };
    nodes.map(|ranks| (0..table.buckets()).map(|bucket| in_bucket(bucket, &ranks)).sum()).collect()
}
