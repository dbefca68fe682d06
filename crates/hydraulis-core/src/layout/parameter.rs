//! The parameters of a model, as the layout sees them.

use std::ops::Range;

use crate::error::{LayoutError, Result};
use crate::spec::{LayerSplit, MOST_PARAMETERS, ModelPart, ModelShape, ParameterRow};

/// Most layers: a table has a bucket for each layer, and the deepest models have a few hundred.
const MAX_LAYERS: u32 = 1 << 14;
/// Most elements: as many as a model may have parameters.
const MAX_ELEMENTS: u64 = MOST_PARAMETERS;

/// One parameter: `rows` rows of `row_elements`, in canonical order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the model.
    pub name: String,
    /// Size of the dimension that tensor parallelism splits; of the first dimension if it splits none.
    pub rows: u64,
    /// Elements of one row.
    pub row_elements: u64,
    /// Runs of rows that tensor parallelism does not cut, such as the key/value heads: the tensor ranks divide them,
    /// and hold copies if there are fewer than ranks. With 1 unit every rank holds the whole; with as many units as
    /// rows any cut is possible.
    pub units: u64,
    /// The layer groups that use it: 0 is the embedding, 1 to L are the layers, L + 1 is the head. Two for tied
    /// embeddings. Its bucket is the first.
    pub layer_groups: Vec<u32>,
    /// Whether training updates it. A frozen parameter has neither gradient nor optimizer state.
    pub trained: bool,
}

impl Parameter {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.rows * self.row_elements
    }

    /// The rows of slice `index` of `parts`: whole units, even except for a remainder spread over the ranks.
    pub(super) fn rows_of(&self, index: u32, parts: u32) -> Range<u64> {
        let bound = |index: u32| self.units * u64::from(index) / u64::from(parts);
        let first = bound(index);
        let end = bound(index + 1).max(first + 1);
        let unit_rows = self.rows / self.units;
        first * unit_rows..end * unit_rows
    }
}

/// Every parameter of a model, in bucket order.
///
/// A layer group has a bucket of its trained parameters. If a parameter is frozen, each layer group has a second
/// bucket, and these follow the trained ones. The trained part of every buffer is therefore its beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterTable {
    parameters: Vec<Parameter>,
    split: LayerSplit,
    /// Start of each parameter in its bucket.
    starts: Vec<u64>,
}

impl ParameterTable {
    /// The table of these parameters for a model whose layers `split` assigns to stages. Sorts them by bucket, and
    /// within a bucket by the number of tensor ranks that hold them, most first, so that a rank's elements lie in the
    /// order of their owners.
    ///
    /// Refused with `model_invalid` if an entry describes no parameter, or if layers or elements are more than any model has.
    pub fn new(mut parameters: Vec<Parameter>, split: LayerSplit) -> Result<ParameterTable> {
        check_size(&parameters, split.layers())?;
        for parameter in &parameters {
            check(parameter, split.layers())?;
        }
        parameters.sort_by_key(|parameter| (!parameter.trained, parameter.layer_groups[0], parameter.units));
        let starts = Vec::with_capacity(parameters.len());
        let mut table = ParameterTable { parameters, split, starts };
        let mut filled = vec![0; table.buckets()];
        for parameter in &table.parameters {
            let bucket: &mut u64 = &mut filled[table.bucket(parameter)];
            table.starts.push(*bucket);
            *bucket += parameter.elements();
        }
        Ok(table)
    }

    /// The table without its frozen parameters.
    #[must_use]
    pub fn without_frozen(mut self) -> ParameterTable {
        let count = self.parameters.partition_point(|parameter| parameter.trained);
        self.parameters.truncate(count);
        self.starts.truncate(count);
        self
    }

    /// The table of a model of this shape, its layers split over stages by cost.
    pub fn from_model(model: &ModelShape) -> Result<ParameterTable> {
        ParameterTable::with_split(model, LayerSplit::of(model))
    }

