//! A change of layouts of several parameters: each receiver gets every slice that it lacks once, from an owner.
//!
//! A layout names the number of parts by dimension (`-1`: copies), the order that turns a device's place into its
//! coordinates (innermost last), and its devices. An owner on the receiver's node comes first. Objectives: the elements
//! moved, and the elements that the busiest sender sends.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Instance;
use super::senders::{Demands, least_greatest_load};

const COPIES: &str = "-1";
const PARTIAL_SUMS: &str = "-2";

#[derive(Deserialize)]
struct File {
    switch_cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    gpus_per_node: usize,
    param_numel: Vec<u64>,
    src: Vec<Layout>,
    dst: Vec<Layout>,
    #[serde(default)]
    expected: Option<Expected>,
}

#[derive(Deserialize)]
struct Layout {
    states: BTreeMap<String, u64>,
    order: Vec<i64>,
    devices: Vec<usize>,
}

#[derive(Deserialize)]
struct Expected {
    total_moved: f64,
    max_sender: f64,
}

/// A device's part of a parameter: its place and the number of parts in each dimension.
type Part = BTreeMap<String, (u64, u64)>;

pub(super) fn instances(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let file = File::deserialize(document)?;
    let mut instances = Vec::new();
    for case in file.switch_cases {
        let case = Rc::new(case);
        let (moved, sender) = case.expected.as_ref().map(|one| (one.total_moved, one.max_sender)).unzip();
        let other = Rc::clone(&case);
        instances.push(Instance::new(format!("{}: moved", case.name), moved, move || {
            solve(&other).map(|found| (float(found.moved), json!({"reused": found.reused})))
        }));
        instances.push(Instance::new(format!("{}: busiest sender", case.name), sender, move || {
            solve(&case).map(|found| {
                (float(found.inside.max(found.between)), json!({"inside": found.inside, "between": found.between}))
            })
        }));
    }
    Ok(instances)
}

struct Found {
    moved: u64,
    reused: u64,
    /// Elements of the busiest sender within nodes, and of the one between nodes.
    inside: u64,
    between: u64,
}

fn solve(case: &Case) -> std::result::Result<Found, String> {
    let (mut inside, mut between) = (Demands::new(), Demands::new());
    let (mut moved, mut reused) = (0, 0);
    let node = |device: usize| device / case.gpus_per_node.max(1);
    for ((&elements, src), dst) in case.param_numel.iter().zip(&case.src).zip(&case.dst) {
        let owned = parts(src)?;
        for (&receiver, wanted) in dst.devices.iter().zip(&parts(dst)?) {
            for (slice, size) in slices(&owned, wanted, elements)? {
                let owners: BTreeSet<usize> = src
                    .devices
                    .iter()
                    .zip(&owned)
                    .filter(|(_, part)| contains(part, &slice))
                    .map(|(&d, _)| d)
                    .collect();
                if owners.contains(&receiver) {
                    reused += size;
                    continue;
                }
                if owners.is_empty() {
                    return Err("slice_without_owner".to_owned());
                }
                moved += size;
                let near: BTreeSet<usize> =
                    owners.iter().copied().filter(|&owner| node(owner) == node(receiver)).collect();
                let (demands, senders) = if near.is_empty() { (&mut between, owners) } else { (&mut inside, near) };
                *demands.entry(senders).or_default() += size;
            }
        }
    }
    Ok(Found { moved, reused, inside: least_greatest_load(&inside), between: least_greatest_load(&between) })
}

/// Each device's part, in the order of the devices.
fn parts(layout: &Layout) -> std::result::Result<Vec<Part>, String> {
    if layout.states.get(PARTIAL_SUMS).is_some_and(|&parts| parts > 1) {
        return Err("partial_sums".to_owned());
    }
    let part = |place: usize| {
        let mut left = place as u64;
        let mut part = Part::new();
        for dimension in layout.order.iter().rev().map(i64::to_string) {
            let number = layout.states.get(&dimension).copied().unwrap_or(1).max(1);
            if dimension != COPIES {
                part.insert(dimension, (left % number, number));
            }
            left /= number;
        }
        part
    };
    Ok((0..layout.devices.len()).map(part).collect())
}

/// The finest common slices of a wanted part and all owned ones, with their elements.
fn slices(owned: &[Part], wanted: &Part, elements: u64) -> std::result::Result<Vec<(Part, u64)>, String> {
    let dimensions: BTreeSet<&String> = owned.iter().chain([wanted]).flat_map(Part::keys).collect();
    let mut slices = vec![(Part::new(), elements)];
    for dimension in dimensions {
        let of = |part: &Part| part.get(dimension).copied().unwrap_or((0, 1));
        let numbers = owned.iter().chain([wanted]).map(|part| of(part).1);
        let finest = numbers.fold(1, least_common_multiple);
        let (place, number) = of(wanted);
        let width = finest / number;
        let mut finer = Vec::new();
        for (slice, size) in slices {
            if size % finest != 0 {
                return Err("parts_uneven".to_owned());
            }
            for at in place * width..(place + 1) * width {
                let mut slice = slice.clone();
                slice.insert(dimension.clone(), (at, finest));
                finer.push((slice, size / finest));
            }
        }
        slices = finer;
    }
    Ok(slices)
}

/// Whether a part has the whole slice.
fn contains(part: &Part, slice: &Part) -> bool {
    slice.iter().all(|(dimension, &(at, finest))| {
        let (place, number) = part.get(dimension).copied().unwrap_or((0, 1));
        at / (finest / number) == place
    })
}

fn least_common_multiple(one: u64, other: u64) -> u64 {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    one / a * other
}

#[expect(clippy::cast_precision_loss, reason = "elements of fixtures are far below 2^53")]
fn float(x: u64) -> f64 {
    x as f64
}
