//! Fits recover the coefficients behind the points, state their uncertainty, and refuse points that determine no fit.

use std::cell::Cell;
use std::ops::Range;

use hydraulis_core::cost::{CostFit, Measurement, SchemeProfile, fit, fit_schemes, micro_batches_to_measure, preset};
use hydraulis_core::spec::Scheme;
use hydraulis_core::{Millis, Tokens};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// The true coefficients behind some points.
#[derive(Clone, Copy, Debug)]
struct Law([f64; 3]);

impl Law {
    #[expect(clippy::cast_precision_loss, reason = "lengths are small")]
    fn ms(self, sequences: &[u64]) -> f64 {
        let squares: u64 = sequences.iter().map(|tokens| tokens * tokens).sum();
        let tokens: u64 = sequences.iter().sum();
        self.0[0] * squares as f64 + self.0[1] * tokens as f64 + self.0[2]
    }

    /// A point that takes `factor` times the time of the law.
    fn point(self, sequences: &[u64], factor: f64) -> Measurement {
        let ms = Millis(self.ms(sequences) * factor);
        Measurement { sequences: sequences.iter().copied().map(Tokens).collect(), ms }
    }
}

/// Approximately normal noise with this deviation: the sum of four uniform numbers, which these tests cannot
/// distinguish.
fn noise(deviation: f64) -> impl Strategy<Value = f64> {
    proptest::array::uniform4(-1.0..1.0_f64)
        .prop_map(move |parts| 1.0 + deviation * parts.iter().sum::<f64>() * (3.0_f64 / 4.0).sqrt())
}

/// Coefficients whose three parts all matter between 64 and 16,384 tokens.
fn laws() -> impl Strategy<Value = Law> {
    (0.01..0.3_f64, 300.0..6_000.0_f64, 300.0..3_000.0_f64)
        .prop_map(|(b, square_tokens, fixed_tokens)| Law([b / square_tokens, b, b * fixed_tokens]))
}

fn mixes() -> impl Strategy<Value = Vec<u64>> {
    let length = (6_u32..14).prop_flat_map(|power| (1_u64 << power)..=(2_u64 << power));
    (length, prop_oneof![3 => 1_usize..2, 1 => 2_usize..9]).prop_map(|(length, sequences)| vec![length; sequences])
}

/// Points of one law with 5 % noise; a share `outliers` of them takes up to four times as long.
fn noisy(points: Range<usize>, outliers: f64) -> impl Strategy<Value = (Law, Vec<Measurement>)> {
    let factor = (noise(0.05), prop::bool::weighted(outliers), 1.3..4.0_f64)
        .prop_map(|(noise, is_slow, slower)| if is_slow { slower } else { noise });
    (laws(), vec((mixes(), factor), points))
        .prop_map(|(law, drawn)| (law, drawn.iter().map(|(mix, factor)| law.point(mix, *factor)).collect()))
}

