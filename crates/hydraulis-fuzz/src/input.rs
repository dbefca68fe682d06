//! Converts bytes to the input of a planner: no part is guaranteed to be valid, and most parts nearly are.
//!
//! A fuzzer changes one byte and checks whether the run reached other code. So each choice takes few bytes, and later
//! choices do not shift when one byte changes; missing bytes read as zeros.

use std::ops::RangeInclusive;

use arbitrary::{Result, Unstructured};
use hydraulis_core::batch::LONGEST_SEQUENCE;
use hydraulis_core::cost::PRESETS;
use serde_json::{Value, json};

use crate::link::LinkInput;

/// Small enough to plan in milliseconds; the core has no rule for larger clusters alone.
const MAX_GPUS: u32 = 64;
/// Most runs of equal lengths, and most sequences of a run.
const MAX_RUNS: u32 = 24;
const MAX_RUN: u32 = 12;
/// Most replaced values in a profile's document.
const MAX_CHANGES: u32 = 3;
/// Memory of a GPU, reserved memory, and memory of a token, in bytes: the memory that a scheme's resident bytes leave
/// gives its cap.
const MEMORY: u64 = 100_000_000;
const RESERVED: u64 = 1_000;
const PER_TOKEN: u64 = 1_000;
/// Most strategies of a run.
const MAX_LIMIT: usize = 4;

/// All arguments of a plan, as unchecked text and numbers.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) profile: String,
    pub(crate) gpus: u32,
    pub(crate) gpus_per_node: u32,
    pub(crate) strategies: Option<Vec<String>>,
    pub(crate) lengths: Vec<i64>,
    pub(crate) targets: Option<Vec<i64>>,
    pub(crate) memory: String,
    pub(crate) link: Option<LinkInput>,
    pub(crate) limit: Option<LimitInput>,
    pub(crate) ranks: RanksInput,
}

/// The limit on a run's strategies, and the strategies used so far.
#[derive(Debug)]
pub(crate) struct LimitInput {
    pub(crate) most: usize,
    pub(crate) used: Vec<String>,
}

/// Rate, memory and device of each rank, where ranks differ.
#[derive(Debug, Default)]
pub(crate) struct RanksInput {
    pub(crate) rates: Option<Vec<f64>>,
    pub(crate) memory_bytes: Option<Vec<u64>>,
    pub(crate) devices: Option<Vec<u16>>,
}

impl Input {
    /// Reads the input from these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Result<Input> {
        let u = &mut Unstructured::new(bytes);
        let gpus_per_node = *u.choose(&[8, 1, 2, 3, 4, 16, 0])?;
        let gpus = match u.int_in_range(0..=3)? {
            0 => u.int_in_range(0..=MAX_GPUS)?,
            _ => gpus_per_node * u.int_in_range(1..=MAX_GPUS / gpus_per_node.max(1))?,
        };
        let lengths = lengths(u)?;
        let targets = if u.ratio(1, 4)? { Some(targets(u, &lengths)?) } else { None };
        let mut profile = profile(u, gpus)?;
        let changes = if u.ratio(1, 2)? { u.int_in_range(1..=MAX_CHANGES)? } else { 0 };
        for _ in 0..changes {
            change(u, &mut profile)?;
        }
        let strategies = if u.ratio(3, 4)? { Some(strategies(u, &profile)?) } else { None };
        let memory = memory(u)?;
        let link = if u.ratio(1, 2)? { Some(LinkInput::of(u)?) } else { None };
        let limit = if u.ratio(1, 4)? { Some(limit(u, &profile)?) } else { None };
        let ranks = if u.ratio(1, 3)? { ranks(u, gpus, &mut profile)? } else { RanksInput::default() };
        Ok(Input {
            profile: profile.to_string(),
            gpus,
            gpus_per_node,
            strategies,
            lengths,
            targets,
            memory,
            link,
            limit,
            ranks,
        })
    }
}

/// Runs of equal lengths up to one limit, mostly a limit below a scheme's cap.
fn lengths(u: &mut Unstructured) -> Result<Vec<i64>> {
    let most = match u.int_in_range(0..=15)? {
        0 => i64::MAX,
        1 => LONGEST_SEQUENCE,
        2..=5 => 40_000,
        6..=10 => 4_000,
        _ => 64,
    };
    let mut lengths = Vec::new();
    for _ in 0..u.int_in_range(0..=MAX_RUNS)? {
        let length = if most == i64::MAX { u.arbitrary()? } else { u.int_in_range(1..=most)? };
        let times = u.int_in_range(1..=MAX_RUN)?;
        lengths.extend((0..times).map(|_| length));
    }
    Ok(lengths)
}

