//! The parameter table, local shards and optimizer shards.

use std::sync::Arc;

use hydraulis_core::LayoutError;
use hydraulis_core::layout;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::errors::raise;
use crate::convert::gil::detached;
use crate::convert::integers::{Integer, counts_of};
use crate::convert::text::Text;
use crate::cost::profile::ModelShape;
use crate::spec::{Cluster, LayerSplit, Scheme};

/// A parameter: `rows` rows of `row_elements` elements, in canonical order.
///
/// Args:
///     name: Name in the model.
///     rows: Size of the dimension that tensor parallelism splits, or of the first dimension if it splits none.
///     row_elements: Elements of one row.
///     units: Number of row runs that tensor parallelism does not split; 1 keeps the parameter whole on every rank, `rows`
///         allows a split at any row.
///     layer_groups: Layer groups that use the parameter: 0 the embedding, 1 to L the layers, L + 1 the head.
///     trained: Whether training updates it; a frozen parameter has neither gradient nor optimizer state.
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Name in the model.
    name: String,
    /// Size of the dimension that tensor parallelism splits, or of the first dimension if it splits none.
    rows: u64,
    /// Elements of one row.
    row_elements: u64,
    /// Number of row runs that tensor parallelism does not split; 1 keeps it whole, `rows` allows a split at any row.
    units: u64,
    /// Layer groups that use the parameter: 0 the embedding, 1 to L the layers, L + 1 the head.
    layer_groups: Vec<u32>,
    /// Whether training updates it.
    trained: bool,
}

#[pymethods]
impl Parameter {
    #[new]
    #[pyo3(signature = (name, *, rows, row_elements, units, layer_groups, trained=true))]
    fn new(
        py: Python<'_>,
        name: Text<'_>,
        rows: Integer,
        row_elements: Integer,
        units: Integer,
        layer_groups: Vec<Integer>,
        trained: bool,
    ) -> PyResult<Parameter> {
        Ok(Parameter {
            name: name.to_string(),
            rows: rows.count(py, "rows")?,
            row_elements: row_elements.count(py, "row_elements")?,
            units: units.count(py, "units")?,
            layer_groups: counts_of(py, "layer_groups", layer_groups)?,
            trained,
        })
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((&str,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("rows", self.rows)?;
        named.set_item("row_elements", self.row_elements)?;
        named.set_item("units", self.units)?;
        named.set_item("layer_groups", &self.layer_groups)?;
        named.set_item("trained", self.trained)?;
        Ok(((&self.name,), named))
    }
}

/// Every parameter of a model, in bucket order.
///
/// Args:
///     parameters: Parameters of the model, in any order.
///     split: Assignment of the layers to pipeline stages.
///
/// Raises:
///     InvalidInputError: The parameters do not describe a model (code `model_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct ParameterTable(pub(crate) Arc<layout::ParameterTable>);

#[pymethods]
impl ParameterTable {
    #[new]
    #[pyo3(signature = (parameters, split))]
    fn new(py: Python<'_>, parameters: Vec<PyRef<'_, Parameter>>, split: &LayerSplit) -> PyResult<ParameterTable> {
        let core = |parameter: PyRef<'_, Parameter>| layout::Parameter {
            name: parameter.name.clone(),
            rows: parameter.rows,
            row_elements: parameter.row_elements,
            units: parameter.units,
            layer_groups: parameter.layer_groups.clone(),
            trained: parameter.trained,
        };
        let parameters = parameters.into_iter().map(core).collect();
        let table = detached(py, || layout::ParameterTable::new(parameters, split.0.clone()))?;
        Ok(ParameterTable(Arc::new(table)))
    }

    /// Assignment of the model's layers to pipeline stages.
    #[getter]
    fn split(&self) -> LayerSplit {
        LayerSplit(self.0.split().clone())
    }

    /// Builds the parameter table of a model of this shape, without weights.
    #[staticmethod]
    fn from_model(py: Python<'_>, model: &ModelShape) -> PyResult<ParameterTable> {
        let table = detached(py, || layout::ParameterTable::from_model(&model.0))?;
        Ok(ParameterTable(Arc::new(table)))
    }

    /// Parameters in bucket order.
    #[getter]
    fn parameters(&self) -> Vec<Parameter> {
        let own = |parameter: &layout::Parameter| Parameter {
            name: parameter.name.clone(),
            rows: parameter.rows,
            row_elements: parameter.row_elements,
            units: parameter.units,
            layer_groups: parameter.layer_groups.clone(),
            trained: parameter.trained,
        };
        self.0.parameters().iter().map(own).collect()
    }

    fn __getnewargs__(&self) -> (Vec<Parameter>, LayerSplit) {
        (self.parameters(), self.split())
    }
}

/// Position of a rank in its replica.
#[pyclass(frozen, eq, hash, module = "hydraulis._core")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position(pub(crate) layout::Position);

#[pymethods]
impl Position {
    #[new]
    #[pyo3(signature = (scheme, *, stage, context_rank, tensor_rank))]
    fn new(py: Python<'_>, scheme: &Scheme, stage: u16, context_rank: u16, tensor_rank: u16) -> PyResult<Position> {
        let place = layout::Position::new(scheme.0, stage, context_rank, tensor_rank);
        place.map(Position).map_err(|error| raise(py, &error))
    }

