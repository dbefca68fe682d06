//! `Cluster`, `Scheme` and `Strategy`.

use hydraulis_core::{Error, Result, codes, layout, spec};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::errors::{invalid, raise};
use crate::convert::integers::{Integer, counts_of};
use crate::convert::text::Text;

/// A cluster of GPUs in equal nodes; a rank is a GPU, numbered node by node.
///
/// The nodes determine the placement of replicas and the transfers between nodes. A profile's times hold for nodes of
/// the measured size: they do not cover a stage that fitted into one node there and spans several here.
///
/// Where ranks differ, a plan places ranks of like speed together, and a slower replica gets less work.
///
/// Args:
///     gpus: Number of ranks; they fill whole nodes, or a part of one.
///     gpus_per_node: Number of ranks in a node.
///     rates: Speed of each rank relative to the profile, from 0.001 to 1,000: at 0.5 every time is twice as long; if
///         absent, each rank has the rate of its device.
///     memory_bytes: Memory of each rank in bytes; the profile's if absent.
///     devices: Device of each rank: 0 for the profile's own, k for the k-th of its other devices
///         (`CostProfile.with_other_devices`); all 0 if absent.
///
/// Raises:
///     InvalidInputError: The ranks do not fill the nodes, or a list has not one valid value for each rank (code
///         `argument_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cluster(pub(crate) spec::Cluster);

#[pymethods]
impl Cluster {
    #[new]
    #[pyo3(signature = (gpus, gpus_per_node, *, rates = None, memory_bytes = None, devices = None))]
    fn new(
        py: Python<'_>,
        gpus: Integer,
        gpus_per_node: Integer,
        rates: Option<Vec<f64>>,
        memory_bytes: Option<Vec<Integer>>,
        devices: Option<Vec<Integer>>,
    ) -> PyResult<Cluster> {
        let (gpus, gpus_per_node) = (gpus.read(py, "gpus")?, gpus_per_node.read(py, "gpus_per_node")?);
        let shape = match (u32::try_from(gpus), u32::try_from(gpus_per_node)) {
            (Ok(gpus), Ok(gpus_per_node)) => spec::Cluster::new(gpus, gpus_per_node),
            _ => Err(Error::ClusterShape { gpus, gpus_per_node }),
        };
        let devices = devices.map(|list| counts_of(py, "devices", list)).transpose()?;
        let memory_bytes = memory_bytes.map(|list| counts_of(py, "memory_bytes", list)).transpose()?;
        let with_devices = shape.and_then(|cluster| match devices {
            Some(devices) => cluster.with_devices(devices),
            None => Ok(cluster),
        });
        let with_rates = with_devices.and_then(|cluster| match rates {
            Some(rates) => cluster.with_rates(rates),
            None => Ok(cluster),
        });
        let cluster = with_rates.and_then(|cluster| match memory_bytes {
            Some(bytes) => cluster.with_memory_bytes(bytes),
            None => Ok(cluster),
        });
        cluster.map(Cluster).map_err(|error| raise(py, &error))
    }

    /// Number of ranks.
    #[getter]
    fn gpus(&self) -> u32 {
        self.0.gpus()
    }

    /// Number of ranks in a node.
    #[getter]
    fn gpus_per_node(&self) -> u32 {
        self.0.gpus_per_node()
    }

    /// Speed of each rank relative to the profile; None if all are 1 and the first device, or none was given.
    #[getter]
    fn rates(&self) -> Option<Vec<f64>> {
        self.0.rates().map(<[f64]>::to_vec)
    }

    /// Memory of each rank in bytes; None if all have the profile's.
    #[getter]
    fn memory_bytes(&self) -> Option<Vec<u64>> {
        self.0.memory_bytes().map(<[u64]>::to_vec)
    }

