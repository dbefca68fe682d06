//! The time of layers that copy their saved activations to host memory and back, during computation.
//!
//! A layer of kind `offload` computes like one of kind `none`, one of `full-offload` like one of `full`. Its rank copies
//! the saved activations of a token to host memory during forward and back during backward, each way in `C`
//! milliseconds: its bytes per token over the link's rate. While a layer computes, it overlaps the copies of one other layer, so each pass of a stage takes the longer
//! of its computation and its copies. Of a sequence of `s` tokens, of `a s^2 + b s` milliseconds with the forward's
//! share `f`:
//!
//! ```text
//! T(s) = max(f (a s^2 + b s), C s) + max((1 - f) (a s^2 + b s), C s)
//! ```
//!
//! This is the time of streams that overlap fully (the same bound as the roofline of Williams et al. 2009, with the link
//! in place of memory). Layers that offload are spread evenly, so that the bound is met up to the copy of one layer at
//! an end of a pass.
//!
//! `T(s) / s` is convex in `s`. The coefficients are those of its chord from 0 to the longest sequence that fits into
//! memory: exact at both ends, and an upper bound between them and for micro-batches of several sequences, because the
//! longer of two sums is at most the sum of the longer ones. Where computation covers the copies of the shortest
//! sequences, the chord is the computation itself.
//!
//! A stage of a pipeline, except the last, begins a backward with a micro-batch whose activations are all in host memory:
//! the copy of one layer is exposed there. The last layer of a last stage is not copied, because its backward comes next.

use crate::cost::SchemeProfile;
use crate::units::count;

/// The copies of a scheme's stages, in the mean over the stages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HostCopies {
    /// Milliseconds per token of a micro-batch, each way.
    pub(super) ms_per_token: f64,
    /// Milliseconds per token that no computation covers.
    pub(super) exposed_ms_per_token: f64,
}

impl HostCopies {
    /// The copies of an entry with these bytes in host memory, of stages with these numbers of copied layers.
    pub(super) fn of(entry: &SchemeProfile, copied: &[u32], gigabytes_per_s: f64) -> HostCopies {
        let (Some(host), stages) = (&entry.host_bytes_per_token, entry.scheme.stages()) else {
            return HostCopies { ms_per_token: 0.0, exposed_ms_per_token: 0.0 };
        };
        // A micro-batch's bytes: a stage holds those of all in flight.
        let of_stage = |stage: usize| {
            let in_flight = if host.is_known() { stages - stage } else { stages };
            host.of(stage) / count(in_flight) / gigabytes_per_s * MS_PER_GIGA
        };
        let layers = |stage: usize| f64::from(copied[stage]).max(1.0);
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count(stages);
        HostCopies {
            ms_per_token: mean(&mut (0..stages).map(of_stage)),
            exposed_ms_per_token: mean(&mut (0..stages - 1).map(|stage| of_stage(stage) / layers(stage))),
        }
    }

    /// The entry, whose times are those of computation alone, with the time that the copies add.
    pub(super) fn added_to(self, computed: SchemeProfile, longest_tokens: f64) -> SchemeProfile {
        let (a, b) = (computed.quadratic_ms_per_token2, computed.linear_ms_per_token);
        let passes = [computed.forward_share, 1.0 - computed.forward_share];
        let per_token = |pass: f64, tokens: f64| (pass * (a * tokens + b)).max(self.ms_per_token);
        let at = |tokens: f64| -> f64 { passes.iter().map(|&pass| per_token(pass, tokens)).sum() };
        let linear = at(0.0);
        // Without copies to wait for, the slope is `a` itself, free of rounding.
        let is_covered = passes.iter().all(|&pass| pass * b >= self.ms_per_token);
        let quadratic = if is_covered { a } else { (at(longest_tokens) - linear) / longest_tokens };
        SchemeProfile {
            quadratic_ms_per_token2: quadratic.max(0.0),
            linear_ms_per_token: if is_covered { b } else { linear } + self.exposed_ms_per_token,
            forward_share: if is_covered { computed.forward_share } else { per_token(passes[0], 0.0) / linear },
            ..computed
        }
    }
}

const MS_PER_GIGA: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{PerStage, preset};
    use crate::units::Tokens;
    use proptest::prelude::*;

    fn entry(a: f64, b: f64, forward_share: f64) -> SchemeProfile {
        let shipped = preset("llama-32b-a800").unwrap().schemes[0].clone();
        SchemeProfile { quadratic_ms_per_token2: a, linear_ms_per_token: b, fixed_ms: 3.0, forward_share, ..shipped }
    }

    #[test]
    fn covered_copies_add_nothing() {
        let computed = entry(1e-6, 0.03, 1.0 / 3.0);
        let copies = HostCopies { ms_per_token: 0.009, exposed_ms_per_token: 0.0 };
        assert_eq!(copies.added_to(computed.clone(), 30_000.0), computed);
    }

    /// 12 ms per token of forward and 24 of backward against 30 of copies: 60 for short sequences, and at 10,000 tokens
    /// 12 + 20 and 24 + 40.
    #[test]
    fn the_time_is_exact_at_both_ends() {
        let computed = entry(0.006, 36.0, 1.0 / 3.0);
        let copies = HostCopies { ms_per_token: 30.0, exposed_ms_per_token: 0.0 };
        let found = copies.added_to(computed, 10_000.0);
        assert!((found.linear_ms_per_token - 60.0).abs() < 1e-12);
        assert!((found.quadratic_ms_per_token2 * 10_000.0 - 36.0).abs() < 1e-9);
        assert!((found.forward_share - 0.5).abs() < 1e-12);
    }

    /// Two stages with 2 and 1 micro-batches in flight of 1e6 bytes each at 10 GB/s: 0.1 ms a token; the first stage
    /// also waits for one of its 4 layers.
    #[test]
    fn a_pipeline_waits_for_one_layer_before_the_last_stage() {
        let shipped = preset("llama-32b-a800").unwrap();
        let scheme = "<tp8,pp2,offload>".parse().unwrap();
        let host_bytes_per_token = Some(PerStage::each(vec![2e6, 1e6]));
        let piped = SchemeProfile { scheme, host_bytes_per_token, ..shipped.schemes[0].clone() };
        let copies = HostCopies::of(&piped, &[4, 4], 10.0);
        assert!((copies.ms_per_token - 0.1).abs() < 1e-15);
        assert!((copies.exposed_ms_per_token - 0.1 / 4.0 / 2.0).abs() < 1e-15);
    }

    proptest! {
        /// A micro-batch never takes less than the longer of computation and copies, and no more than without overlap.
        #[test]
        fn no_micro_batch_is_predicted_too_short(
            (a, b, copy) in (1e-9..1e-5_f64, 1e-3..1.0_f64, 1e-3..1.0_f64),
            share in 0.1..0.9_f64,
            lengths in proptest::collection::vec(1..=30_000_u64, 1..6),
        ) {
            let computed = entry(a, b, share);
            let found = HostCopies { ms_per_token: copy, exposed_ms_per_token: 0.0 }.added_to(computed.clone(), 30_000.0);
            let work = computed.micro_batch_ms(lengths.iter().copied().map(Tokens)).0 - 3.0;
            let copies = copy * count(lengths.iter().sum::<u64>());
            let least = (share * work).max(copies) + ((1.0 - share) * work).max(copies);
            let ms = found.micro_batch_ms(lengths.into_iter().map(Tokens)).0 - 3.0;
            prop_assert!(ms >= least * (1.0 - 1e-9), "{ms} < {least}");
            prop_assert!(ms <= (work + 2.0 * copies) * (1.0 + 1e-9));
        }
    }
}
