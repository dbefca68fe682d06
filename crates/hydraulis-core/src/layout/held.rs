//! What a rank holds under a strategy.

use std::ops::{Range, RangeInclusive};

use crate::error::{Error, Result};
use crate::layout::{ParameterTable, Position};
use crate::spec::Scheme;

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

/// The slices that a rank at `position` holds, packed in table order from the start of its buffer.
///
/// Layers are shared over the stages evenly, the first stage has the embedding, the last one the head. Context
/// ranks hold the same.
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

/// The blocks of a stage: layers are shared evenly, the first has the embedding, the last the head.
pub(super) fn stage_blocks(layers: u32, scheme: Scheme, stage: u16) -> Result<RangeInclusive<u32>> {
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
