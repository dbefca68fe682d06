//! A change of layouts of several parameters: each receiver gets every slice that it lacks once, from an owner.
//!
//! A layout names the number of parts by dimension (`-1`: copies, `-2`: summands), the order that turns a device's place into
//! its coordinates (innermost last), and its devices. An owner on the receiver's node comes first. Summands are added up by
//! receivers in equal shares, which moves what reduce-scatter and all-reduce do. Objectives: the elements moved, and the
//! elements that the busiest sender sends. A slice with several owners may be divided between them there, down to single
//! elements: the objective is at most that of any rule that sends each slice from one owner.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Instance;
use super::reading::{entries, read, require, require_length};
use super::senders::{Demands, least_greatest_load};
use crate::Result;

const COPIES: &str = "-1";
const PARTIAL_SUMS: &str = "-2";

#[derive(Deserialize)]
struct Case {
    gpus_per_node: usize,
    param_numel: Vec<u64>,
    src: Vec<Layout>,
    dst: Vec<Layout>,
    #[serde(default)]
    expected: Option<Expected>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
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
    let mut instances = Vec::new();
    for (place, entry) in entries(document, "switch_cases")?.iter().enumerate() {
        let name = entry["name"].as_str().map_or_else(|| format!("{place}"), str::to_owned);
        let (moved, sender) = (format!("{name}: moved"), format!("{name}: busiest sender"));
        match read(entry).and_then(checked) {
            Ok(case) => instances.extend(of_case(Rc::new(case), moved, sender)),
            Err(error) => instances.extend([moved, sender].map(|name| Instance::refused(name, error.clone()))),
        }
    }
    Ok(instances)
}

fn of_case(case: Rc<Case>, moved: String, sender: String) -> [Instance; 2] {
    let references = case.expected.as_ref().map(|one| (one.total_moved, one.max_sender)).unzip();
    // Both objectives are of one solution.
    let found: Rc<OnceCell<std::result::Result<Found, String>>> = Rc::default();
    let (other, same) = (Rc::clone(&case), Rc::clone(&found));
    [
        Instance::new(moved, references.0, move || {
            let found = same.get_or_init(|| solve(&other)).as_ref().map_err(String::clone)?;
            Ok((float(found.moved), json!({"reused": found.reused})))
        }),
        Instance::new(sender, references.1, move || {
            let found = found.get_or_init(|| solve(&case)).as_ref().map_err(String::clone)?;
            Ok((float(found.inside.max(found.between)), json!({"inside": found.inside, "between": found.between})))
        }),
    ]
}

/// A case whose lists have one entry for each parameter, and whose layouts give each device one part.
fn checked(case: Case) -> Result<Case> {
    let parameters = case.param_numel.len();
    require(parameters > 0, "the length of param_numel", parameters, "at least 1")?;
    require(case.gpus_per_node > 0, "gpus_per_node", case.gpus_per_node, "at least 1")?;
    require_length("src", case.src.len(), parameters)?;
    require_length("dst", case.dst.len(), parameters)?;
    let mut most = 0_u64;
    for (place, ((&elements, src), dst)) in case.param_numel.iter().zip(&case.src).zip(&case.dst).enumerate() {
        require_layout(&format!("src[{place}]"), src)?;
        require_layout(&format!("dst[{place}]"), dst)?;
        let field = format!("param_numel[{place}]");
        // A receiver gets each element once for each summand, and once from each other receiver.
        let copies = (src.devices.len() + dst.devices.len()) as u64;
        let moved = copies.checked_mul(dst.devices.len() as u64).and_then(|copies| elements.checked_mul(copies));
        let sum = moved.and_then(|moved| most.checked_add(moved));
        require(sum.is_some(), field, elements, "so small that all moves together are below 2^64")?;
        most = sum.unwrap_or_default();
    }
    Ok(case)
}

/// Refuses a layout whose devices are not one for each place of its states, in an order of all its dimensions.
fn require_layout(field: &str, layout: &Layout) -> Result<()> {
    let devices = layout.devices.len();
    require(devices > 0, format!("the length of {field}.devices"), devices, "at least 1")?;
    let distinct = layout.devices.iter().collect::<BTreeSet<_>>().len();
    require(distinct == devices, format!("the number of different {field}.devices"), distinct, devices)?;
    let dimensions: BTreeSet<String> = layout.order.iter().map(i64::to_string).collect();
    for dimension in layout.states.keys().chain(&dimensions) {
        let is_known = dimension.parse::<i64>().is_ok_and(|dimension| dimension >= -2);
        require(is_known, format!("a dimension of {field}"), dimension, "-2 for summands, -1 for copies, or from 0")?;
    }
    let order = layout.order.len();
    require(dimensions.len() == order, format!("{field}.order"), format!("{:?}", layout.order), "without repetition")?;
    for (dimension, &number) in &layout.states {
        let field = format!("{field}.states of dimension {dimension}");
        require(number > 0, &field, number, "at least 1")?;
        require(number == 1 || dimensions.contains(dimension), field, number, "1, or the dimension must be in order")?;
    }
    let product = layout.states.values().try_fold(1_u64, |product, &number| product.checked_mul(number));
    let shown = product.map_or("above 2^64".to_owned(), |product| product.to_string());
    let is_whole = product == Some(devices as u64);
    require(is_whole, format!("the product of {field}.states"), shown, format!("{devices}, the number of devices"))
}

/// The layouts of a parameter before and after, and its elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Change<'a> {
    elements: u64,
    src: &'a Layout,
    dst: &'a Layout,
}

/// The different changes of a case in the order of their first parameters, each with the number of its parameters.
fn changes(case: &Case) -> Vec<(Change<'_>, u64)> {
    let mut changes: Vec<(Change, u64)> = Vec::new();
    let mut places: BTreeMap<Change, usize> = BTreeMap::new();
    for ((&elements, src), dst) in case.param_numel.iter().zip(&case.src).zip(&case.dst) {
        let change = Change { elements, src, dst };
        let place = *places.entry(change).or_insert(changes.len());
        if place == changes.len() {
            changes.push((change, 0));
        }
        changes[place].1 += 1;
    }
    changes
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
    for (Change { elements, src, dst }, number) in changes(case) {
        moves.parameters = number;
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
    /// Number of parameters that each slice stands for.
    parameters: u64,
    moved: u64,
    reused: u64,
    inside: Demands,
    between: Demands,
}

impl Moves {
    /// Moves a slice of each parameter from one of its owners, one on the receiver's node first.
    fn receive(&mut self, receiver: usize, owners: &BTreeSet<usize>, size: u64) {
        let size = size * self.parameters;
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
