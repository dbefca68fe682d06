//! Parameters, held and home slices.

use hydraulis_core::LayoutError;
use hydraulis_core::layout;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::convert::errors::raise;
use crate::convert::gil::detached;
use crate::cost::profile::ModelShape;
use crate::spec::{Cluster, LayerSplit, Scheme};

/// One parameter: `rows` rows of `row_elements`, in canonical order.
///
/// Args:
///     name: its name in the model.
///     rows: size of the dimension that tensor parallelism splits; of the first, where it splits none.
///     row_elements: elements of one row.
///     units: runs of rows that tensor parallelism does not cut; 1 is whole on every rank, `rows` is cut anywhere.
///     blocks: the blocks that use it: 0 the embedding, 1 to L the layers, L + 1 the head.
///     trained: Whether training updates it; a frozen parameter has neither gradient nor optimizer state.
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, get_all, module = "hydraulis")]
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Its name in the model.
    name: String,
    /// Size of the dimension that tensor parallelism splits; of the first, where it splits none.
    rows: u64,
    /// Elements of one row.
    row_elements: u64,
    /// Runs of rows that tensor parallelism does not cut; 1 is whole on every rank, `rows` is cut anywhere.
    units: u64,
    /// The blocks that use it: 0 the embedding, 1 to L the layers, L + 1 the head.
    blocks: Vec<u32>,
    /// Whether training updates it.
    trained: bool,
}

#[pymethods]
impl Parameter {
    #[new]
    #[pyo3(signature = (name, *, rows, row_elements, units, blocks, trained=true))]
    fn new(name: String, rows: u64, row_elements: u64, units: u64, blocks: Vec<u32>, trained: bool) -> Parameter {
        Parameter { name, rows, row_elements, units, blocks, trained }
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((&str,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("rows", self.rows)?;
        named.set_item("row_elements", self.row_elements)?;
        named.set_item("units", self.units)?;
        named.set_item("blocks", &self.blocks)?;
        named.set_item("trained", self.trained)?;
        Ok(((&self.name,), named))
    }
}

/// Every parameter of a model, in bucket order.
///
/// Args:
///     parameters: in any order.
///     split: how the layers are shared out over stages.
///
/// Raises:
///     InvalidInputError: they do not describe a model (code `parameter_table`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct ParameterTable(pub(crate) layout::ParameterTable);

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
            blocks: parameter.blocks.clone(),
            trained: parameter.trained,
        };
        let parameters = parameters.into_iter().map(core).collect();
        detached(py, || layout::ParameterTable::new(parameters, split.0.clone())).map(ParameterTable)
    }

    /// How the layers of the model are shared out over stages.
    #[getter]
    fn split(&self) -> LayerSplit {
        LayerSplit(self.0.split().clone())
    }

    /// The table of a model of this shape, without its weights: what each rank would hold of it.
    #[staticmethod]
    fn from_model(py: Python<'_>, model: &ModelShape) -> PyResult<ParameterTable> {
        detached(py, || layout::ParameterTable::from_model(&model.0)).map(ParameterTable)
    }

    /// The parameters, in bucket order.
    #[getter]
    fn parameters(&self) -> Vec<Parameter> {
        let own = |parameter: &layout::Parameter| Parameter {
            name: parameter.name.clone(),
            rows: parameter.rows,
            row_elements: parameter.row_elements,
            units: parameter.units,
            blocks: parameter.blocks.clone(),
            trained: parameter.trained,
        };
        self.0.parameters().iter().map(own).collect()
    }

    fn __getnewargs__(&self) -> (Vec<Parameter>, LayerSplit) {
        (self.parameters(), self.split())
    }
}

/// Where a rank stands in its replica.
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

    /// Every place of a replica of a scheme, in the order of its ranks.
    #[staticmethod]
    fn all(scheme: &Scheme) -> Vec<Position> {
        layout::Position::all(scheme.0).map(Position).collect()
    }

    /// The ranks that share its tokens, in tensor order, if it is `rank`.
    fn tensor_group(&self, py: Python<'_>, rank: u32) -> PyResult<Vec<u32>> {
        self.0.tensor_group(rank).map_err(|error| raise(py, &error))
    }

    /// The ranks that hold the same parameters and the other tokens, in context order, if it is `rank`.
    fn context_group(&self, py: Python<'_>, rank: u32) -> PyResult<Vec<u32>> {
        self.0.context_group(rank).map_err(|error| raise(py, &error))
    }

    /// How the replica is cut.
    #[getter]
    fn scheme(&self) -> Scheme {
        Scheme(self.0.scheme)
    }

    /// The pipeline stage, from 0.
    #[getter]
    fn stage(&self) -> u16 {
        self.0.stage()
    }

    /// Most micro-batches that its stage holds at once under 1F1B.
    #[getter]
    fn in_flight(&self) -> u16 {
        self.0.scheme.in_flight(self.0.stage())
    }

    /// The place among the stage's context ranks, from 0.
    #[getter]
    fn context_rank(&self) -> u16 {
        self.0.context_rank()
    }

    /// The place among the tensor ranks that share its tokens, from 0.
    #[getter]
    fn tensor_rank(&self) -> u16 {
        self.0.tensor_rank()
    }

    /// Which of the slices of its stage's parameters it holds, from 0: not its tensor rank, but so that what a rank holds by
    /// <tp4> is a part of what it holds by <tp2>.
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