    /// Every position in a replica of a scheme, in rank order.
    #[staticmethod]
    fn all(scheme: &Scheme) -> Vec<Position> {
        layout::Position::all(scheme.0).map(Position).collect()
    }

    /// Ranks of the tensor group that contains `rank` at this position, in tensor order; they share its tokens.
    fn tensor_group(&self, py: Python<'_>, rank: Integer) -> PyResult<Vec<u32>> {
        let rank = rank.count(py, "rank")?;
        self.0.tensor_group(rank).map_err(|error| raise(py, &error))
    }

    /// Ranks of the context group that contains `rank` at this position, in context order; they hold the same
    /// parameters.
    fn context_group(&self, py: Python<'_>, rank: Integer) -> PyResult<Vec<u32>> {
        let rank = rank.count(py, "rank")?;
        self.0.context_group(rank).map_err(|error| raise(py, &error))
    }

    /// Scheme of the replica.
    #[getter]
    fn scheme(&self) -> Scheme {
        Scheme(self.0.scheme)
    }

    /// Pipeline stage, from 0.
    #[getter]
    fn stage(&self) -> u16 {
        self.0.stage()
    }

    /// Most micro-batches in flight at once on its stage under 1F1B.
    #[getter]
    fn in_flight(&self) -> u16 {
        self.0.scheme.in_flight(self.0.stage())
    }

    /// Context rank in its stage, from 0.
    #[getter]
    fn context_rank(&self) -> u16 {
        self.0.context_rank()
    }

    /// Tensor rank among the ranks that share its tokens, from 0.
    #[getter]
    fn tensor_rank(&self) -> u16 {
        self.0.tensor_rank()
    }

    /// Index of its slice of the stage's parameters, from 0. It differs from the tensor rank, so that a rank's slice
    /// under <tp4> is a part of its slice under <tp2>.
    #[getter]
    fn tensor_slice(&self) -> u16 {
        self.0.tensor_slice()
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((Scheme,), Bound<'py, PyDict>)> {
        let (scheme, stage) = (self.0.scheme, self.0.stage());
        let (context_rank, tensor_rank) = (self.0.context_rank(), self.0.tensor_rank());
        let places = [("stage", stage), ("context_rank", context_rank), ("tensor_rank", tensor_rank)];
        Ok(((Scheme(scheme),), places.into_py_dict(py)?))
    }

    fn __repr__(&self) -> String {
        let (scheme, stage) = (self.0.scheme, self.0.stage());
        let (context_rank, tensor_rank) = (self.0.context_rank(), self.0.tensor_rank());
        format!("Position('{scheme}', stage={stage}, context_rank={context_rank}, tensor_rank={tensor_rank})")
    }
}

/// A slice of a parameter in a rank's local shard.
#[pyclass(frozen, get_all, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct LocalSlice {
    /// Index in the parameter table.
    parameter: usize,
    /// First row.
    row_start: u64,
    /// Row after the last.
    row_end: u64,
    /// Start in the local buffer, in elements.
    offset: u64,
    /// Number of elements.
    elements: u64,
}

/// Slices of the local shard at a position, packed from the start of the rank's buffer.
#[pyfunction]
pub(crate) fn local_slices(py: Python<'_>, table: &ParameterTable, position: &Position) -> PyResult<Vec<LocalSlice>> {
    let slices = detached(py, || layout::local_slices(&table.0, position.0))?;
    let own = |slice: layout::LocalSlice| LocalSlice {
        parameter: slice.parameter,
        row_start: slice.rows.start,
        row_end: slice.rows.end,
        offset: slice.offset,
        elements: (slice.rows.end - slice.rows.start) * table.0.parameters()[slice.parameter].row_elements,
    };
    Ok(slices.into_iter().map(own).collect())
}

/// A part of a parameter in a rank's optimizer shard, in canonical elements.
#[pyclass(frozen, get_all, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct ShardSlice {
    /// Index in the parameter table.
    parameter: usize,
    /// First element, in canonical order.
    start: u64,
    /// Element after the last.
    end: u64,
    /// Start in the optimizer shard's buffer, in elements.
    offset: u64,
}