/// A target count for each sequence, up to its length; sometimes one is out of range, or one is missing.
fn targets(u: &mut Unstructured, lengths: &[i64]) -> Result<Vec<i64>> {
    let mut targets: Vec<i64> =
        lengths.iter().map(|&length| u.int_in_range(0..=length.max(0))).collect::<Result<_>>()?;
    match u.int_in_range(0..=7)? {
        0 => drop(targets.pop()),
        1 => targets.iter_mut().take(1).for_each(|first| *first = -1),
        _ => {}
    }
    Ok(targets)
}

/// The document of a preset, or of random schemes with caps among the lengths.
fn profile(u: &mut Unstructured, gpus: u32) -> Result<Value> {
    if u.ratio(1, 4)? {
        let (_, text) = u.choose(&PRESETS)?;
        return Ok(serde_json::from_str(text).unwrap_or_default());
    }
    let mut schemes: Vec<Value> = (0..u.int_in_range(1..=5)?).map(|_| scheme(u)).collect::<Result<_>>()?;
    schemes.dedup_by_key(|entry| entry["scheme"].clone());
    Ok(json!({
        "format": "hydraulis.cost-profile/2",
        "name": "fuzzed",
        "source": "a fuzzer",
        "hardware": {"device": "none", "gpus_per_node": 8, "memory_bytes": MEMORY, "host_memory_bytes": MEMORY},
        "memory": {"reserved_bytes": RESERVED, "optimizer_bytes": gpus, "token_multiple": u.int_in_range(1..=3)?},
        "schemes": schemes,
    }))
}

/// Runs of ranks of different rate, memory and device, and the times of another device in the profile.
fn ranks(u: &mut Unstructured, gpus: u32, profile: &mut Value) -> Result<RanksInput> {
    let runs = u.int_in_range(1..=4)?;
    let run_of = |rank: u32| (rank * runs / gpus.max(1)) as usize;
    let rates: Vec<f64> = (0..runs).map(|_| Ok(*u.choose(&[1.0, 1.0, 0.5, 0.8, 0.1, 3.0])?)).collect::<Result<_>>()?;
    let memory: Vec<u64> =
        (0..runs).map(|_| Ok(*u.choose(&[MEMORY, MEMORY / 2, 3 * MEMORY])?)).collect::<Result<_>>()?;
    let devices: Vec<u16> = (0..runs).map(|_| u.int_in_range(0..=1)).collect::<Result<_>>()?;
    let (has_rates, has_memory, has_devices): (bool, bool, bool) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    if has_devices {
        let mut other = profile.clone();
        for entry in other["schemes"].as_array_mut().into_iter().flatten() {
            for field in ["quadratic_ms_per_token2", "linear_ms_per_token", "fixed_ms"] {
                let factor = *u.choose(&[1.0, 0.3, 5.0])?;
                entry[field] = json!(entry[field].as_f64().unwrap_or_default() * factor);
            }
        }
        profile["other_devices"] = json!([{"rate": *u.choose(&[1.0, 0.5, 2.0, 0.0])?, "profile": other}]);
    }
    let of_ranks = 0..gpus;
    Ok(RanksInput {
        rates: has_rates.then(|| of_ranks.clone().map(|rank| rates[run_of(rank)]).collect()),
        memory_bytes: has_memory.then(|| of_ranks.clone().map(|rank| memory[run_of(rank)]).collect()),
        devices: has_devices.then(|| of_ranks.map(|rank| devices[run_of(rank)]).collect()),
    })
}

fn scheme(u: &mut Unstructured) -> Result<Value> {
    let (tp, pp): (u16, u16) = (*u.choose(&[1, 2, 3, 4, 8, 16])?, u.int_in_range(1..=4)?);
    let cp: u16 = *u.choose(&[1, 1, 2, 3])?;
    let checkpointing = *u.choose(&["none", "none", "selective", "full", "offload", "full-offload"])?;
    let cap: u64 = match u.int_in_range(0..=3)? {
        0 => u.int_in_range(0..=20)?,
        1 => u.int_in_range(1..=4_000)?,
        _ => u.int_in_range(4_000..=60_000)?,
    };
    // All times of such a scheme are close to 0: a single such time would disappear in the sum with the others.
    let vanishes = u.ratio(1, 16)?;
    let exponents = |usual: RangeInclusive<i32>| if vanishes { -323..=-300 } else { usual };
    let mut entry = json!({
        "scheme": format!("<tp{tp},cp{cp},pp{pp},{checkpointing}>"),
        "quadratic_ms_per_token2": number(u, exponents(-9..=-3))?,
        "linear_ms_per_token": number(u, exponents(-4..=1))?,
        "fixed_ms": number(u, exponents(-2..=5))?,
        "forward_share": f64::from(u.int_in_range(1..=9)?) / 10.0,
        "resident_bytes": MEMORY - RESERVED - 2 - cap * PER_TOKEN,
        "activation_bytes_per_token": PER_TOKEN,
    });
    if u.ratio(1, 4)? {
        entry["least_ms"] = number(u, exponents(-2..=5))?.into();
    }
    if checkpointing.ends_with("offload") {
        entry["host_bytes_per_token"] = json!(u.int_in_range(0..=2 * PER_TOKEN)?);
    }
    if cp > 1 {
        entry["context"] = json!(*u.choose(&["ulysses", "ring"])?);
    }
    if u.ratio(1, 4)? {
        // The fullest stage has as many, so that the caps are as drawn.
        let mut activations = vec![PER_TOKEN; pp.into()];
        for later in &mut activations[1..] {
            *later = u.int_in_range(1..=PER_TOKEN)?;
        }
        entry["activation_bytes_per_token"] = json!(activations);
    }
    if u.ratio(1, 4)? {
        let exponents = if u.ratio(1, 8)? { 290..=f64::MAX_10_EXP } else { -3..=3 };
        let multipliers: Vec<f64> = (0..pp).map(|_| number(u, exponents.clone())).collect::<Result<_>>()?;
        entry["stage_multipliers"] = json!(multipliers);
    }
    Ok(entry)
}

