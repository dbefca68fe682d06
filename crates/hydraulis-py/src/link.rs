//! `Link`.

use hydraulis_core::layout::{self, Traffic};
use pyo3::prelude::*;

use crate::gil::detached;
use crate::layout::ParameterTable;

/// The links of a cluster, and what travels over them: by them a planner counts transfers.
///
/// Each node sends and receives `gigabytes_per_s` (1e9 bytes a second) at the same time, each GPU inside one
/// `gpu_gigabytes_per_s`, and each message takes `message_us` microseconds besides. Parameters go out from home block by
/// block and gradients come back, behind what is computed. `docs/plan-bench.md` has the model in full.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Link {
    core: layout::Link,
    traffic: Traffic,
}

#[pymethods]
impl Link {
    #[new]
    #[pyo3(signature = (table, *, gigabytes_per_s, gpu_gigabytes_per_s=200.0, message_us=10.0, parameter_bytes=2, gradient_bytes=4))]
    fn new(
        py: Python<'_>,
        table: &ParameterTable,
        gigabytes_per_s: f64,
        gpu_gigabytes_per_s: f64,
        message_us: f64,
        parameter_bytes: u32,
        gradient_bytes: u32,
    ) -> PyResult<Link> {
        let traffic = Traffic { gigabytes_per_s, gpu_gigabytes_per_s, message_us, parameter_bytes, gradient_bytes };
        let core = detached(py, || layout::Link::new(table.0.clone(), traffic))?;
        Ok(Link { core, traffic })
    }

    fn __repr__(&self) -> String {
        let Traffic { gigabytes_per_s, gpu_gigabytes_per_s, message_us, .. } = self.traffic;
        format!("Link({gigabytes_per_s} GB/s a node, {gpu_gigabytes_per_s} GB/s a GPU, {message_us} us a message)")
    }
}

impl Link {
    pub(crate) fn core(&self) -> layout::Link {
        self.core.clone()
    }
}
