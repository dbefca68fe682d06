use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::pipeline::{Compute, compute_order, makespan};

fn millis(times: &[f64]) -> Vec<Millis> {
    times.iter().copied().map(Millis).collect()
}

fn transfers(parameters: &[f64], gradients: &[f64]) -> TransferTimes {
    let (parameters, gradients) = (millis(parameters), millis(gradients));
    TransferTimes { parameters, gradients, ..TransferTimes::default() }
}

/// Replicas: scheme, times, multipliers. A third of a time is forward.
type Replicas = Vec<(Scheme, Vec<Millis>, Vec<f64>)>;

fn replica(scheme: &str, times: &[f64]) -> (Scheme, Vec<Millis>, Vec<f64>) {
    let scheme: Scheme = scheme.parse().unwrap();
    (scheme, millis(times), vec![1.0; scheme.stages()])
}

fn laid(transfers: &TransferTimes, replicas: &Replicas) -> StepTimeline {
    let layers = u32::try_from(transfers.parameters.len() - 2).unwrap();
    let work = replicas.iter().map(|(scheme, times, stage_multipliers)| ReplicaWork {
        scheme: *scheme,
        times,
        stage_multipliers,
        forward_share: 1.0 / 3.0,
    });
    StepTimeline::new(&LayerSplit::even(layers), transfers, work, &mut MakespanBuffers::default())
}

fn are(found: &[Millis], expected: &[f64]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(one, &other)| one.is_close(Millis(other)))
}

/// Two layers, four layer groups: each of them 1 of a forward of 4 and 2 of a backward of 8.
#[test]
fn a_transfer_shorter_than_a_layer_group_is_overlapped() {
    let step = laid(&transfers(&[1.0; 4], &[2.0; 4]), &vec![replica("<1>", &[12.0, 12.0])]);
    assert!(are(&step.arrivals, &[1.0, 2.0, 3.0, 4.0]));
    // All but the first bucket overlap: 24 and 1. The head's gradient is sent 6 before that.
    assert!(step.computed.is_close(Millis(25.0)), "{step:?}");
    assert!(are(&step.departures, &[25.0, 23.0, 21.0, 19.0]), "{step:?}");
    assert!(step.end.is_close(Millis(27.0)));
}

#[test]
fn a_longer_transfer_is_exposed() {
    // The last layer group's parameters arrive at 12, and its forward ends at 13; 8 more of backward.
    let step = laid(&transfers(&[3.0; 4], &[5.0; 4]), &vec![replica("<1>", &[12.0])]);
    assert!(step.computed.is_close(Millis(21.0)), "{step:?}");
    // The head's gradient is sent at 15, the others after it.
    assert!(are(&step.departures, &[30.0, 25.0, 20.0, 15.0]), "{step:?}");
    assert!(step.end.is_close(Millis(35.0)));
}

#[test]
fn a_later_stage_has_more_time() {
    // Two stages of two layer groups; forwards of 2 on each. The second stage's parameters arrive at 3 and 4, its
    // forward begins at 1 + 2.
    let step = laid(&transfers(&[1.0; 4], &[1.0; 4]), &vec![replica("<pp2>", &[6.0])]);
    assert!(step.computed.is_close(Millis(13.0)), "{step:?}");
    // Its backward finishes the head by 7 and the second layer by 9, the first stage's by 11 and 13.
    assert!(are(&step.departures, &[13.0, 11.0, 9.0, 7.0]), "{step:?}");
    assert!(step.end.is_close(Millis(14.0)));
}

#[test]
fn every_rank_of_a_replica_group_must_be_done() {
    // One ends at 12, the other at 6.
    let both = vec![replica("<1>", &[12.0]), replica("<1>", &[6.0])];
    let step = laid(&transfers(&[0.0; 4], &[1.0; 4]), &both);
    assert!(are(&step.departures, &[12.0, 10.0, 8.0, 6.0]), "{step:?}");
}