    /// The table of a model of this shape, its layers split over stages by `split`.
    pub fn with_split(model: &ModelShape, split: LayerSplit) -> Result<ParameterTable> {
        let layers = split.layers();
        let expand = |row: &ParameterRow| -> Vec<Parameter> {
            if row.is_of_layers() {
                return (0..layers).map(|layer| entry(row, row.name_in(layer), vec![layer + 1])).collect();
            }
            let group = |part: &ModelPart| if *part == ModelPart::Embedding { 0 } else { layers + 1 };
            vec![entry(row, row.name.clone(), row.parts.iter().map(group).collect())]
        };
        // Before expansion: a shape may state more layers than any table takes.
        check_size(&[], layers)?;
        // In the order of the model: the parameters of a layer stand together.
        let mut parameters: Vec<Parameter> = model.fields().parameters.iter().flat_map(expand).collect();
        parameters.sort_by_key(|parameter| parameter.layer_groups[0]);
        ParameterTable::new(parameters, split)
    }

    /// The parameters, in bucket order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The assignment of the model's layers to stages.
    pub fn split(&self) -> &LayerSplit {
        &self.split
    }

    /// Number of layer groups: the embedding, each layer and the head.
    pub fn layer_groups(&self) -> usize {
        self.split.layers() as usize + 2
    }

    /// Number of buckets: one for each layer group, and one more for each if a parameter is frozen.
    pub fn buckets(&self) -> usize {
        let has_frozen = self.parameters.last().is_some_and(|parameter| !parameter.trained);
        self.layer_groups() * (1 + usize::from(has_frozen))
    }

    fn bucket(&self, parameter: &Parameter) -> usize {
        parameter.layer_groups[0] as usize + if parameter.trained { 0 } else { self.layer_groups() }
    }

    /// The bucket of a parameter, and its elements in the bucket.
    pub(super) fn place(&self, parameter: usize) -> (usize, Range<u64>) {
        let start = self.starts[parameter];
        let entry = &self.parameters[parameter];
        (self.bucket(entry), start..start + entry.elements())
    }

    /// The parameters of a bucket.
    pub(super) fn of_bucket(&self, bucket: usize) -> Range<usize> {
        let before = |bucket: usize| self.parameters.partition_point(|one| self.bucket(one) < bucket);
        before(bucket)..before(bucket + 1)
    }

    /// Elements of each bucket.
    pub(super) fn bucket_elements(&self) -> Vec<u64> {
        let mut elements = vec![0; self.buckets()];
        for parameter in &self.parameters {
            elements[self.bucket(parameter)] += parameter.elements();
        }
        elements
    }
}

fn entry(row: &ParameterRow, name: String, layer_groups: Vec<u32>) -> Parameter {
    Parameter {
        name,
        rows: row.rows,
        row_elements: row.row_elements,
        units: row.units,
        layer_groups,
        trained: row.trained,
    }
}

fn check_size(parameters: &[Parameter], layers: u32) -> Result<()> {
    if layers > MAX_LAYERS {
        return Err(LayoutError::TableSize {
            field: "layers",
            value: layers.to_string(),
            limit: u64::from(MAX_LAYERS),
        }
        .into());
    }
    let elements = |parameter: &Parameter| u128::from(parameter.rows) * u128::from(parameter.row_elements);
    let all = parameters.iter().map(elements).fold(0, u128::saturating_add);
    if all > u128::from(MAX_ELEMENTS) {
        return Err(LayoutError::TableSize { field: "elements", value: all.to_string(), limit: MAX_ELEMENTS }.into());
    }
    Ok(())
}

