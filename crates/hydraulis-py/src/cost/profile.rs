//! `CostProfile`, and what it is of.

use hydraulis_core::Tokens;
use hydraulis_core::spec::{CheckpointingKind, ContextKind, Dtype};
use hydraulis_core::{cost, spec};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::errors::raise;
use crate::convert::gil::detached;
use crate::convert::pickle::{Reduced, made_by};
use crate::spec::{Cluster, Scheme, checkpointing_kind};

/// Time and memory of one model under each scheme of one kind of cluster, with where the numbers come from.
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostProfile(pub(crate) cost::CostProfile);

#[pymethods]
impl CostProfile {
    /// The shipped profile of that name.
    #[staticmethod]
    fn preset(py: Python<'_>, name: &str) -> PyResult<CostProfile> {
        cost::preset(name).map(CostProfile).map_err(|error| raise(py, &error))
    }

    /// Names of the shipped profiles.
    #[staticmethod]
    fn presets() -> Vec<&'static str> {
        cost::PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// Predicts the profile of a model on a device from its data sheet; its schemes are all that fit.
    ///
    /// Args:
    ///     model: its shape.
    ///     cluster: says which schemes have a place.
    ///     device: one of `devices`.
    ///     checkpointing: the kinds that each scheme is under: `none`, `selective`, `full`; `none` alone, when left out.
    ///     efficiency: how near to its peak the device comes; that which the shipped profiles teach, when left out.
    ///
    /// Raises:
    ///     InvalidInputError: a name is not known (code `device_unknown`, `config_value`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    #[pyo3(signature = (model, cluster, device, *, checkpointing = None, efficiency = None))]
    fn analytic(
        py: Python<'_>,
        model: &ModelShape,
        cluster: &Cluster,
        device: &str,
        checkpointing: Option<Vec<String>>,
        efficiency: Option<&Efficiency>,
    ) -> PyResult<CostProfile> {
        let kinds: Vec<CheckpointingKind> = match checkpointing {
            Some(names) => names.iter().map(|name| checkpointing_kind(py, name)).collect::<PyResult<_>>()?,
            None => vec![CheckpointingKind::None],
        };
        let (model, cluster) = (model.0.clone(), cluster.0);
        let efficiency = efficiency.map(|given| given.0);
        detached(py, || {
            let device = cost::device(device)?;
            let efficiency = efficiency.map_or_else(cost::Efficiency::shipped, Ok)?;
            cost::CostProfile::analytic(&model, cluster, &device, &kinds, &efficiency).map(CostProfile)
        })
    }

    /// Names of the devices that `analytic` knows.
    #[staticmethod]
    fn devices() -> Vec<&'static str> {
        cost::DEVICES.iter().map(|device| device.name).collect()
    }

    /// Reads and checks the JSON form.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, py: Python<'_>, text: &str) -> PyResult<CostProfile> {
        detached(py, || cost::CostProfile::from_json(text)).map(CostProfile)
    }

    /// The JSON form, indented.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// What the profile is called in messages.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes of a device that a process may use.
    #[getter]
    fn memory_bytes(&self) -> u64 {
        self.0.hardware.memory_bytes
    }

    /// Devices of a node of the cluster it was measured on.
    #[getter]
    fn gpus_per_node(&self) -> u32 {
        self.0.hardware.gpus_per_node
    }

    /// The device that it was measured on.
    #[getter]
    fn device(&self) -> &str {
        &self.0.hardware.device
    }

    /// The shape of the model that it is of; None where it does not say.
    #[getter]
    fn model(&self) -> Option<ModelShape> {
        self.0.model.clone().map(ModelShape)
    }

    /// What the model computed in; None where it does not say.
    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.0.dtype.map(Dtype::name)
    }

    /// The kernel that attention was computed with, in words; None where it does not say.
    #[getter]
    fn attention(&self) -> Option<&str> {
        self.0.attention.as_deref()
    }

    /// The schemes that have coefficients.
    #[getter]
    fn schemes(&self) -> Vec<String> {
        self.0.schemes.iter().map(|entry| entry.scheme.to_string()).collect()
    }

    /// The kind of context parallelism that a scheme was measured with, `ulysses` or `ring`; None where cp is 1.
    fn context(&self, py: Python<'_>, scheme: &Scheme) -> PyResult<Option<&'static str>> {
        let entry = self.0.scheme(scheme.0).map_err(|error| raise(py, &error))?;
        Ok(entry.context.map(ContextKind::name))
    }

    /// Layers of each stage of a scheme; None where it does not say: then they are shared out by cost.
    fn stage_layers(&self, py: Python<'_>, scheme: &Scheme) -> PyResult<Option<Vec<u32>>> {
        let entry = self.0.scheme(scheme.0).map_err(|error| raise(py, &error))?;
        Ok(entry.stage_layers.clone())
    }

    /// Most tokens of one micro-batch.
    ///
    /// Args:
    ///     scheme: one of the profile's.
    ///     cluster: over whose ranks home is shared out.
    ///
    /// Raises:
    ///     InvalidInputError: the profile does not have the scheme (code `scheme_unknown`).
    ///     InfeasibleError: it leaves no memory for a token (`scheme_too_large`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn cap_tokens(&self, py: Python<'_>, scheme: &Scheme, cluster: &Cluster) -> PyResult<u64> {
        let (profile, scheme, cluster) = (self.0.clone(), scheme.0, cluster.0);
        detached(py, move || Ok(cost::CostModel::new(profile, cluster).scheme(scheme)?.cap().0))
    }

    /// The time of one stage's forward and backward of a micro-batch, in ms, on average over the stages.
    ///
    /// Args:
    ///     scheme: one of the profile's.
    ///     lengths: tokens of each of its sequences.
    ///
    /// Raises:
    ///     InvalidInputError: the profile does not have the scheme (code `scheme_unknown`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn micro_batch_ms(&self, py: Python<'_>, scheme: &Scheme, lengths: Vec<u64>) -> PyResult<f64> {
        let (profile, scheme) = (self.0.clone(), scheme.0);
        detached(py, move || {
            let entry = profile.scheme(scheme)?;
            Ok(entry.micro_batch_ms(lengths.into_iter().map(Tokens)).0)
        })
    }

    /// The relative error to expect of a scheme's times: on held-out points, or else that of the fit; None where the profile
    /// does not say.
    fn error(&self, py: Python<'_>, scheme: &Scheme) -> PyResult<Option<f64>> {
        let entry = self.0.scheme(scheme.0).map_err(|error| raise(py, &error))?;
        Ok(entry.fit.map(|fit| fit.error()))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<CostProfile>(py, "from_json", self.to_json())
    }

    fn __repr__(&self) -> String {
        format!("CostProfile('{}', {} schemes)", self.0.name, self.0.schemes.len())
    }
}

