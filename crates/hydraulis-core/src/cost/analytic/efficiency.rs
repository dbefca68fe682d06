//! Time of each kind of work as a multiple of its time at peak, learnt from tables or measured on a device.

use crate::cost::analytic::work::{ATTENTION, KINDS, LAYERS, MATRICES, NAMES, NARROW, Work, narrowness};
use crate::cost::analytic::{Device, MeasuredDevice, device};
use crate::cost::{CostProfile, PRESETS, preset};
use crate::error::{Error, ProfileError, Result};
use crate::linear::{Row, non_negative};
use crate::spec::{Cluster, ModelShape, Scheme};
use crate::units::{Tokens, count};

/// Prior before any table: half the peak, twice the bytes' time, 1.5 ms for the launches of a layer's kernels.
const EXPECTED: [f64; KINDS] = [1.5, 0.1, 2.0, 2.0, 2.0, 2.0, 1.5, 1.5];
/// Weight of the prior: that of one time known to 20 times its own size, so it decides only coefficients that no table
/// determines.
const DOUBT: f64 = 20.0;
/// Lengths at which times are compared, up to a scheme's cap.
const LENGTHS: [u64; 7] = [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768];
/// Nodes of the cluster whose caps limit the measured lengths.
const NODES: u32 = 8;

/// The efficiencies of an H100 with torch's flash attention and `train.compile`.
///
/// Sources: matrices, sums of kernels' times (`python -m benches.gpu --only kinds-1b kinds-8b`,
/// benches/record/2026-11-27-h100-profiles.md: 1.35 to 1.42 on H200 and H100, no more at half the width); attention, elementwise,
/// weights and the least time, the profile of 1.1 billion parameters in benches/record/2026-11-27-gpu.md; exchanges in a node, `DistCA`'s NCCL tests of 8 H100 (github.com/hao-ai-lab/DistCA, 2afd2192: 308 to 350 of 450 GB/s for all-gather and
/// reduce-scatter of 134 and 268 MB); exchanges between nodes, the tables of the A800.
const ON_H100: Efficiency =
    Efficiency { times_peak: [1.38, 0.0, 1.35, 1.65, 1.06, 3.45, 0.0, 1.73], least_ms_per_layer: 3.06 };

/// For each kind of work, its time as a multiple of the time at peak; for a layer's launches, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    pub(super) times_peak: [f64; KINDS],
    /// The least time of a micro-batch, in milliseconds for each layer of a stage.
    pub(super) least_ms_per_layer: f64,
}

/// One time from a table.
struct Known {
    /// Time at peak, by kind of work.
    work: [f64; KINDS],
    ms: f64,
    /// The least time over the layers of a stage; none if the scheme has no least time.
    least_ms_per_layer: Option<f64>,
}

impl Efficiency {
    /// The efficiencies of the measured device that is like this one.
    pub fn shipped(device: &Device) -> Result<Efficiency> {
        match device.like {
            MeasuredDevice::A800 => {
                let tables = PRESETS.iter().map(|(name, _)| preset(name));
                Efficiency::learnt(&tables.collect::<Result<Vec<CostProfile>>>()?)
            }
            MeasuredDevice::H100 => Ok(ON_H100),
        }
    }

    /// The efficiencies that explain these profiles best, by least squares of relative errors; the least time of a layer is
    /// the mean over the schemes that have one.
    ///
    /// Each profile must state its model and be of a known device.
    pub fn learnt(profiles: &[CostProfile]) -> Result<Efficiency> {
        let (mut rows, mut least): (Vec<Row<KINDS>>, Vec<f64>) = (Vec::new(), Vec::new());
        for profile in profiles {
            for known in known(profile)? {
                rows.push(Row { features: known.work.map(|ms| ms / known.ms), target: 1.0 });
                least.extend(known.least_ms_per_layer);
            }
        }
        for (kind, expected) in EXPECTED.iter().enumerate() {
            let mut features = [0.0; KINDS];
            features[kind] = 1.0 / (DOUBT * expected);
            rows.push(Row { features, target: 1.0 / DOUBT });
        }
        let times_peak = non_negative(&rows).expect("the expectations alone determine every entry");
        let least_ms_per_layer = least.iter().sum::<f64>() / count(least.len().max(1));
        Ok(Efficiency { times_peak, least_ms_per_layer })
    }

