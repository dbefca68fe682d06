//! `pack_windows` and `Windows`.

use hydraulis_core::batching::windows::{self as packing, LengthCounts, WindowPacking};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyType};

use crate::convert::arrays::{Column, Whole, one_dimensional, taken};
use crate::convert::gil::detached;
use crate::convert::integers::Integer;
use crate::convert::{Reduced, made_by};

/// Sequences read or packed between two looks for Ctrl-C: a few milliseconds of work, and a small copy.
const PIECE: usize = 1 << 18;

/// A data set packed into context windows: the sequences of each window.
#[pyclass(frozen, module = "hydraulis")]
#[derive(Debug)]
pub(crate) struct Windows {
    window_tokens: i64,
    tokens: u64,
    lower_bound: u64,
    count: usize,
    window_offsets: Column,
    sequences: Column,
}

/// Pack the sequences of a data set into few context windows of equal length by best-fit decreasing.
///
/// The number of windows is at most 11/9 of the minimum plus one (Johnson 1973); on long-tailed lengths it is nearly
/// always the minimum. The lengths are read twice, in order and in pieces, so a memory map of any size works. The
/// packing needs 4 bytes per sequence and 12 bytes per window in addition to the result.
///
/// Args:
///     lengths: Tokens of each sequence, any one-dimensional integer array, memory map or list; a sequence's id is its
///         index.
///     window_tokens: Most tokens of a window.
///     progress: Callback that receives the completed share, from 0 to 1, many times a second; an exception that it raises
///         ends the packing.
///
/// Raises:
///     InvalidInputError: An argument is out of range: `batch_empty`, `argument_invalid` (the window), or `lengths_invalid`,
///         also for lengths that change between the two readings and for 2^32 sequences or more.
///     InfeasibleError: Some sequences are longer than a window (`sequence_too_long`, which names the longest).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyfunction]
#[pyo3(signature = (lengths, *, window_tokens, progress=None))]
pub(crate) fn pack_windows(
    py: Python<'_>,
    lengths: &Bound<'_, PyAny>,
    window_tokens: Integer,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Windows> {
    let window_tokens = window_tokens.read(py, "window_tokens")?;
    let lengths = Pieces::new(lengths, progress)?;
    let mut counts = detached(py, || LengthCounts::new(window_tokens))?;
    lengths.read(0, |piece| counts.add(piece))?;
    let mut packing = detached(py, || WindowPacking::new(counts))?;
    while detached(py, || Ok(packing.advance(PIECE)))? {
        lengths.report(lengths.count + packing.packed())?;
    }
    let mut filling = detached(py, || Ok(packing.fill()))?;
    lengths.read(2 * lengths.count, |piece| filling.add(piece))?;
    let windows = detached(py, || filling.finish())?;
    Ok(Windows::new(py, window_tokens, windows))
}

/// The lengths, read piece by piece, and the progress callback.
struct Pieces<'a, 'py> {
    array: Bound<'py, PyAny>,
    count: usize,
    progress: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> Pieces<'a, 'py> {
    fn new(lengths: &Bound<'py, PyAny>, progress: Option<&'a Bound<'py, PyAny>>) -> PyResult<Pieces<'a, 'py>> {
        let array = one_dimensional("lengths", Whole::Lengths, lengths)?;
        Ok(Pieces { count: array.len()?, array, progress })
    }

    /// Passes all pieces to `take` in order; `done` sequences were read or packed before.
    fn read(&self, done: usize, mut take: impl FnMut(&[i64]) -> hydraulis_core::Result<()> + Send) -> PyResult<()> {
        let py = self.array.py();
        for start in (0..self.count).step_by(PIECE) {
            let end = self.count.min(start + PIECE);
            let slice = PySlice::new(py, start.cast_signed(), end.cast_signed(), 1);
            let piece = taken("lengths", Whole::Lengths, &self.array.get_item(slice)?, start)?;
            detached(py, || take(&piece))?;
            self.report(done + end)?;
        }
        Ok(())
    }

    /// Reports the completed share of counting, packing and filling, and looks for Ctrl-C.
    #[expect(clippy::cast_precision_loss, reason = "the share is for people")]
    fn report(&self, done: usize) -> PyResult<()> {
        self.array.py().check_signals()?;
        if let Some(progress) = self.progress {
            progress.call1((done as f64 / (3 * self.count) as f64,))?;
        }
        Ok(())
    }
}

/// The tokens of a window and of all sequences, the lower bound, and both columns.
type WindowsFields<'py> = (i64, u64, u64, (PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, i64>));

impl Windows {
    fn new(py: Python<'_>, window_tokens: i64, windows: packing::Windows) -> Windows {
        Windows {
            window_tokens,
            tokens: windows.tokens.0,
            lower_bound: windows.lower_bound,
            count: windows.offsets.len() - 1,
            window_offsets: Column::new(py, windows.offsets),
            sequences: Column::new(py, windows.sequences),
        }
    }
}

#[pymethods]
impl Windows {
    /// Most tokens of a window.
    #[getter]
    fn window_tokens(&self) -> i64 {
        self.window_tokens
    }

    /// Sequence ids by window, ascending within each: int64 of shape (sequences,).
    #[getter]
    fn sequences(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.sequences.get(py)
    }

    /// Index in `sequences` where each window starts: int64 of shape (windows + 1,).
    #[getter]
    fn window_offsets(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.window_offsets.get(py)
    }

    /// Tokens of all sequences.
    #[getter]
    fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Share of all windows' positions that hold tokens, from 0 to 1.
    #[getter]
    #[expect(clippy::cast_precision_loss, reason = "a share of 53 bits is exact enough")]
    fn fill(&self) -> f64 {
        self.tokens as f64 / (self.count as f64 * self.window_tokens as f64)
    }

    /// Lower bound on the number of windows of any packing.
    #[getter]
    fn lower_bound(&self) -> u64 {
        self.lower_bound
    }

    fn __len__(&self) -> usize {
        self.count
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let columns = (self.window_offsets.get(py), self.sequences.get(py));
        made_by::<Windows>(py, "_of", (self.window_tokens, self.tokens, self.lower_bound, columns))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, py: Python<'_>, fields: WindowsFields<'_>) -> PyResult<Windows> {
        let (window_tokens, tokens, lower_bound, (offsets, sequences)) = fields;
        let column = |array: PyReadonlyArray1<'_, i64>| Column::new(py, array.as_array().to_vec());
        Ok(Windows {
            window_tokens,
            tokens,
            lower_bound,
            count: offsets.len()?.saturating_sub(1),
            window_offsets: column(offsets),
            sequences: column(sequences),
        })
    }

    fn __repr__(&self) -> String {
        format!("Windows({} of {} tokens, fill {:.4})", self.count, self.window_tokens, self.fill())
    }
}
