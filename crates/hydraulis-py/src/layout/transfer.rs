//! A rank's exchanges with other ranks under a plan.

use hydraulis_core::layout;
use numpy::PyArray2;
use pyo3::prelude::*;

use crate::convert::arrays::{Column, pairs};
use crate::convert::gil::detached;
use crate::layout::table::OptimizerShards;
use crate::plan::Plan;

/// One rank's all-to-all exchange of a bucket, in the direction of gradients; parameters travel the opposite way.
#[pyclass(frozen, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct Exchange {
    near: Py<PyArray2<i64>>,
    far: Py<PyArray2<i64>>,
    near_counts: Column,
    far_counts: Column,
}

#[pymethods]
impl Exchange {
    /// Segments of the buffer that sends gradients, by receiver: int64 of shape (segments, 2), offset and elements.
    #[getter]
    fn near(&self, py: Python<'_>) -> Py<PyArray2<i64>> {
        self.near.clone_ref(py)
    }

    /// Segments of the buffer that adds gradients, by sender: int64 of shape (segments, 2), offset and elements.
    #[getter]
    fn far(&self, py: Python<'_>) -> Py<PyArray2<i64>> {
        self.far.clone_ref(py)
    }

    /// Elements sent to each peer: int64 of shape (peers,).
    #[getter]
    fn near_counts(&self, py: Python<'_>) -> Py<numpy::PyArray1<i64>> {
        self.near_counts.get(py)
    }

    /// Elements received from each peer: int64 of shape (peers,).
    #[getter]
    fn far_counts(&self, py: Python<'_>) -> Py<numpy::PyArray1<i64>> {
        self.far_counts.get(py)
    }
}

/// One rank's part in the transfer of a bucket between optimizer shards and local shards.
#[pyclass(frozen, module = "hydraulis._core")]
#[derive(Debug)]
pub(crate) struct BucketTransfer {
    inside: Py<Exchange>,
    relayed: u64,
    room: u64,
    between: Option<Py<Exchange>>,
}

#[pymethods]
impl BucketTransfer {
    /// Exchange with the ranks of its node: between local shards and relays, or optimizer shards if there is one node.
    #[getter]
    fn inside(&self, py: Python<'_>) -> Py<Exchange> {
        self.inside.clone_ref(py)
    }

    /// Number of elements that the rank relays.
    #[getter]
    fn relayed(&self) -> u64 {
        self.relayed
    }

    /// Most elements of gathered parameters in transfer on any rank, relays included; equal on all ranks.
    #[getter]
    fn room(&self) -> u64 {
        self.room
    }

    /// Exchange with its rail: between relays, the rank's packed, and optimizer shards; None if there is one node.
    #[getter]
    fn between(&self, py: Python<'_>) -> Option<Py<Exchange>> {
        self.between.as_ref().map(|exchange| exchange.clone_ref(py))
    }
}

/// Transfers of `rank` in every bucket under a plan.
///
/// Args:
///     contributing: Whether the ranks of each replica hold parameters and gradients; None for all.
#[pyfunction]
#[pyo3(signature = (shards, plan, rank, contributing = None))]
pub(crate) fn transfer(
    py: Python<'_>,
    shards: &OptimizerShards,
    plan: &Plan,
    rank: u32,
    contributing: Option<Vec<bool>>,
) -> PyResult<Vec<BucketTransfer>> {
    let positions = contributing.map(|contributing| plan.positions_of(&contributing));
    let positions = positions.as_deref().unwrap_or_else(|| plan.core_positions());
    let buckets = detached(py, || layout::transfer(&shards.table, &shards.core, positions, rank))?;
    buckets.into_iter().map(|bucket| BucketTransfer::new(py, bucket)).collect()
}

impl BucketTransfer {
    fn new(py: Python<'_>, core: layout::BucketTransfer) -> PyResult<BucketTransfer> {
        let layout::BucketTransfer { inside, relayed, room, between } = core;
        let exchange = |core: layout::Exchange| Py::new(py, Exchange::new(py, core)?);
        Ok(BucketTransfer { inside: exchange(inside)?, relayed, room, between: between.map(exchange).transpose()? })
    }
}

impl Exchange {
    fn new(py: Python<'_>, core: layout::Exchange) -> PyResult<Exchange> {
        Ok(Exchange {
            near: segments(py, &core.near)?,
            far: segments(py, &core.far)?,
            near_counts: Column::from_counts(py, core.near_counts),
            far_counts: Column::from_counts(py, core.far_counts),
        })
    }
}

fn segments(py: Python<'_>, segments: &[layout::Segment]) -> PyResult<Py<PyArray2<i64>>> {
    pairs(py, segments.iter().map(|segment| [segment.offset, segment.elements]))
}