/// A runner with the same cases on every run: assertions about chance hold for these cases.
fn cases(number: u32) -> TestRunner {
    let config = ProptestConfig { cases: number, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// Half-width of each interval, relative to its coefficient.
fn halves(fitted: &CostFit) -> [f64; 3] {
    let values = [fitted.quadratic_ms_per_token2, fitted.linear_ms_per_token, fitted.fixed_ms];
    [0, 1, 2].map(|j| fitted.intervals[j].high / values[j] - 1.0)
}

#[test]
fn noise_and_outliers_leave_the_coefficients_within_two_percent() {
    let seen = Cell::new(0);
    cases(24)
        .run(&noisy(1_500..2_500, 0.2), |(law, points)| {
            let fitted = fit(&points).unwrap();
            let found = [fitted.quadratic_ms_per_token2, fitted.linear_ms_per_token, fitted.fixed_ms];
            for (j, half) in halves(&fitted).into_iter().enumerate().filter(|(_, half)| *half < 0.01) {
                seen.set(seen.get() + 1);
                prop_assert!((found[j] / law.0[j] - 1.0).abs() < 0.02, "{j}: {found:?}, {:?}, {half}", law.0);
            }
            prop_assert!(fitted.outliers * 10 > points.len(), "{} of {}", fitted.outliers, points.len());
            prop_assert!((0.03..0.06).contains(&fitted.relative_error), "{}", fitted.relative_error);
            Ok(())
        })
        .unwrap();
    assert!(seen.get() >= 40, "{} of 72 coefficients were identified", seen.get());
}

#[test]
fn intervals_cover_the_true_coefficients() {
    let (inside, all) = (Cell::new(0), Cell::new(0));
    cases(150)
        .run(&noisy(12..40, 0.05), |(law, points)| {
            let Ok(fitted) = fit(&points) else { return Ok(()) };
            for (interval, truth) in fitted.intervals.iter().zip(law.0) {
                all.set(all.get() + 1);
                inside.set(inside.get() + i32::from((interval.low..=interval.high).contains(&truth)));
            }
            Ok(())
        })
        .unwrap();
    assert!(all.get() >= 400, "{}", all.get());
    let share = f64::from(inside.get()) / f64::from(all.get());
    assert!((0.88..=0.995).contains(&share), "{share}");
}

#[test]
fn exact_times_give_back_the_coefficients() {
    let law = Law([2e-6, 0.1, 30.0]);
    let mixes: [&[u64]; 5] = [&[128], &[1024], &[8192], &[512, 512, 512], &[4096, 64]];
    let fitted = fit(&mixes.map(|mix| law.point(mix, 1.0))).unwrap();
    assert!((fitted.quadratic_ms_per_token2 / 2e-6 - 1.0).abs() < 1e-9);
    assert!((fitted.linear_ms_per_token / 0.1 - 1.0).abs() < 1e-9);
    assert!((fitted.fixed_ms / 30.0 - 1.0).abs() < 1e-9);
    assert!(fitted.relative_error < 1e-9 && fitted.outliers == 0);
    assert!(fitted.held_out_error.unwrap() < 1e-9);
    assert_eq!((fitted.range.longest_tokens, fitted.range.micro_batch_tokens), (Tokens(8192), Tokens(8192)));
    assert!(fitted.residuals.iter().all(|residual| residual.abs() < 1e-9));
}

#[test]
fn an_extrapolation_states_its_factor() {
    let law = Law([2e-6, 0.1, 30.0]);
    let mixes: [&[u64]; 5] = [&[128], &[1024], &[2048], &[512; 8], &[2048, 64]];
    let range = fit(&mixes.map(|mix| law.point(mix, 1.0))).unwrap().range;
    assert_eq!((range.longest_tokens, range.micro_batch_tokens), (Tokens(2048), Tokens(4096)));
    for (longest, micro_batch, beyond) in [(1, 1, 1.0), (2048, 4096, 1.0), (3072, 3072, 1.5), (128, 8192, 2.0)] {
        assert!((range.beyond(Tokens(longest), Tokens(micro_batch)) - beyond).abs() < 1e-12);
    }
}

#[test]
fn one_slow_timing_among_few_changes_nothing() {
    let law = Law([2e-6, 0.1, 30.0]);
    let mixes = micro_batches_to_measure(Tokens(8192), Tokens(16_384), 8);
    for slow in 0..mixes.len() {
        let points: Vec<Measurement> = mixes
            .iter()
            .enumerate()
            .map(|(place, mix)| {
                let lengths: Vec<u64> = mix.iter().map(|tokens| tokens.0).collect();
                law.point(&lengths, if place == slow { 2.5 } else { 1.0 })
            })
            .collect();
        let fitted = fit(&points).unwrap();
        assert!((fitted.linear_ms_per_token / 0.1 - 1.0).abs() < 0.02, "{slow}: {fitted:?}");
        assert_eq!(fitted.outliers, 1, "{slow}");
        assert!(fitted.residuals[slow] > 1.0);
    }
}

/// Points of the law in which small micro-batches take `least` at least.
fn device_like(law: Law, least: f64, number: usize, noises: &[f64]) -> Vec<Measurement> {
    let mixes = micro_batches_to_measure(Tokens(8192), Tokens(16_384), number);
    let point = |(mix, &noise): (Vec<Tokens>, &f64)| {
        let lengths: Vec<u64> = mix.iter().map(|tokens| tokens.0).collect();
        Measurement { sequences: mix, ms: Millis(law.ms(&lengths).max(least) * noise) }
    };
    mixes.into_iter().zip(noises).map(point).collect()
}

#[test]
fn the_least_time_of_a_device_is_found_beside_the_law() {
    // As measured on an H100; micro-batches up to about 5,500 tokens take the least time.
    let law = Law([1.05e-6, 0.0122, 5.0]);
    cases(60)
        .run(&vec(noise(0.01), 12), |noises| {
            let points = device_like(law, 74.0, 12, &noises);
            let fitted = fit(&points).unwrap();
            prop_assert!((fitted.least_ms / 74.0 - 1.0).abs() < 0.03, "{fitted:?}");
            for mix in [&[64][..], &[4096], &[6144], &[512; 12], &[512; 20], &[8192, 4096], &[8192, 8192]] {
                let predicted = fitted.predict(&mix.iter().copied().map(Tokens).collect::<Vec<_>>()).0;
                let off = predicted / law.ms(mix).max(74.0) - 1.0;
                prop_assert!(off.abs() < 0.1, "{mix:?} is {off} off: {fitted:?}");
            }
            prop_assert!(fitted.relative_error < 0.03 && fitted.held_out_error.unwrap() < 0.1, "{fitted:?}");
            prop_assert_eq!(fitted.residuals.len(), points.len());
            // Other schemes of the model tell about the law alone.
            let schemes = ["<1>", "<tp2>"].map(|scheme| (scheme.parse().unwrap(), points.clone()));
            for one in fit_schemes(&schemes).unwrap() {
                prop_assert!((one.least_ms / fitted.least_ms - 1.0).abs() < 1e-12, "{one:?}");
                prop_assert!((one.linear_ms_per_token / 0.0122 - 1.0).abs() < 0.2, "{one:?}");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn one_slow_timing_hides_no_least_time() {
    let law = Law([1.05e-6, 0.0122, 5.0]);
    for slow in 0..12 {
        let mut noises = [1.0; 12];
        noises[slow] = 4.0;
        let fitted = fit(&device_like(law, 74.0, 12, &noises)).unwrap();
        assert!((fitted.least_ms / 74.0 - 1.0).abs() < 1e-9, "{slow}: {fitted:?}");
        assert!((fitted.linear_ms_per_token / 0.0122 - 1.0).abs() < 1e-6, "{slow}: {fitted:?}");
        assert!(fitted.outliers == 1 && fitted.relative_error < 1e-6, "{slow}: {fitted:?}");
        assert!((fitted.residuals[slow] - 3.0).abs() < 1e-6, "{slow}: {fitted:?}");
    }
}

/// A law that is bent towards slow timings explains fewer of the others, so it shows no least time.
#[test]
fn three_slow_timings_of_ten_look_like_no_least_time() {
    let law = Law([1e-6, 1e-3, 2.0]);
    let mixes: [&[u64]; 10] =
        [&[128], &[128; 2], &[128; 4], &[128; 8], &[512], &[512; 2], &[512; 4], &[2048], &[2048; 2], &[4096]];
    let slow = prop::sample::subsequence((0..10).collect::<Vec<usize>>(), 3);
    cases(200)
        .run(&(slow, vec(noise(0.01), 10), vec(1.5..3.5_f64, 10)), |(slow, noises, factors)| {
            let factor = |place: usize| if slow.contains(&place) { factors[place] } else { noises[place] };
            let points: Vec<Measurement> = (0..10).map(|place| law.point(mixes[place], factor(place))).collect();
            let fitted = fit(&points).unwrap();
            prop_assert!(fitted.least_ms <= 0.0, "{slow:?}: {fitted:?}");
            for mix in mixes {
                let predicted = fitted.predict(&mix.iter().copied().map(Tokens).collect::<Vec<_>>()).0;
                prop_assert!((predicted / law.ms(mix) - 1.0).abs() < 0.3, "{mix:?}, {slow:?}: {fitted:?}");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn times_without_a_least_one_show_none() {
    cases(200)
        .run(&(laws(), vec(noise(0.03), 12)), |(law, noises)| {
            let fitted = fit(&device_like(law, 0.0, 12, &noises)).unwrap();
            prop_assert!(fitted.least_ms <= 0.0, "{law:?}: {fitted:?}");
            Ok(())
        })
        .unwrap();
}

#[test]
fn noise_seldom_looks_like_a_least_time() {
    let found = Cell::new(0);
    cases(200)
        .run(&(laws(), vec(noise(0.1), 12)), |(law, noises)| {
            let fitted = fit(&device_like(law, 0.0, 12, &noises)).unwrap();
            found.set(found.get() + u32::from(fitted.least_ms > 0.0));
            Ok(())
        })
        .unwrap();
    assert!(found.get() <= 10, "{} of 200", found.get());
}

/// Launches alone take the time of a small model on a fast device.
#[test]
fn times_that_do_not_grow_leave_a_token_a_time_of_its_own() {
    let points = |seed: f64| {
        let point = |place: u32| {
            let tokens = Tokens(u64::from(64 + 200 * place));
            Measurement { sequences: vec![tokens], ms: Millis(60.0 * (1.0 + 0.02 * (seed * f64::from(place)).sin())) }
        };
        (0..10).map(point).collect::<Vec<_>>()
    };
    for seed in 1..40 {
        let fitted = fit(&points(f64::from(seed))).unwrap();
        assert!(fitted.quadratic_ms_per_token2 + fitted.linear_ms_per_token >= 1e-9, "{seed}");
        let ms = fitted.predict(&[Tokens(1_000)]).0;
        assert!((ms / 60.0 - 1.0).abs() < 0.05, "{seed}: {ms}");
    }
}

#[test]
fn a_falling_trend_gives_no_negative_coefficient() {
    // The time per token falls with length here: an unconstrained fit makes the quadratic coefficient negative.
    let times = [(100, 10.0), (200, 19.0), (400, 34.0), (800, 60.0), (1600, 111.0)];
    let points = times.map(|(tokens, ms)| Measurement { sequences: vec![Tokens(tokens)], ms: Millis(ms) });
    let fitted = fit(&points).unwrap();
    assert!(fitted.quadratic_ms_per_token2 >= 0.0 && fitted.linear_ms_per_token > 0.0 && fitted.fixed_ms >= 0.0);
    assert!(fitted.intervals.iter().all(|interval| interval.low >= 0.0));
}

#[test]
fn unusable_points_are_refused_by_name() {
    let law = Law([2e-6, 0.1, 30.0]);
    let sound: Vec<Measurement> = [64, 256, 1024, 4096, 8192].map(|length| law.point(&[length], 1.0)).into();
    let with = |change: &dyn Fn(&mut Vec<Measurement>)| {
        let mut points = sound.clone();
        change(&mut points);
        fit(&points).map_err(|error| error.code())
    };
    assert!(with(&|_| ()).is_ok());
    assert_eq!(with(&|points| points.truncate(3)), Err("fit_underdetermined"));
    assert_eq!(with(&|points| points[1].ms = Millis(f64::NAN)), Err("fit_underdetermined"));
    assert_eq!(with(&|points| points[1].ms = Millis(-1.0)), Err("fit_underdetermined"));
    assert_eq!(with(&|points| points[1].sequences.clear()), Err("fit_underdetermined"));
    assert_eq!(with(&|points| points[1].sequences[0] = Tokens(0)), Err("fit_underdetermined"));
    // Packs of sequences of one length: they do not separate a from b.
    let packs: Vec<Measurement> = (1..9).map(|number| law.point(&vec![512; number], 1.0)).collect();
    assert_eq!(fit(&packs).unwrap_err().code(), "fit_underdetermined");
    let twice = [law.point(&[512], 1.0), law.point(&[512], 1.1), law.point(&[64], 1.0), law.point(&[64], 0.9)];
    assert_eq!(fit(&twice).unwrap_err().code(), "fit_underdetermined");
    let random = [9.0, 0.1, 4.0, 0.02, 7.0, 0.3, 11.0, 0.05, 2.0, 0.6];
    let unrelated: Vec<Measurement> = random
        .iter()
        .zip(6..)
        .map(|(&ms, power)| Measurement { sequences: vec![Tokens(1 << power)], ms: Millis(ms) })
        .collect();
    assert_eq!(fit(&unrelated).unwrap_err().code(), "fit_unexplained");
}

/// The schemes of the 32B table with their caps on 1,024 ranks. Three of them admit lengths too short to determine the
/// quadratic coefficient: in the table two of their `a` are 0 and 8 times their neighbours', and <pp4>'s is a quarter.
/// Here they have the law of the scheme with twice their tp.
fn table_32b() -> Vec<(Scheme, Law, u64)> {
    let profile = preset("llama-32b-a800").unwrap();
    let caps = [2304, 4864, 7168, 7936, 9472, 13_952, 16_256, 17_024, 24_704, 28_672, 30_080, 30_720, 48_256];
    let coefficients =
        |entry: &SchemeProfile| Law([entry.quadratic_ms_per_token2, entry.linear_ms_per_token, entry.fixed_ms]);
    let mut table: Vec<(Scheme, Law, u64)> =
        profile.schemes.iter().zip(caps).map(|(entry, cap)| (entry.scheme, coefficients(entry), cap)).collect();
    let [pp2, pp4] = [1, 2].map(|place| table[place].1.0);
    table[0].1 = Law([2.0 * pp4[0], 2.0 * pp4[1], pp4[2]]);
    table.push(("<pp2>".parse().unwrap(), Law([2.0 * pp2[0], 2.0 * pp2[1], pp2[2]]), 640));
    table.push(("<tp2>".parse().unwrap(), Law(pp2.map(|value| 2.0 * value)), 640));
    table
}

fn measured(law: Law, cap: u64, noises: &[f64]) -> Vec<Measurement> {
    (1..=8).zip(noises).map(|(eighth, factor)| law.point(&[cap * eighth / 8], *factor)).collect()
}

#[test]
fn schemes_with_few_lengths_are_sound_among_others() {
    let table = table_32b();
    let noises = vec(vec(noise(0.02), 8), table.len());
    cases(12)
        .run(&noises, |noises| {
            let points: Vec<(Scheme, Vec<Measurement>)> = table
                .iter()
                .zip(&noises)
                .map(|((scheme, law, cap), noises)| (*scheme, measured(*law, *cap, noises)))
                .collect();
            let fits = fit_schemes(&points).unwrap();
            for ((scheme, law, cap), fitted) in table.iter().zip(&fits) {
                let ratio = fitted.quadratic_ms_per_token2 / law.0[0];
                prop_assert!((0.6..1.6).contains(&ratio), "{scheme}: a is {ratio} of what it was");
                let ms = fitted.predict(&[Tokens(*cap)]).0 / law.ms(&[*cap]);
                prop_assert!((0.95..1.05).contains(&ms), "{scheme}: {ms} of its time at the cap");
                // A larger cluster leaves more memory: a planner needs the time at that cap.
                let far = fitted.predict(&[Tokens(16_384)]).0 / law.ms(&[16_384]);
                prop_assert!((0.8..1.25).contains(&far), "{scheme}: {far} of its time at 16,384 tokens");
            }
            // By themselves those points do not determine the quadratic coefficient, and its interval shows this.
            for (_, points) in &points[table.len() - 2..] {
                let alone = fit(points).unwrap();
                let interval = alone.intervals[0];
                let beyond = (interval.high - alone.quadratic_ms_per_token2) * 16_384.0 * 16_384.0;
                prop_assert!(interval.low == 0.0 && beyond > 0.3 * alone.predict(&[Tokens(16_384)]).0, "{interval:?}");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn exact_data_outweigh_neighbouring_schemes() {
    let usual = Law([4e-6, 0.2, 60.0]);
    let lengths: Vec<u64> = (0..40).map(|place| 64 << (place % 11)).collect();
    let points = |scheme: &str, law: Law| {
        let noises = [1.01, 0.99, 1.0, 1.02, 0.98];
        let points = lengths.iter().zip(noises.iter().cycle()).map(|(&length, &factor)| law.point(&[length], factor));
        (scheme.parse::<Scheme>().unwrap(), points.collect::<Vec<_>>())
    };
    let shared = |law: Law, ranks: f64, stages: f64| Law([law.0[0] / ranks, law.0[1] / ranks, law.0[2] / stages]);
    let odd = Law([8e-6, 0.4, 20.0]);
    let fits = fit_schemes(&[
        points("<pp2>", shared(usual, 2.0, 2.0)),
        points("<pp4>", shared(usual, 4.0, 4.0)),
        points("<1>", odd),
        points("<tp2>", shared(usual, 2.0, 1.0)),
    ])
    .unwrap();
    let found = [fits[2].quadratic_ms_per_token2, fits[2].linear_ms_per_token, fits[2].fixed_ms];
    assert!(found.iter().zip(odd.0).all(|(found, truth)| (found / truth - 1.0).abs() < 0.03), "{found:?}");
}

#[test]
fn a_scheme_that_cannot_be_fitted_alone_borrows_from_the_others() {
    let law = Law([4e-6, 0.2, 60.0]);
    let lengths = [64, 256, 1024, 4096, 16_384];
    let known: Scheme = "<1>".parse().unwrap();
    let other: Scheme = "<pp2>".parse().unwrap();
    let half = Law(law.0.map(|value| value / 2.0));
    let packs: Vec<Measurement> = (1..9).map(|number| half.point(&vec![512; number], 1.0)).collect();
    let alone: Vec<Measurement> = lengths.iter().map(|&length| law.point(&[length], 1.0)).collect();
    let fits = fit_schemes(&[(known, alone), (other, packs.clone())]).unwrap();
    assert!((fits[1].quadratic_ms_per_token2 / half.0[0] - 1.0).abs() < 0.05, "{:?}", fits[1]);
    let error = fit_schemes(&[(other, packs)]).unwrap_err();
    assert_eq!(error.code(), "fit_underdetermined");
    assert!(error.to_string().contains("<pp2>"), "{error}");
}

#[test]
fn recomputation_is_more_work_of_the_same_model() {
    // Packs of one length determine a sequence's time, but not its parts: the neighbour without checkpointing does.
    let law = Law([4e-6, 0.2, 60.0]);
    let again = Law([4e-6 * 9.0 / 7.0, 0.2 * 4.0 / 3.0, 80.0]);
    let alone: Vec<Measurement> = [64, 256, 1024, 4096, 16_384].map(|length| law.point(&[length], 1.0)).into();
    let packs: Vec<Measurement> = (1..9).map(|number| again.point(&vec![512; number], 1.0)).collect();
    let fits = fit_schemes(&[("<1>".parse().unwrap(), alone), ("<1,full>".parse().unwrap(), packs)]).unwrap();
    assert!((fits[1].quadratic_ms_per_token2 / again.0[0] - 1.0).abs() < 0.05, "{:?}", fits[1]);
}

proptest! {
    #[test]
    fn micro_batches_to_measure_fit_and_determine_the_coefficients(longest in 1..20_000_u64, share in 1..40_u64, law in laws()) {
        let tokens = Tokens(longest * share / 4 + 1);
        let mixes = micro_batches_to_measure(Tokens(longest), tokens, 8);
        let totals: Vec<u64> = mixes.iter().map(|mix| mix.iter().map(|tokens| tokens.0).sum()).collect();
        prop_assert!(totals.iter().all(|&total| total <= tokens.0), "{mixes:?}");
        prop_assert!(mixes.iter().flatten().all(|length| length.0 <= longest));
        prop_assert_eq!(mixes[0].clone(), [Tokens(longest).min(tokens)]);
        if longest.min(tokens.0) >= 64 {
            prop_assert_eq!(mixes.len(), 8);
            let points: Vec<Measurement> = mixes
                .iter()
                .map(|mix| law.point(&mix.iter().map(|tokens| tokens.0).collect::<Vec<_>>(), 1.0))
                .collect();
            let fitted = fit(&points).unwrap();
            prop_assert!((fitted.predict(&mixes[0]).0 / points[0].ms.0 - 1.0).abs() < 1e-6);
        }
    }
}
