//! `CostProfile`, `Efficiency` and `ModelShape`.

use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::spec::{CheckpointingKind, ContextKind, Dtype};
use hydraulis_core::{cost, spec};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::convert::arrays::{Whole, integers};
use crate::convert::errors::raise;
use crate::convert::gil::detached;
use crate::convert::integers::Integer;
use crate::convert::text::Text;
use crate::convert::{Reduced, made_by};
use crate::spec::{Cluster, Scheme, checkpointing_kind, sharding_kind};

/// Time and memory of one model under each scheme on one kind of cluster, and the source of the numbers.
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostProfile(pub(crate) cost::CostProfile);

#[pymethods]
impl CostProfile {
    /// Loads the shipped profile with this name.
    #[staticmethod]
    fn preset(py: Python<'_>, name: Text<'_>) -> PyResult<CostProfile> {
        cost::preset(&name).map(CostProfile).map_err(|error| raise(py, &error))
    }

    /// Names of the shipped profiles.
    #[staticmethod]
    fn presets() -> Vec<&'static str> {
        cost::PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// Predicts the profile of a model on a device from the device's data sheet, for all schemes that fit.
    ///
    /// Args:
    ///     model: Shape of the model.
    ///     cluster: Cluster that bounds the schemes.
    ///     device: Name of a device, one of `devices`.
    ///     checkpointing: Kinds of checkpointing for each scheme: `none`, `selective`, `full`, `offload`, `full-offload`; default `none` alone.
    ///     efficiency: Shares of peak performance that the device reaches; default those of the measured device that is like it.
    ///     host_gigabytes_per_s: Rate of copies to host memory, each way, above 0; default that of the device.
    ///     host_memory_bytes: Host memory of a rank; default that of the device.
    ///
    /// Raises:
    ///     InvalidInputError: A name is unknown (code `profile_unknown`, `argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[staticmethod]
    #[pyo3(signature = (model, cluster, device, *, checkpointing = None, efficiency = None, host_gigabytes_per_s = None, host_memory_bytes = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn analytic(
        py: Python<'_>,
        model: &ModelShape,
        cluster: &Cluster,
        device: Text<'_>,
        checkpointing: Option<Vec<String>>,
        efficiency: Option<&Efficiency>,
        host_gigabytes_per_s: Option<f64>,
        host_memory_bytes: Option<u64>,
    ) -> PyResult<CostProfile> {
        let kinds: Vec<CheckpointingKind> = match checkpointing {
            Some(names) => names.iter().map(|name| checkpointing_kind(py, name)).collect::<PyResult<_>>()?,
            None => vec![CheckpointingKind::None],
        };
        let (model, cluster) = (model.0.clone(), &cluster.0);
        let efficiency = efficiency.map(|given| given.0);
        detached(py, || {
            let known = cost::device(&device)?;
            let device = cost::Device {
                host_gb_per_s: host_gigabytes_per_s.unwrap_or(known.host_gb_per_s),
                host_memory_bytes: host_memory_bytes.unwrap_or(known.host_memory_bytes),
                ..known
            };
            let efficiency = efficiency.map_or_else(|| cost::Efficiency::shipped(&device), Ok)?;
            cost::CostProfile::analytic(&model, cluster, &device, &kinds, &efficiency).map(CostProfile)
        })
    }

    /// Returns the profile with those of these schemes that it lacks and that follow from its own: a layer plan from the
    /// entries of both its kinds of checkpointing, a split of the layers from that of the usual split. A planner does so
    /// with the strategies that it is given.
    ///
    /// Args:
    ///     schemes: Schemes to derive; those that do not follow from the profile stay unknown.
    ///
    /// Raises:
    ///     InvalidInputError: A scheme has more stages, or splits another number of layers, than the model has (code
    ///         `scheme_model_mismatch`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    #[expect(clippy::needless_pass_by_value, reason = "Python gives the list")]
    fn with_derived(&self, py: Python<'_>, schemes: Vec<PyRef<'_, Scheme>>) -> PyResult<CostProfile> {
        let schemes: Vec<_> = schemes.iter().map(|scheme| scheme.0).collect();
        let profile = self.0.clone();
        detached(py, move || profile.with_derived(&schemes)).map(CostProfile)
    }

    /// Returns the profile with layer plans between the kinds of checkpointing that it has of the same degrees.
    ///
    /// Args:
    ///     between: Number of layer plans between each two successive kinds, from 0.
    ///
    /// Raises:
    ///     InvalidInputError: A scheme has more stages than the model has layers (code `scheme_model_mismatch`), or the
    ///         number is above 65,535 (`argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn with_layer_plans(&self, py: Python<'_>, between: Integer) -> PyResult<CostProfile> {
        let (profile, between) = (self.0.clone(), between.count(py, "between")?);
        detached(py, move || profile.with_layer_plans(between)).map(CostProfile)
    }

    /// Returns the profile with schemes of context degrees, derived from its schemes without them by the ratios of an
    /// analytic profile of its model and device. Its name ends in `,cp`, and its source says which schemes are derived.
    ///
    /// Raises:
    ///     InvalidInputError: The profile does not name its model (code `profile_invalid`), or its device has no data sheet
    ///         (`profile_unknown`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn with_context_degrees(&self, py: Python<'_>) -> PyResult<CostProfile> {
        let profile = self.0.clone();
        detached(py, move || profile.with_context_degrees()).map(CostProfile)
    }

    /// Returns the profile with splits of the layers for stages on slow ranks, which are candidates where ranks differ.
    ///
    /// Args:
    ///     number: Number of splits for each place of slow stages in a pipeline, from 0.
    ///
    /// Raises:
    ///     InvalidInputError: A scheme has more stages than the model has layers (code `scheme_model_mismatch`), or the
    ///         number is above 65,535 (`argument_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn with_layer_splits(&self, py: Python<'_>, number: Integer) -> PyResult<CostProfile> {
        let (profile, number) = (self.0.clone(), number.count::<u16>(py, "number")?);
        detached(py, move || profile.with_layer_splits(number.into())).map(CostProfile)
    }

    /// Returns the profile under another sharding: its schemes without stages, with two layer groups of each sharded
    /// buffer on a rank.
    ///
    /// Args:
    ///     kind: `gradients`, or `parameters` for parameters and gradients.
    ///
    /// Raises:
    ///     InvalidInputError: The profile does not state its model, every scheme of it has stages, or it has another
    ///         sharding already (code `profile_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn with_sharding(&self, py: Python<'_>, kind: Text<'_>) -> PyResult<CostProfile> {
        let kind = sharding_kind(py, &kind)?;
        let profile = self.0.clone();
        detached(py, move || profile.with_sharding(kind)).map(CostProfile)
    }

    /// Returns the profile with the times of the cluster's other devices, of the schemes that all profiles have.
    ///
    /// Its name joins theirs. Memory figures stay those of this profile.
    ///
    /// Args:
    ///     others: Each other device's rate and profile. A rank of this rate takes the times of the profile, and at another
    ///         rate times in inverse proportion.
    ///
    /// Raises:
    ///     InvalidInputError: A rate is not from 0.001 to 1,000, no scheme is in all profiles, or another profile is of
    ///         several devices, or differs in model, type, sharding, or a scheme's layers or kind of context parallelism
    ///         (code `profile_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn with_other_devices(&self, py: Python<'_>, others: Vec<(f64, Py<CostProfile>)>) -> PyResult<CostProfile> {
        let others = others.into_iter();
        let others =
            others.map(|(rate, profile)| cost::OtherDevice { rate, profile: profile.get().0.clone() }).collect();
        let profile = self.0.clone();
        detached(py, move || profile.with_other_devices(others)).map(CostProfile)
    }

    /// Rate and profile of each other device; empty for a profile of one device.
    #[getter]
    fn other_devices(&self) -> Vec<(f64, CostProfile)> {
        self.0.other_devices.iter().map(|other| (other.rate, CostProfile(other.profile.clone()))).collect()
    }

    /// Names of the devices that `analytic` knows.
    #[staticmethod]
    fn devices() -> Vec<&'static str> {
        cost::DEVICES.iter().map(|device| device.name).collect()
    }

    /// Reads and checks the JSON form.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, py: Python<'_>, text: Text<'_>) -> PyResult<CostProfile> {
        detached(py, || cost::CostProfile::from_json(&text)).map(CostProfile)
    }

    /// Returns the JSON form, indented.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Name of the profile, used in messages.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Device memory that a process may use, in bytes.
    #[getter]
    fn memory_bytes(&self) -> u64 {
        self.0.hardware.memory_bytes
    }

    /// Host memory that a rank may use for activations, in bytes; None for no limit.
    #[getter]
    fn host_memory_bytes(&self) -> Option<u64> {
        self.0.hardware.host_memory_bytes
    }

    /// Rate of a rank's copies to host memory and at the same time back, in GB/s each way; None if unknown.
    #[getter]
    fn host_gigabytes_per_s(&self) -> Option<f64> {
        self.0.hardware.host_gigabytes_per_s
    }

    /// GPUs per node of the measured cluster.
    #[getter]
    fn gpus_per_node(&self) -> u32 {
        self.0.hardware.gpus_per_node
    }

    /// Name of the measured device.
    #[getter]
    fn device(&self) -> &str {
        &self.0.hardware.device
    }

    /// Shape of the profiled model; None if the profile does not state it.
    #[getter]
    fn model(&self) -> Option<ModelShape> {
        self.0.model.clone().map(ModelShape)
    }

    /// Data type of the model's computation; None if the profile does not state it.
    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.0.dtype.map(Dtype::name)
    }

    /// Description of the attention kernel; None if the profile does not state it.
    #[getter]
    fn attention(&self) -> Option<&str> {
        self.0.attention.as_deref()
    }

    /// Whether the elementwise operations were compiled; None if the profile does not state it.
    #[getter]
    fn compiled(&self) -> Option<bool> {
        self.0.compiled
    }

    /// Whether the layers' linear maps multiplied in float8; None if the profile does not state it.
    #[getter]
    fn float8(&self) -> Option<bool> {
        self.0.float8
    }

    /// Whether tensor parallelism exchanged through symmetric memory; None if the profile does not state it.
    #[getter]
    fn symmetric_memory(&self) -> Option<bool> {
        self.0.symmetric_memory
    }

    /// Tensors that a rank holds for two layer groups at a time: `none`, `gradients`, or `parameters` with gradients.
    #[getter]
    fn sharding(&self) -> &'static str {
        self.0.sharding.name()
    }

    /// Schemes with coefficients.
    #[getter]
    fn schemes(&self) -> Vec<String> {
        self.0.schemes.iter().map(|entry| entry.scheme.to_string()).collect()
    }

    /// Kind of context parallelism measured for a scheme, `ulysses` or `ring`; None where cp is 1.
    fn context(&self, py: Python<'_>, scheme: &Scheme) -> PyResult<Option<&'static str>> {
        let entry = self.0.scheme(scheme.0).map_err(|error| raise(py, &error))?;
        Ok(entry.context.map(ContextKind::name))
    }

    /// Layers of each stage of a scheme; None if the profile does not state them: then they are assigned by cost.
    fn stage_layers(&self, py: Python<'_>, scheme: &Scheme) -> PyResult<Option<Vec<u32>>> {
        let entry = self.0.scheme(scheme.0).map_err(|error| raise(py, &error))?;
        Ok(entry.stage_layers.clone())
    }

    /// Token cap of one micro-batch.
    ///
    /// Args:
    ///     scheme: Scheme of the profile.
    ///     cluster: Cluster whose ranks share the optimizer state.
    ///
    /// Raises:
    ///     InvalidInputError: The profile does not have the scheme (code `scheme_unknown`).
    ///     InfeasibleError: The scheme leaves no memory for a token (`scheme_too_large`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn cap_tokens(&self, py: Python<'_>, scheme: &Scheme, cluster: &Cluster) -> PyResult<u64> {
        let (profile, scheme, cluster) = (self.0.clone(), scheme.0, cluster.0.clone());
        detached(py, move || Ok(cost::CostModel::new(profile, cluster).scheme(scheme)?.cap().0))
    }

    /// Forward and backward time of a micro-batch on one stage, averaged over the stages, in ms.
    ///
    /// Args:
    ///     scheme: Scheme of the profile.
    ///     lengths: Tokens of each sequence of the micro-batch, which may be empty.
    ///
    /// Raises:
    ///     InvalidInputError: The profile does not have the scheme (code `scheme_unknown`), or a length is out of range
    ///         (`lengths_invalid`).
    #[expect(clippy::doc_markdown, reason = "a Python docstring names its arguments bare")]
    fn micro_batch_ms(&self, py: Python<'_>, scheme: &Scheme, lengths: &Bound<'_, PyAny>) -> PyResult<f64> {
        let (profile, scheme) = (self.0.clone(), scheme.0);
        let lengths = integers("lengths", Whole::Lengths, lengths)?;
        detached(py, move || {
            let entry = profile.scheme(scheme)?;
            // No sequence at all is an empty micro-batch, and no batch.
            let batch = if lengths.is_empty() { None } else { Some(Batch::new(&lengths, None)?) };
            Ok(entry.micro_batch_ms(batch.iter().flat_map(Batch::tokens).copied()).0)
        })
    }

    /// Expected relative error of a scheme's predicted times: the error on held-out points, else the error of the fit;
    /// None if the profile states neither.
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

