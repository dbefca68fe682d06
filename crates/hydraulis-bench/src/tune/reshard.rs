//! A change of layouts of several parameters: each receiver gets every slice that it lacks once, from an owner.
//!
//! A layout names the number of parts by dimension (`-1`: copies, `-2`: summands), the order that turns a device's place into
//! its coordinates (innermost last), and its devices. An owner on the receiver's node comes first. Summands are added up by
//! receivers in equal shares, which moves what reduce-scatter and all-reduce do. Objectives: the elements moved, and the
//! elements that the busiest sender sends.

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
    let mut moves = Moves { gpus_per_node: case.gpus_per_node.max(1), ..Moves::default() };
    for ((&elements, src), dst) in case.param_numel.iter().zip(&case.src).zip(&case.dst) {
        if sums(dst) > 1 {
            return Err("partial_sums".to_owned());
        }
        if sums(src) > src.devices.len() as u64 {
            return Err("slice_without_owner".to_owned());
        }
        let owned = parts(src);
        // All receivers want parts of one number, so their slices are equally fine.
        let mut receivers: BTreeMap<Part, (u64, Vec<usize>)> = BTreeMap::new();
        for (&receiver, wanted) in dst.devices.iter().zip(&parts(dst)) {
            for (slice, size) in slices(&owned, wanted, elements)? {
                receivers.entry(slice).or_insert((size, Vec::new())).1.push(receiver);
            }
        }
        for (slice, (size, receivers)) in receivers {
            // The owners of each summand; one set without sums.
            let mut summands: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); usize::try_from(sums(src)).unwrap_or(1)];
            for ((place, &owner), part) in src.devices.iter().enumerate().zip(&owned) {
                if contains(part, &slice) {
                    summands[summand(src, place)].insert(owner);
                }
            }
            if summands.iter().any(BTreeSet::is_empty) {
                return Err("slice_without_owner".to_owned());
            }
            match summands.as_slice() {
                [owners] => receivers.iter().for_each(|&receiver| moves.receive(receiver, owners, size)),
                summands => moves.add_up(&receivers, summands, size)?,
            }
        }
    }
    Ok(Found {
        moved: moves.moved,
        reused: moves.reused,
        inside: least_greatest_load(&moves.inside),
        between: least_greatest_load(&moves.between),
    })
}

/// The elements that devices send.
#[derive(Default)]
struct Moves {
    gpus_per_node: usize,
    moved: u64,
    reused: u64,
    inside: Demands,
    between: Demands,
}

impl Moves {
    /// Moves a slice from one of its owners, one on the receiver's node first.
    fn receive(&mut self, receiver: usize, owners: &BTreeSet<usize>, size: u64) {
        if owners.contains(&receiver) {
            self.reused += size;
            return;
        }
        self.moved += size;
        let node = |device: usize| device / self.gpus_per_node;
        let near: BTreeSet<usize> = owners.iter().copied().filter(|&owner| node(owner) == node(receiver)).collect();
        let (demands, senders) =
            if near.is_empty() { (&mut self.between, owners.clone()) } else { (&mut self.inside, near) };
        *demands.entry(senders).or_default() += size;
    }

    /// Adds the summands of a slice up: each receiver adds an equal share, and sends it to the others.
    fn add_up(
        &mut self,
        receivers: &[usize],
        summands: &[BTreeSet<usize>],
        size: u64,
    ) -> std::result::Result<(), String> {
        let number = receivers.len() as u64;
        if !size.is_multiple_of(number) {
            return Err("parts_uneven".to_owned());
        }
        for &adder in receivers {
            for owners in summands {
                self.receive(adder, owners, size / number);
            }
            for &other in receivers.iter().filter(|&&other| other != adder) {
                self.receive(other, &BTreeSet::from([adder]), size / number);
            }
        }
        Ok(())
    }
}

/// The number of summands of each element of a layout.
fn sums(layout: &Layout) -> u64 {
    layout.states.get(PARTIAL_SUMS).copied().unwrap_or(1).max(1)
}

/// The number of the summand that the device at a place has.
fn summand(layout: &Layout, place: usize) -> usize {
    let found = coordinates(layout, place).into_iter().find(|(dimension, _, _)| dimension == PARTIAL_SUMS);
    found.map_or(0, |(_, at, _)| usize::try_from(at).unwrap_or(0))
}

/// The coordinate of the device at a place in each dimension, with the number of parts there.
fn coordinates(layout: &Layout, place: usize) -> Vec<(String, u64, u64)> {
    let mut left = place as u64;
    let dimensions = layout.order.iter().rev().map(i64::to_string);
    dimensions
        .map(|dimension| {
            let number = layout.states.get(&dimension).copied().unwrap_or(1).max(1);
            let at = left % number;
            left /= number;
            (dimension, at, number)
        })
        .collect()
}

/// Each device's part, in the order of the devices.
fn parts(layout: &Layout) -> Vec<Part> {
    let part = |place: usize| -> Part {
        let split = coordinates(layout, place)
            .into_iter()
            .filter(|(dimension, _, _)| dimension != COPIES && dimension != PARTIAL_SUMS);
        split.map(|(dimension, at, number)| (dimension, (at, number))).collect()
    };
    (0..layout.devices.len()).map(part).collect()
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