fn check(parameter: &Parameter, layers: u32) -> Result<()> {
    let wrong = |field: &'static str, value: String, limit: String| {
        Err(LayoutError::ParameterTable { name: parameter.name.clone(), field, value, limit }.into())
    };
    if parameter.elements() == 0 {
        return wrong(
            "rows x row_elements",
            format!("{} x {}", parameter.rows, parameter.row_elements),
            "above 0".into(),
        );
    }
    if parameter.units == 0 || !parameter.rows.is_multiple_of(parameter.units) {
        return wrong("units", parameter.units.to_string(), format!("a divisor of its {} rows", parameter.rows));
    }
    let in_order = parameter.layer_groups.windows(2).all(|pair| pair[0] < pair[1]);
    let known = parameter.layer_groups.iter().all(|&layer_group| layer_group <= layers + 1);
    if parameter.layer_groups.is_empty() || !in_order || !known {
        return wrong(
            "layer_groups",
            format!("{:?}", parameter.layer_groups),
            format!("ascending layer_group numbers from 0 to {}", layers + 1),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;

    fn parameter(rows: u64, units: u64, layer_groups: &[u32]) -> Parameter {
        Parameter { name: "w".into(), rows, row_elements: 3, units, layer_groups: layer_groups.to_vec(), trained: true }
    }

    fn parts(rows: u64, units: u64, parts: u32) -> Vec<Range<u64>> {
        (0..parts).map(|index| parameter(rows, units, &[1]).rows_of(index, parts)).collect()
    }

    /// Llama 32B: 60 layers of nine parameters, embedding, last norm and head.
    #[test]
    fn a_models_rows_are_expanded_over_its_layers() {
        let model = preset("llama-32b-a800").unwrap().model.unwrap();
        let table = ParameterTable::from_model(&model).unwrap();
        assert_eq!(table.parameters().len(), 60 * 9 + 3);
        assert_eq!(table.parameters().iter().map(Parameter::elements).sum::<u64>(), model.parameters());
        let of_layer =
            |layer: u32| table.parameters().iter().filter(|one| one.layer_groups == [layer + 1]).collect::<Vec<_>>();
        assert!(of_layer(7).iter().all(|one| one.name.starts_with("layers.7.")) && of_layer(7).len() == 9);
        assert_eq!(table.buckets(), 62);
    }

    #[test]
    fn rows_are_shared_without_gap() {
        assert_eq!(parts(37, 37, 4), [0..9, 9..18, 18..27, 27..37]);
    }

    #[test]
    fn units_are_not_cut() {
        assert_eq!(parts(12, 4, 2), [0..6, 6..12]);
        assert_eq!(parts(12, 4, 4), [0..3, 3..6, 6..9, 9..12]);
    }

    #[test]
    fn fewer_units_than_ranks_are_copied() {
        assert_eq!(parts(12, 2, 4), [0..6, 0..6, 6..12, 6..12]);
        assert_eq!(parts(12, 1, 3), [0..12, 0..12, 0..12]);
    }

    #[test]
    fn buckets_of_frozen_parameters_follow_those_of_trained_ones() {
        let frozen = |layer_groups| Parameter { trained: false, ..parameter(4, 1, layer_groups) };
        let parameters = vec![frozen(&[1]), parameter(2, 1, &[3]), frozen(&[0]), parameter(6, 1, &[1])];
        let table = ParameterTable::new(parameters, LayerSplit::even(2)).unwrap();
        let of_table = |table: &ParameterTable| (table.buckets(), table.bucket_elements());
        assert_eq!(of_table(&table), (8, vec![0, 18, 0, 6, 12, 12, 0, 0]));
        assert_eq!(of_table(&table.without_frozen()), (4, vec![0, 18, 0, 6]));
    }

    #[test]
    fn tables_larger_than_any_model_are_refused() {
        let refused = |rows, layers| {
            let parameters = vec![parameter(rows, 1, &[1]), parameter(rows, 1, &[2])];
            ParameterTable::new(parameters, LayerSplit::even(layers)).map_err(|error| (error.code(), error.to_string()))
        };
        let (code, text) = refused(1, u32::MAX).unwrap_err();
        assert!(code == "model_invalid" && text.contains("4,294,967,295 layers"), "{text}");
        for rows in [MAX_ELEMENTS, u64::MAX] {
            let (code, text) = refused(rows, 4).unwrap_err();
            assert!(code == "model_invalid" && text.contains("elements"), "{text}");
        }
        assert!(refused(MAX_ELEMENTS / 6, MAX_LAYERS).is_ok());
    }

    #[test]
    fn tables_that_describe_no_model_are_refused() {
        let of_rows = |rows, layer_groups| parameter(rows, rows.max(1), layer_groups);
        let layer_groups = [of_rows(0, &[1]), of_rows(2, &[]), of_rows(2, &[2, 1]), of_rows(2, &[9])];
        for bad in layer_groups.into_iter().chain([parameter(2, 0, &[1]), parameter(3, 2, &[1])]) {
            assert_eq!(ParameterTable::new(vec![bad], LayerSplit::even(4)).unwrap_err().code(), "model_invalid");
        }
    }
}