/// Shares of peak performance that a device reaches for each kind of work, learnt from measured profiles.
#[pyclass(frozen, eq, module = "hydraulis._core")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Efficiency(cost::Efficiency);

#[pymethods]
impl Efficiency {
    /// Learns the efficiency that explains these profiles best; each must state its model and name a known device.
    #[staticmethod]
    fn learnt(py: Python<'_>, profiles: Vec<Py<CostProfile>>) -> PyResult<Efficiency> {
        let profiles: Vec<cost::CostProfile> = profiles.into_iter().map(|profile| profile.get().0.clone()).collect();
        detached(py, || cost::Efficiency::learnt(&profiles)).map(Efficiency)
    }

    /// The efficiency of the measured device that is like this one: learnt from the shipped profiles, or an H100's.
    #[staticmethod]
    fn shipped(py: Python<'_>, device: Text<'_>) -> PyResult<Efficiency> {
        detached(py, || cost::Efficiency::shipped(&cost::device(&device)?)).map(Efficiency)
    }

    /// Time of each kind of work relative to its time at peak, by name; `launches` in milliseconds per layer.
    #[getter]
    fn times_peak(&self) -> Vec<(&'static str, f64)> {
        self.0.kinds().collect()
    }

    /// The least time of a micro-batch in milliseconds for each layer of a stage; 0 where no profile has one.
    #[getter]
    fn least_ms_per_layer(&self) -> f64 {
        self.0.least_ms_per_layer()
    }