/// The layout of all ranks' optimizer shards: every bucket is split over all ranks.
#[pyclass(frozen, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct OptimizerShards {
    pub(crate) core: layout::OptimizerShards,
    pub(crate) table: Arc<layout::ParameterTable>,
}

#[pymethods]
impl OptimizerShards {
    #[new]
    #[pyo3(signature = (table, cluster, schemes))]
    fn new(
        py: Python<'_>,
        table: &ParameterTable,
        cluster: &Cluster,
        schemes: Vec<PyRef<'_, Scheme>>,
    ) -> PyResult<OptimizerShards> {
        let schemes: Vec<_> = schemes.into_iter().map(|scheme| scheme.0).collect();
        let core = detached(py, || layout::OptimizerShards::new(&table.0, &cluster.0, &schemes))?;
        Ok(OptimizerShards { core, table: table.0.clone() })
    }

    /// Elements that `rank` owns: number of trained and number of frozen elements.
    fn shard_elements(&self, py: Python<'_>, rank: Integer) -> PyResult<(u64, u64)> {
        let rank = self.own_rank(py, rank)?;
        let trained = self.core.offset(self.table.layer_groups(), rank);
        Ok((trained, self.core.offset(self.table.buckets(), rank) - trained))
    }

    /// Most elements of one bucket that a rank relays, for a trained bucket and for a frozen one.
    fn largest_relays(&self) -> (u64, u64) {
        let (trained, all) = (self.table.layer_groups(), self.table.buckets());
        (self.core.largest_relay(0..trained), self.core.largest_relay(trained..all))
    }

    /// Most elements of one bucket that a rank owns, of a trained bucket and of a frozen one.
    fn largest_pieces(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (trained, all) = (self.table.layer_groups(), self.table.buckets());
        detached(py, || Ok((self.core.largest_piece(0..trained), self.core.largest_piece(trained..all))))
    }

    /// Ranks of the node of `rank`, in ascending order.
    fn node_of(&self, py: Python<'_>, rank: Integer) -> PyResult<Vec<u64>> {
        Ok(self.core.node_of(self.own_rank(py, rank)?).collect())
    }

    /// Ranks at the same index in each node, in node order: the peers that `rank` relays to.
    fn rail_of(&self, py: Python<'_>, rank: Integer) -> PyResult<Vec<u64>> {
        Ok(self.core.rail_of(self.own_rank(py, rank)?).collect())
    }

    /// Slices of the optimizer shard of `rank`, in order.
    fn slices(&self, py: Python<'_>, rank: Integer) -> PyResult<Vec<ShardSlice>> {
        let rank = self.own_rank(py, rank)?;
        let own = |slice: layout::ShardSlice| ShardSlice {
            parameter: slice.parameter,
            start: slice.elements.start,
            end: slice.elements.end,
            offset: slice.offset,
        };
        Ok(self.core.slices(&self.table, rank).into_iter().map(own).collect())
    }
}

impl OptimizerShards {
    /// The rank, if it owns a shard.
    fn own_rank(&self, py: Python<'_>, rank: Integer) -> PyResult<u64> {
        let (rank, shards) = (rank.count(py, "rank")?, self.core.ranks());
        if rank >= shards {
            return Err(raise(py, &LayoutError::RanksMismatch { rank, gpus: shards, shards }.into()));
        }
        Ok(rank)
    }
}
