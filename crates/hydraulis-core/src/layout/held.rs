//! What a rank holds under a strategy.

use std::ops::{Range, RangeInclusive};

use crate::error::{Error, Result};
use crate::layout::ParameterTable;
use crate::plan::Plan;
use crate::spec::{Cluster, Scheme, Strategy};
use crate::strategy::place;

/// Where a rank stands in its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// How the replica is cut.
    pub scheme: Scheme,
    /// The rank's pipeline stage.
    pub stage: u16,
    /// Its place among the stage's tensor ranks.
    pub tensor_rank: u16,
}

impl Position {
    /// The place of stage `stage` and tensor rank `tensor_rank` in a replica of `scheme`.
    pub fn new(scheme: Scheme, stage: u16, tensor_rank: u16) -> Result<Position> {
        if stage >= scheme.pp() || tensor_rank >= scheme.tp() {
            return Err(Error::PositionOutOfRange { scheme, stage, tensor_rank });
        }
        Ok(Position { scheme, stage, tensor_rank })
    }
}

/// A slice of a parameter in a rank's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSlice {
    /// Index in the table.
    pub parameter: usize,
    /// Its rows.
    pub rows: Range<u64>,
    /// Where it starts in the rank's buffer, in elements.
    pub offset: u64,
}

/// The position of every rank of the cluster under `plan`; none for ranks without work.
///
/// A replica that got no sequence holds nothing: its ranks take part in the iteration as homes alone.
pub fn positions(plan: &Plan) -> Vec<Option<Position>> {
    let at_work = plan.replicas.iter().filter(|replica| !replica.micro_batches.is_empty());
    positions_of(at_work.map(|replica| (replica.scheme, replica.ranks.as_slice())), plan.cluster)
}

/// The position of every rank of the cluster where each replica of `strategy` has work.
pub fn strategy_positions(strategy: &Strategy, cluster: Cluster) -> Result<Vec<Option<Position>>> {
    let ranks = place(strategy, cluster)?;
    let replicas = strategy.schemes().iter().copied().zip(ranks.iter().map(Vec::as_slice));
    Ok(positions_of(replicas, cluster))
}

fn positions_of<'a>(replicas: impl Iterator<Item = (Scheme, &'a [u32])>, cluster: Cluster) -> Vec<Option<Position>> {
    let mut positions = vec![None; cluster.gpus() as usize];
    for (scheme, ranks) in replicas {
        for (stage, block) in (0_u16..).zip(ranks.chunks(scheme.block() as usize)) {
            for (tensor_rank, &rank) in (0_u16..).zip(block) {
                positions[rank as usize] = Some(Position { scheme, stage, tensor_rank });
            }
        }
    }
    positions
}

/// The slices that a rank at `position` holds, packed in table order from the start of its buffer.
///
/// Layers are shared over the stages evenly, the first stage has the embedding, the last one the head.
pub fn held_slices(table: &ParameterTable, position: Position) -> Result<Vec<HeldSlice>> {
    let blocks = stage_blocks(table.layers(), position.scheme, position.stage)?;
    let mut offset = 0;
    let mut slices = Vec::new();
    for (index, parameter) in table.parameters().iter().enumerate() {
        if parameter.blocks.iter().any(|block| blocks.contains(block)) {
            let rows = parameter.rows_of(u32::from(position.tensor_rank), u32::from(position.scheme.tp()));
            let elements = (rows.end - rows.start) * parameter.row_elements;
            slices.push(HeldSlice { parameter: index, rows, offset });
            offset += elements;
        }
    }
    Ok(slices)
}

fn stage_blocks(layers: u32, scheme: Scheme, stage: u16) -> Result<RangeInclusive<u32>> {
    let stages = scheme.pp();
    if u32::from(stages) > layers {
        return Err(Error::TooManyStages { scheme, stages, layers });
    }
    let bound = |stage: u16| layers * u32::from(stage) / u32::from(stages);
    let first = if stage == 0 { 0 } else { bound(stage) + 1 };
    let last = if stage + 1 == stages { layers + 1 } else { bound(stage + 1) };
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_share_the_blocks_without_gap() {
        for (layers, stages) in [(4, 1), (4, 3), (7, 7), (60, 8)] {
            let scheme = Scheme::new(1, 1, stages).unwrap();
            let blocks = (0..stages).flat_map(|stage| stage_blocks(layers, scheme, stage).unwrap());
            assert!(blocks.eq(0..=layers + 1), "{layers} layers on {stages} stages");
        }
        let deep = Scheme::new(1, 1, 5).unwrap();
        assert_eq!(stage_blocks(4, deep, 0).unwrap_err().code(), "too_many_stages");
    }
}