/// Slow reference implementation: each layer group of a first forward or a last backward is a computation of its own,
/// and starts are raised until nothing changes.
fn plain_end(transfers: &TransferTimes, replicas: &Replicas) -> f64 {
    let buckets = transfers.parameters.len();
    let layers = u32::try_from(buckets - 2).unwrap();
    let mut gradient_at = vec![0.0_f64; buckets];
    for (scheme, times, multipliers) in replicas {
        let (stages, number) = (multipliers.len(), times.len());
        let mut ends = vec![vec![[0.0_f64; 2]; number]; stages];
        let mut through = vec![0.0_f64; buckets];
        for _ in 0..=2 * stages * number {
            for stage in 0..stages {
                let layer_groups: Vec<usize> = layer_groups(&LayerSplit::even(layers), *scheme, stage).collect();
                let mut clock = 0.0_f64;
                for compute in compute_order(stage, stages, number) {
                    let (batch, pass) = match compute {
                        Compute::Forward(batch) => (batch, 0),
                        Compute::Backward(batch) => (batch, 1),
                    };
                    let share = [1.0 / 3.0, 2.0 / 3.0][pass];
                    let layer_group_ms = times[batch].0 * multipliers[stage] * share / count(layer_groups.len());
                    let input = match pass {
                        0 if stage > 0 => ends[stage - 1][batch][0],
                        1 if stage + 1 < stages => ends[stage + 1][batch][1],
                        _ => 0.0,
                    };
                    clock = clock.max(input);
                    let in_order: Vec<usize> =
                        if pass == 0 { layer_groups.clone() } else { layer_groups.iter().rev().copied().collect() };
                    for layer_group in in_order {
                        if pass == 0 {
                            let arrival: f64 = transfers.parameters[..=layer_group].iter().map(|ms| ms.0).sum();
                            clock = clock.max(arrival);
                        }
                        clock += layer_group_ms;
                        if pass == 1 && batch + 1 == number {
                            through[layer_group] = clock;
                        }
                    }
                    ends[stage][batch][pass] = clock;
                }
            }
        }
        for (at, through) in gradient_at.iter_mut().zip(through) {
            *at = at.max(through);
        }
    }
    let sent = |end: f64, bucket: usize| end.max(gradient_at[bucket]) + transfers.gradients[bucket].0;
    (0..buckets).rev().fold(0.0, sent)
}

prop_compose! {
    fn some_replicas(layers: u32)(
        inputs in vec((1..=4_u16, vec(0.01..30.0_f64, 1..6), vec(0.5..2.0_f64, 4)), 1..4),
    ) -> Replicas {
        inputs.into_iter().map(|(stages, times, multipliers)| {
            let scheme = Scheme::new(1, 1, stages.min(u16::try_from(layers).unwrap())).unwrap();
            (scheme, millis(&times), multipliers[..scheme.stages()].to_vec())
        }).collect()
    }
}

proptest! {
    #[test]
    fn a_step_is_at_least_its_iteration_and_at_most_all_its_transfers_longer(
        (replicas, parameters, gradients) in (1..=6_u32).prop_flat_map(|layers| {
            let times = || vec(prop_oneof![Just(0.0), 0.0..20.0_f64], layers as usize + 2);
            (some_replicas(layers), times(), times())
        }),
    ) {
        let transfers = transfers(&parameters, &gradients);
        let step = laid(&transfers, &replicas);
        let alone = |(_, times, multipliers): &(Scheme, Vec<Millis>, Vec<f64>)| {
            makespan(times, multipliers, 1.0 / 3.0, &mut MakespanBuffers::default())
        };
        let iteration = replicas.iter().map(alone).max().unwrap();
        let is_at_most = |one: Millis, other: Millis| one <= other || one.is_close(other);
        prop_assert!(is_at_most(iteration, step.computed), "{iteration:?} {step:?}");
        prop_assert!(is_at_most(step.computed, step.end), "{step:?}");
        prop_assert!(is_at_most(step.end, iteration + transfers.total()), "{iteration:?} {step:?}");
        let plain = plain_end(&transfers, &replicas);
        prop_assert!(step.end.is_close(Millis(plain)), "{plain} {step:?}");
    }
}