/// 0 to 9 times a power of ten; 0 is rare.
fn number(u: &mut Unstructured, exponents: RangeInclusive<i32>) -> Result<f64> {
    let digit = if u.ratio(1, 32)? { 0 } else { u.int_in_range(1..=9_u8)? };
    Ok(f64::from(digit) * 10.0_f64.powi(u.int_in_range(exponents)?))
}

/// Replaces one value without children in the document.
fn change(u: &mut Unstructured, document: &mut Value) -> Result<()> {
    let mut place = String::new();
    loop {
        let children: Vec<String> = match document.pointer(&place) {
            Some(Value::Object(fields)) => fields.keys().cloned().collect(),
            Some(Value::Array(items)) => (0..items.len()).map(|index| index.to_string()).collect(),
            _ => Vec::new(),
        };
        if children.is_empty() {
            break;
        }
        place = format!("{place}/{}", u.choose(&children)?);
    }
    if let Some(value) = document.pointer_mut(&place) {
        *value = hostile(u)?;
    }
    Ok(())
}

/// Values at and beyond the limits of a field.
fn hostile(u: &mut Unstructured) -> Result<Value> {
    let edges = [
        json!(0),
        json!(1),
        json!(-1),
        json!(2),
        json!(0.5),
        json!(1e6),
        json!(1e-6),
        json!(1e300),
        json!(1e-300),
        json!(f64::MAX),
        json!(f64::MIN_POSITIVE),
        json!(5e-324),
        json!(u64::MAX),
        json!(i64::MAX),
        json!(u32::MAX),
        json!(null),
        json!([]),
        json!({}),
        json!(""),
        json!("<tp2>"),
        json!("<tp65535,pp65535>"),
        json!("<cp2>"),
        json!("3x<1>"),
        json!([1.0, 1e300]),
        json!([1e-300]),
    ];
    match u.int_in_range(0..=3)? {
        0 => Ok(json!(u.arbitrary::<f64>()?)),
        1 => Ok(json!(u.arbitrary::<u64>()?)),
        _ => Ok(u.choose(&edges)?.clone()),
    }
}

/// Strategies of the document's own schemes, or arbitrary text.
fn strategies(u: &mut Unstructured, profile: &Value) -> Result<Vec<String>> {
    let schemes: Vec<&str> =
        profile["schemes"].as_array().into_iter().flatten().filter_map(|entry| entry["scheme"].as_str()).collect();
    let group = |u: &mut Unstructured| {
        let scheme = if schemes.is_empty() { "<1>" } else { u.choose(&schemes)? };
        Ok(format!("{}x{scheme}", u.int_in_range(1..=16)?))
    };
    let strategy = |u: &mut Unstructured| -> Result<String> {
        if u.ratio(1, 16)? {
            return u.arbitrary();
        }
        let groups: Vec<String> = (0..u.int_in_range(1..=3)?).map(|_| group(u)).collect::<Result<_>>()?;
        Ok(groups.join("+"))
    };
    (0..u.int_in_range(0..=4)?).map(|_| strategy(u)).collect()
}

/// One of the memory rules, or an unknown name.
fn memory(u: &mut Unstructured) -> Result<String> {
    if u.ratio(1, 32)? { u.arbitrary() } else { Ok((*u.choose(&["per_micro_batch", "in_flight"])?).into()) }
}

/// A limit that mostly allows one strategy more than were used.
fn limit(u: &mut Unstructured, profile: &Value) -> Result<LimitInput> {
    let used = strategies(u, profile)?;
    let most = if u.ratio(1, 2)? { used.len() + 1 } else { u.int_in_range(0..=MAX_LIMIT)? };
    Ok(LimitInput { most, used })
}