    /// Number of kinds of work.
    pub const KINDS: usize = KINDS;

    /// The efficiencies with these multiples of the time at peak, in the order of the kinds, and this least time.
    pub fn of_times_peak(times_peak: [f64; KINDS], least_ms_per_layer: f64) -> Efficiency {
        Efficiency { times_peak, least_ms_per_layer }
    }

    /// The least time of a micro-batch, in milliseconds for each layer of a stage: the launches of its kernels, where the
    /// device waits for the host. 0 where no profile has one.
    pub fn least_ms_per_layer(&self) -> f64 {
        self.least_ms_per_layer
    }

    /// The kinds of work by name, each with its time as a multiple of the time at peak; for a layer's launches, in
    /// milliseconds.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, f64)> {
        NAMES.into_iter().zip(self.times_peak)
    }

    /// The share of the peak that matrix products reach on a rank with `width` hidden units, with micro-batches so
    /// large that launches and reading weights do not count.
    pub fn of_matrices(&self, width: f64) -> f64 {
        1.0 / (self.times_peak[MATRICES] + self.times_peak[NARROW] * narrowness(width))
    }

    /// The share of the peak that attention alone reaches, independent of length.
    pub fn of_attention(&self) -> f64 {
        1.0 / self.times_peak[ATTENTION]
    }

    /// The share of the peak that a stage reaches on average over the stages, in the matrix products and the attention
    /// of a micro-batch of sequences of these lengths.
    pub fn of_micro_batch(
        &self,
        model: &ModelShape,
        scheme: Scheme,
        device: &Device,
        gpus_per_node: u32,
        lengths: &[Tokens],
    ) -> f64 {
        let work = Work::of(model, scheme, device, gpus_per_node);
        let times = work.times(self);
        work.operations(lengths) / times.micro_batch_ms(lengths.iter().copied()).0
    }
}

/// The times in a profile: one sequence under each scheme, at each length that the scheme admits.
fn known(profile: &CostProfile) -> Result<Vec<Known>> {
    let (model, device) = described(profile)?;
    let gpus_per_node = profile.hardware.gpus_per_node;
    let too_many = || Error::ClusterShape {
        gpus: i64::from(NODES) * i64::from(gpus_per_node),
        gpus_per_node: gpus_per_node.into(),
    };
    let cluster = Cluster::new(NODES.checked_mul(gpus_per_node).ok_or_else(too_many)?, gpus_per_node)?;
    let mut known = Vec::new();
    for cost in crate::cost::CostModel::new(profile.clone(), cluster).best() {
        let work = Work::of(model, cost.scheme(), &device, gpus_per_node);
        for tokens in LENGTHS.into_iter().filter(|&tokens| tokens <= cost.cap().0.max(LENGTHS[0])) {
            let ms = (cost.sequence_ms(Tokens(tokens)) + cost.fixed_ms()).0;
            let least_ms_per_layer = cost.has_least().then(|| cost.least_ms().0 / work.fixed[LAYERS]);
            known.push(Known { work: work.alone(count(tokens)), ms, least_ms_per_layer });
        }
    }
    Ok(known)
}

fn described(profile: &CostProfile) -> Result<(&ModelShape, Device)> {
    let Some(model) = &profile.model else {
        return Err(ProfileError::ModelUnknown { profile: profile.name.clone() }.into());
    };
    Ok((model, device(&profile.hardware.device)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;

    #[test]
    fn nodes_beyond_any_cluster_are_refused() {
        let mut profile = preset("llama-7b-a800").unwrap();
        profile.hardware.gpus_per_node = 600_000_000;
        let error = Efficiency::learnt(&[profile]).unwrap_err();
        assert_eq!(error.code(), "argument_invalid");
        assert!(error.to_string().starts_with("a cluster of 4,800,000,000 GPUs in nodes of 600,000,000"), "{error}");
    }
}
