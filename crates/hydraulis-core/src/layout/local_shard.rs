//! The local shard of a rank under a strategy.

use std::ops::{Range, RangeInclusive};

use crate::error::Result;
use crate::layout::{ParameterTable, Position};
use crate::spec::{LayerSplit, Scheme};

/// A slice of a parameter in a rank's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// Index in the table.
    pub parameter: usize,
    /// Rows of the parameter.
    pub rows: Range<u64>,
    /// Start in the rank's buffer, in elements.
    pub offset: u64,
}

/// The slices of a rank at `position`, packed in table order from the start of its buffer.
///
/// The table's split assigns layers to stages; the first stage has the embedding, the last one the head. Context ranks
/// hold the same slices.
pub fn local_slices(table: &ParameterTable, position: Position) -> Result<Vec<LocalSlice>> {
    let layer_groups = stage_layer_groups(table.split(), position.scheme, position.stage())?;
    let mut offset = 0;
    let mut slices = Vec::new();
    for (index, parameter) in table.parameters().iter().enumerate() {
        if parameter.layer_groups.iter().any(|layer_group| layer_groups.contains(layer_group)) {
            let rows = parameter.rows_of(position.tensor_slice().into(), position.scheme.tp().into());
            let elements = (rows.end - rows.start) * parameter.row_elements;
            slices.push(LocalSlice { parameter: index, rows, offset });
            offset += elements;
        }
    }
    Ok(slices)
}

/// The layer groups of a stage: the first has the embedding before its layers, the last the head after them.
pub(crate) fn stage_layer_groups(split: &LayerSplit, scheme: Scheme, stage: u16) -> Result<RangeInclusive<u32>> {
    let layers = split.stage(scheme, stage)?;
    let first = if stage == 0 { 0 } else { layers.start + 1 };
    let last = if stage + 1 == scheme.pp() { layers.end + 1 } else { layers.end };
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_share_the_layer_groups_without_gap() {
        for (layers, head_layers, stages) in [(4, 0.0, 1), (4, 1.5, 3), (7, 0.2, 7), (60, 5.0, 8)] {
            let split = LayerSplit::new(layers, head_layers).unwrap();
            let scheme = Scheme::new(1, 1, stages).unwrap();
            let layer_groups = (0..stages).flat_map(|stage| stage_layer_groups(&split, scheme, stage).unwrap());
            assert!(layer_groups.eq(0..=layers + 1), "{layers} layers on {stages} stages");
        }
    }
}
