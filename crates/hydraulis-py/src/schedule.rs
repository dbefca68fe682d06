//! Instructions and spans.

use hydraulis_core::schedule::{Compute, Instruction, Neighbour, Timeline};
use pyo3::prelude::*;

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

/// Trade tensors with a neighbouring stage, as one batch.
#[pyclass(frozen, get_all, eq, module = "hydraulis._core")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    peer: u32,
    next: bool,
    send: Option<usize>,
    receive: Option<usize>,
}

#[pymethods]
impl Forward {
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
    #[classattr]
    fn __match_args__() -> (&'static str,) {
        ("micro_batch",)
    }

    fn __repr__(&self) -> String {
        format!("Backward(micro_batch={})", self.micro_batch)
    }
}

#[pymethods]
impl Exchange {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str, &'static str) {
        ("peer", "next", "send", "receive")
    }

    fn __repr__(&self) -> String {
        let number = |micro_batch: Option<usize>| micro_batch.map_or("None".into(), |number| number.to_string());
        let side = if self.next { "True" } else { "False" };
        format!(
            "Exchange(peer={}, next={side}, send={}, receive={})",
            self.peer,
            number(self.send),
            number(self.receive)
        )
    }
}

/// An instruction for a rank of `stage`, whose peers are found by `rank_of_stage`.
pub(crate) fn instruction(
    py: Python<'_>,
    step: Instruction,
    stage: usize,
    rank_of_stage: impl Fn(usize) -> u32,
) -> PyResult<Py<PyAny>> {
    Ok(match step {
        Instruction::Forward { micro_batch } => Py::new(py, Forward { micro_batch })?.into_any(),
        Instruction::Backward { micro_batch } => Py::new(py, Backward { micro_batch })?.into_any(),
        Instruction::Exchange { neighbour, send, receive } => {
            let next = neighbour == Neighbour::Next;
            let peer = rank_of_stage(if next { stage + 1 } else { stage - 1 });
            Py::new(py, Exchange { peer, next, send, receive })?.into_any()
        }
    })
}

/// One computation on a replica's timeline.
#[pyclass(frozen, get_all, module = "hydraulis._core")]
#[derive(Clone, Debug)]
pub(crate) struct Span {
    stage: usize,
    forward: bool,
    micro_batch: usize,
    start_ms: f64,
    end_ms: f64,
}

/// The spans of a timeline.
pub(crate) fn spans(timeline: &Timeline) -> Vec<Span> {
    let span = |span: &hydraulis_core::schedule::Span| {
        let (forward, micro_batch) = match span.compute {
            Compute::Forward(micro_batch) => (true, micro_batch),
            Compute::Backward(micro_batch) => (false, micro_batch),
        };
        Span { stage: span.stage, forward, micro_batch, start_ms: span.start.0, end_ms: span.end.0 }
    };
    timeline.spans.iter().map(span).collect()
}