    /// Share of peak that matrix products reach on a rank with this number of hidden units.
    fn of_matrices(&self, width: f64) -> f64 {
        self.0.of_matrices(width)
    }

    /// Share of peak that attention reaches by itself.
    #[getter]
    fn of_attention(&self) -> f64 {
        self.0.of_attention()
    }

    /// Share of peak that a stage reaches in the matrix products and the attention of a micro-batch.
    fn of_micro_batch(
        &self,
        py: Python<'_>,
        model: &ModelShape,
        scheme: &Scheme,
        cluster: &Cluster,
        device: Text<'_>,
        lengths: Vec<u64>,
    ) -> PyResult<f64> {
        let lengths: Vec<Tokens> = lengths.into_iter().map(Tokens).collect();
        let (model, scheme, node) = (&model.0, scheme.0, cluster.0.gpus_per_node());
        detached(py, || {
            let device = cost::device(&device)?;
            Ok(self.0.of_micro_batch(model, scheme, &device, node, &lengths))
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let times: Vec<f64> = self.0.kinds().map(|(_, times)| times).collect();
        made_by::<Efficiency>(py, "_of", (times, self.0.least_ms_per_layer()))
    }

    #[classmethod]
    fn _of(_class: &Bound<'_, PyType>, times: ([f64; cost::Efficiency::KINDS], f64)) -> Efficiency {
        Efficiency(cost::Efficiency::of_times_peak(times.0, times.1))
    }

    fn __repr__(&self) -> String {
        let kinds: Vec<String> = self.0.kinds().map(|(name, times)| format!("{name} {times:.2}")).collect();
        format!("Efficiency({})", kinds.join(", "))
    }
}

/// Shape of a decoder; two models of equal shape have equal cost.
#[pyclass(frozen, eq, module = "hydraulis")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelShape(pub(crate) spec::ModelShape);

#[pymethods]
impl ModelShape {
    /// Reads and checks the JSON form.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, py: Python<'_>, text: Text<'_>) -> PyResult<ModelShape> {
        detached(py, || spec::ModelShape::from_json(&text)).map(ModelShape)
    }

    /// Returns the JSON form, on one line.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Number of parameters of the whole model.
    #[getter]
    fn parameters(&self) -> u64 {
        self.0.parameters()
    }

    /// Cost of the head, in layers.
    #[getter]
    fn head_layers(&self) -> f64 {
        self.0.head_layers()
    }

    /// First field that differs from another shape: its name, the value here and the value there; None if they are
    /// equal.
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