    /// Device of each rank, as a number of the profile; None if all are the profile's own.
    #[getter]
    fn devices(&self) -> Option<Vec<u32>> {
        self.0.devices().map(|devices| devices.iter().copied().map(u32::from).collect())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((u32, u32), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("rates", self.rates())?;
        named.set_item("memory_bytes", self.memory_bytes())?;
        named.set_item("devices", self.devices())?;
        Ok(((self.gpus(), self.gpus_per_node()), named))
    }

    fn __repr__(&self) -> String {
        let list =
            |name: &str, values: Option<String>| values.map(|values| format!(", {name}={values}")).unwrap_or_default();
        let rates = list("rates", self.0.rates().map(|rates| format!("{rates:?}")));
        let memory = list("memory_bytes", self.0.memory_bytes().map(|bytes| format!("{bytes:?}")));
        let devices = list("devices", self.0.devices().map(|devices| format!("{devices:?}")));
        format!("Cluster(gpus={}, gpus_per_node={}{rates}{memory}{devices})", self.gpus(), self.gpus_per_node())
    }
}

/// Assignment of a model's layers to the stages of a pipeline: by cost, or as stated.
///
/// Args:
///     layers: Number of layers.
///     head_layers: Cost of the head in layers; the last stage computes the head too.
///     stated: Layers of each stage, one list for each number of stages with a fixed assignment.
///
/// Raises:
///     InvalidInputError: A number is out of range (code `model_invalid`, `argument_invalid`), or a list does not add up to the
///         number of layers (`scheme_model_mismatch`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerSplit(pub(crate) spec::LayerSplit);

#[pymethods]
impl LayerSplit {
    #[new]
    #[pyo3(
        signature = (layers, *, head_layers = 0.0, stated = Vec::new()),
        text_signature = "(layers, *, head_layers=0.0, stated=())"
    )]
    fn new(
        py: Python<'_>,
        layers: &Bound<'_, PyAny>,
        head_layers: f64,
        stated: Vec<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<LayerSplit> {
        let layers = counted(layers, || {
            let (field, value) = ("num_hidden_layers", layers.to_string());
            Error::ModelShape { field, value, limit: "from 1 to 4,294,967,295".into() }
        })?;
        let lists = stated.into_iter().enumerate().map(|(index, list)| {
            let refused = || {
                let value = format!("[{}]", list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
                Error::LayerSplit { index, value, why: format!("the limits are one layer a stage and {layers} in all") }
            };
            list.iter().map(|count| counted(count, refused)).collect::<PyResult<Vec<u32>>>()
        });
        let lists = lists.collect::<PyResult<Vec<_>>>()?;
        let split = spec::LayerSplit::new(layers, head_layers).and_then(|split| split.with_stated(lists));
        split.map(LayerSplit).map_err(|error| raise(py, &error))
    }

    /// Stated lists, by number of stages.
    #[getter]
    fn stated(&self) -> Vec<Vec<u32>> {
        self.0.stated().to_vec()
    }

    /// Layers of each stage of a scheme.
    fn stage_layers(&self, py: Python<'_>, scheme: &Scheme) -> PyResult<Vec<u32>> {
        self.0.stage_layers(scheme.0).map_err(|error| raise(py, &error))
    }

    /// Returns the scheme with each split of its layers that gives fewer to stages on slow ranks; see
    /// `CostProfile.with_layer_splits`.
    ///
    /// Args:
    ///     scheme: Scheme without a split of its own; for others the list is empty.
    ///     number: Number of splits for each place of slow stages, from 0.
    ///
    /// Raises:
    ///     InvalidInputError: The scheme has more stages than the model has layers (code `scheme_model_mismatch`), or the
    ///         number is above 65,535 (`argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn splits_for_slow_stages(&self, py: Python<'_>, scheme: &Scheme, number: Integer) -> PyResult<Vec<Scheme>> {
        let schemes = self.0.splits_for_slow_stages(scheme.0, number.count::<u16>(py, "number")?.into());
        schemes.map(|list| list.into_iter().map(Scheme).collect()).map_err(|error| raise(py, &error))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((u32,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("head_layers", self.0.head_layers())?;
        named.set_item("stated", self.stated())?;
        Ok(((self.0.layers(),), named))
    }
}

/// Reads a number of layers; `refused` makes the error for a value of another type or outside 32 bits.
fn counted(number: &Bound<'_, PyAny>, refused: impl FnOnce() -> Error) -> PyResult<u32> {
    number.extract().map_err(|_: PyErr| raise(number.py(), &refused()))
}

/// The parallel degrees of one replica, <tp, cp, pp>, and the checkpointing of its layers.
///
/// Args:
///     text: Scheme as text: `<1>`, `<tp4>`, `<tp4,cp2,pp2>`, or with checkpointing `<1,full>` or `<tp4,selective>`,
///         or with the layers of each stage `<pp2,split:3-9>`.
///
/// Raises:
///     InvalidInputError: The text is no scheme (code `strategy_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, ord, hash, module = "hydraulis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Scheme(pub(crate) spec::Scheme);

#[pymethods]
impl Scheme {
    #[new]
    fn new(py: Python<'_>, text: Text<'_>) -> PyResult<Scheme> {
        text.parse().map(Scheme).map_err(|error| raise(py, &error))
    }

    /// Tensor-parallel degree.
    #[getter]
    fn tp(&self) -> u16 {
        self.0.tp()
    }

    /// Context-parallel degree.
    #[getter]
    fn cp(&self) -> u16 {
        self.0.cp()
    }

    /// Number of pipeline stages.
    #[getter]
    fn pp(&self) -> u16 {
        self.0.pp()
    }

    /// Checkpointing, the recomputation of the layers in the backward pass: `none`, `selective`, `full`; its
    /// copies to host memory, `offload`; or a layer plan such as `full:12/40` or `selective,full:12/40`.
    #[getter]
    fn checkpointing(&self) -> String {
        self.0.layer_plan().to_string()
    }

    /// Checkpointing of one layer of the model, counted from 0: `none`, `selective`, `full`, `offload` or
    /// `full-offload`.
    fn checkpointing_of(&self, layer: u16) -> &'static str {
        self.0.layer_plan().of_layer(layer.into()).name()
    }

    /// Number of layers of the model that the scheme's layer plan is for; None if all layers have one kind of
    /// checkpointing.
    #[getter]
    fn planned_layers(&self) -> Option<u16> {
        self.0.layer_plan().layers()
    }

    /// Layers of each stage where the scheme states them, as `<pp2,split:3-9>` does; empty where their cost decides.
    #[getter]
    fn split(&self) -> Vec<u32> {
        self.0.split().layers()
    }

    /// Returns the same degrees with other checkpointing: a kind for every layer, or a layer plan.
    fn with_checkpointing(&self, py: Python<'_>, checkpointing: Text<'_>) -> PyResult<Scheme> {
        let parts: Vec<&str> = checkpointing.split(',').map(str::trim).collect();
        let layers = spec::LayerPlan::parse(&parts).map_err(|why| {
            let message = format!(
                "checkpointing is '{}': {why}; give none, selective, full, offload, full-offload or full:12/40",
                &*checkpointing
            );
            invalid(py, &message, &codes::ARGUMENT_INVALID)
        })?;
        Ok(Scheme(self.0.with_layers(layers)))
    }

    /// Number of ranks of a replica.
    #[getter]
    fn ranks(&self) -> u64 {
        self.0.ranks()
    }

    fn __getnewargs__(&self) -> (String,) {
        (self.0.to_string(),)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Scheme('{}')", self.0)
    }
}

/// A strategy as an argument: a `Strategy`, or its text.
#[derive(FromPyObject)]
pub(crate) enum GivenStrategy {
    Strategy(Strategy),
    #[pyo3(annotation = "str")]
    Text(String),
}

impl GivenStrategy {
    /// Reads the strategy; an error if the text is malformed.
    pub(crate) fn read(&self) -> Result<spec::Strategy> {
        match self {
            GivenStrategy::Strategy(strategy) => Ok(strategy.0.clone()),
            GivenStrategy::Text(text) => text.parse(),
        }
    }
}

/// The kind of checkpointing with this name.
pub(crate) fn checkpointing_kind(py: Python<'_>, text: &str) -> PyResult<spec::CheckpointingKind> {
    spec::CheckpointingKind::named(text).ok_or_else(|| {
        let message = format!(
            "checkpointing is '{text}', it must be one of 'none', 'selective', 'full', 'offload' and 'full-offload'"
        );
        invalid(py, &message, &codes::ARGUMENT_INVALID)
    })
}

/// The kind of sharding with this name.
pub(crate) fn sharding_kind(py: Python<'_>, text: &str) -> PyResult<spec::ShardingKind> {
    spec::ShardingKind::named(text).ok_or_else(|| {
        let message = format!("kind is '{text}', it must be 'none', 'gradients' or 'parameters'; give one of them");
        invalid(py, &message, &codes::ARGUMENT_INVALID)
    })
}

/// The set of replicas of one iteration, written `1x<tp16>+12x<tp4,pp2>`.
///
/// Args:
///     text: Replicas as text, each COUNTxSCHEME, in any order.
///
/// Raises:
///     InvalidInputError: The text is no strategy (code `strategy_invalid`).
#[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
#[pyclass(frozen, eq, hash, from_py_object, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Strategy(pub(crate) spec::Strategy);

#[pymethods]
impl Strategy {
    #[new]
    fn new(py: Python<'_>, text: Text<'_>) -> PyResult<Strategy> {
        text.parse().map(Strategy).map_err(|error| raise(py, &error))
    }

    /// Scheme of each replica, most ranks first.
    #[getter]
    fn schemes(&self) -> Vec<Scheme> {
        self.0.schemes().iter().copied().map(Scheme).collect()
    }

    /// Ranks of each replica on a cluster, stage by stage.
    fn place(&self, py: Python<'_>, cluster: &Cluster) -> PyResult<Vec<Vec<u32>>> {
        layout::place(&self.0, &cluster.0).map_err(|error| raise(py, &error))
    }

    fn __getnewargs__(&self) -> (String,) {
        (self.0.to_string(),)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Strategy('{}')", self.0)
    }
}