/// A slice of a parameter in a rank's strategy buffer.
#[pyclass(frozen, get_all, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct HeldSlice {
    /// Index in the table.
    parameter: usize,
    /// Its first row.
    row_start: u64,
    /// The row after its last.
    row_end: u64,
    /// Where it starts in the buffer, in elements.
    offset: u64,
    /// Its elements.
    elements: u64,
}

/// The slices that a rank at a position holds, packed from the start of its buffer.
#[pyfunction]
pub(crate) fn held_slices(py: Python<'_>, table: &ParameterTable, position: &Position) -> PyResult<Vec<HeldSlice>> {
    let slices = detached(py, || layout::held_slices(&table.0, position.0))?;
    let own = |slice: layout::HeldSlice| HeldSlice {
        parameter: slice.parameter,
        row_start: slice.rows.start,
        row_end: slice.rows.end,
        offset: slice.offset,
        elements: (slice.rows.end - slice.rows.start) * table.0.parameters()[slice.parameter].row_elements,
    };
    Ok(slices.into_iter().map(own).collect())
}

/// A part of a parameter in a rank's home buffer, in canonical elements.
#[pyclass(frozen, get_all, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct HomeSlice {
    /// Index in the table.
    parameter: usize,
    /// Its first element, in canonical order.
    start: u64,
    /// The element after its last.
    end: u64,
    /// Where it starts in the home buffer, in elements.
    offset: u64,
}

/// The home layout: every bucket cut over all ranks.
#[pyclass(frozen, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct Home(pub(crate) layout::Home);

#[pymethods]
impl Home {
    #[new]
    #[pyo3(signature = (table, cluster, schemes))]
    fn new(
        py: Python<'_>,
        table: &ParameterTable,
        cluster: &Cluster,
        schemes: Vec<PyRef<'_, Scheme>>,
    ) -> PyResult<Home> {
        let schemes: Vec<_> = schemes.into_iter().map(|scheme| scheme.0).collect();
        detached(py, || layout::Home::new(&table.0, cluster.0, &schemes)).map(Home)
    }

    /// Elements that live on a rank: of trained parameters, and of frozen ones.
    fn shard_elements(&self, py: Python<'_>, table: &ParameterTable, rank: u64) -> PyResult<(u64, u64)> {
        let home = self.0.ranks();
        if rank >= home {
            return Err(raise(py, &LayoutError::RanksMismatch { rank, gpus: home, home }.into()));
        }
        let trained = self.0.offset(table.0.blocks(), rank);
        Ok((trained, self.0.offset(table.0.buckets(), rank) - trained))
    }

    /// Most elements of one bucket that a rank relays: of a trained bucket, and of a frozen one.
    fn largest_relays(&self, table: &ParameterTable) -> (u64, u64) {
        let (trained, all) = (table.0.blocks(), table.0.buckets());
        (self.0.largest_relay(0..trained), self.0.largest_relay(trained..all))
    }

    /// The ranks of the node of a rank, in their order.
    fn node_of(&self, rank: u64) -> Vec<u64> {
        self.0.node_of(rank).collect()
    }

    /// The ranks with its place in each node, in the order of nodes: those that it relays to.
    fn rail_of(&self, rank: u64) -> Vec<u64> {
        self.0.rail_of(rank).collect()
    }

    /// Every slice in the home buffer of a rank, in order.
    fn slices(&self, py: Python<'_>, table: &ParameterTable, rank: u64) -> PyResult<Vec<HomeSlice>> {
        let home = self.0.ranks();
        if rank >= home {
            return Err(raise(py, &LayoutError::RanksMismatch { rank, gpus: home, home }.into()));
        }
        let own = |slice: layout::HomeSlice| HomeSlice {
            parameter: slice.parameter,
            start: slice.elements.start,
            end: slice.elements.end,
            offset: slice.offset,
        };
        Ok(self.0.slices(&table.0, rank).into_iter().map(own).collect())
    }
}
