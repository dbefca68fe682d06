//! Pipeline instructions and timeline spans.

use hydraulis_core::pipeline::{Compute, Instruction, Neighbour, Timeline};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::{Reduced, made_by};

/// Run the stage's layers forward on a micro-batch.
#[pyclass(frozen, get_all, eq, module = "hydraulis._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forward {
    micro_batch: usize,
}

/// Run the stage's layers backward on a micro-batch.
#[pyclass(frozen, get_all, eq, module = "hydraulis._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Backward {
    micro_batch: usize,
}

/// Send and receive tensors to and from a neighbouring stage, as one batch.
#[pyclass(frozen, get_all, eq, module = "hydraulis._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SendReceive {
    peer: u32,
    next: bool,
    send: Option<usize>,
    receive: Option<usize>,
}

#[pymethods]
impl Forward {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<Forward>(py, "_of", self.micro_batch)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, micro_batch: usize) -> Forward {
        Forward { micro_batch }
    }

    #[classattr]
    fn __match_args__() -> (&'static str,) {
        ("micro_batch",)
    }

    fn __repr__(&self) -> String {
        format!("Forward(micro_batch={})", self.micro_batch)
    }
}

#[pymethods]
impl Backward {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<Backward>(py, "_of", self.micro_batch)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, micro_batch: usize) -> Backward {
        Backward { micro_batch }
    }

    #[classattr]
    fn __match_args__() -> (&'static str,) {
        ("micro_batch",)
    }

    fn __repr__(&self) -> String {
        format!("Backward(micro_batch={})", self.micro_batch)
    }
}

#[pymethods]
impl SendReceive {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let SendReceive { peer, next, send, receive } = *self;
        made_by::<SendReceive>(py, "_of", (peer, next, send, receive))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: (u32, bool, Option<usize>, Option<usize>)) -> SendReceive {
        let (peer, next, send, receive) = fields;
        SendReceive { peer, next, send, receive }
    }

    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str, &'static str) {
        ("peer", "next", "send", "receive")
    }

    fn __repr__(&self) -> String {
        let number = |micro_batch: Option<usize>| micro_batch.map_or("None".into(), |number| number.to_string());
        let side = if self.next { "True" } else { "False" };
        format!(
            "SendReceive(peer={}, next={side}, send={}, receive={})",
            self.peer,
            number(self.send),
            number(self.receive)
        )
    }
}

/// The instruction for a rank of `stage`; `rank_of_stage` gives its peers.
pub(crate) fn instruction(
    py: Python<'_>,
    step: Instruction,
    stage: usize,
    rank_of_stage: impl Fn(usize) -> u32,
) -> PyResult<Py<PyAny>> {
    Ok(match step {
        Instruction::Forward { micro_batch } => Py::new(py, Forward { micro_batch })?.into_any(),
        Instruction::Backward { micro_batch } => Py::new(py, Backward { micro_batch })?.into_any(),
        Instruction::SendReceive { neighbour, send, receive } => {
            let next = neighbour == Neighbour::Next;
            let peer = rank_of_stage(if next { stage + 1 } else { stage - 1 });
            Py::new(py, SendReceive { peer, next, send, receive })?.into_any()
        }
    })
}

/// One computation on a replica's timeline, in ms.
#[pyclass(frozen, get_all, from_py_object, module = "hydraulis._core")]
#[derive(Clone, Debug)]
pub(crate) struct Span {
    stage: usize,
    forward: bool,
    micro_batch: usize,
    start_ms: f64,
    end_ms: f64,
}

#[pymethods]
impl Span {
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let Span { stage, forward, micro_batch, start_ms, end_ms } = *self;
        made_by::<Span>(py, "_of", (stage, forward, micro_batch, start_ms, end_ms))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, fields: (usize, bool, usize, f64, f64)) -> Span {
        let (stage, forward, micro_batch, start_ms, end_ms) = fields;
        Span { stage, forward, micro_batch, start_ms, end_ms }
    }
}

/// The spans of a timeline.
pub(crate) fn spans(timeline: &Timeline) -> Vec<Span> {
    let span = |span: &hydraulis_core::pipeline::Span| {
        let (forward, micro_batch) = match span.compute {
            Compute::Forward(micro_batch) => (true, micro_batch),
            Compute::Backward(micro_batch) => (false, micro_batch),
        };
        Span { stage: span.stage, forward, micro_batch, start_ms: span.start.0, end_ms: span.end.0 }
    };
    timeline.spans.iter().map(span).collect()
}