/// How near to its peak a device comes at each kind of work, as measured profiles teach it.
#[pyclass(frozen, eq, module = "hydraulis._core")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Efficiency(cost::Efficiency);

#[pymethods]
impl Efficiency {
    /// What explains these profiles best; each must say which model it is of, and be of a known device.
    #[staticmethod]
    fn learnt(py: Python<'_>, profiles: Vec<Py<CostProfile>>) -> PyResult<Efficiency> {
        let profiles: Vec<cost::CostProfile> = profiles.into_iter().map(|profile| profile.get().0.clone()).collect();
        detached(py, || cost::Efficiency::learnt(&profiles)).map(Efficiency)
    }

    /// What the shipped profiles teach.
    #[staticmethod]
    fn shipped(py: Python<'_>) -> PyResult<Efficiency> {
        detached(py, cost::Efficiency::shipped).map(Efficiency)
    }

    /// How many times as long as at peak each kind of work takes, by name; `launches` in milliseconds a layer.
    #[getter]
    fn times_peak(&self) -> Vec<(&'static str, f64)> {
        self.0.kinds().collect()
    }

    /// The share of the peak that matrix products reach where a rank has so many hidden units.
    fn of_matrices(&self, width: f64) -> f64 {
        self.0.of_matrices(width)
    }

    /// The share of the peak that attention reaches by itself.
    #[getter]
    fn of_attention(&self) -> f64 {
        self.0.of_attention()
    }

    /// The share of the peak that a stage reaches in the matrix products and the attention of a micro-batch.
    fn of_micro_batch(
        &self,
        py: Python<'_>,
        model: &ModelShape,
        scheme: &Scheme,
        cluster: &Cluster,
        device: &str,
        lengths: Vec<u64>,
    ) -> PyResult<f64> {
        let lengths: Vec<Tokens> = lengths.into_iter().map(Tokens).collect();
        let (model, scheme, node) = (&model.0, scheme.0, cluster.0.gpus_per_node());
        detached(py, || {
            let device = cost::device(device)?;
            Ok(self.0.of_micro_batch(model, scheme, &device, node, &lengths))
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let times: Vec<f64> = self.0.kinds().map(|(_, times)| times).collect();
        made_by::<Efficiency>(py, "_of", times)
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, times: [f64; cost::Efficiency::KINDS]) -> Efficiency {
        Efficiency(cost::Efficiency::of_times_peak(times))
    }

    fn __repr__(&self) -> String {
        let kinds: Vec<String> = self.0.kinds().map(|(name, times)| format!("{name} {times:.2}")).collect();
        format!("Efficiency({})", kinds.join(", "))
    }
}

/// The shape of a decoder: two models of equal shape cost the same.
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelShape(pub(crate) spec::ModelShape);

#[pymethods]
impl ModelShape {
    /// Reads and checks the JSON form.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, py: Python<'_>, text: &str) -> PyResult<ModelShape> {
        detached(py, || spec::ModelShape::from_json(text)).map(ModelShape)
    }

    /// The JSON form, on one line.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Parameters of the whole model.
    #[getter]
    fn parameters(&self) -> u64 {
        self.0.parameters()
    }

    /// How many layers cost as much as the head.
    #[getter]
    fn head_layers(&self) -> f64 {
        self.0.head_layers()
    }

    /// The first field that another shape has otherwise: its name, the value here and there; None if they are equal.
    fn difference(&self, other: &ModelShape) -> Option<(&'static str, String, String)> {
        self.0.difference(&other.0)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        made_by::<ModelShape>(py, "from_json", self.to_json())
    }

    fn __repr__(&self) -> String {
        format!("ModelShape.from_json('{}')", self.0.to_json())
    }
}
