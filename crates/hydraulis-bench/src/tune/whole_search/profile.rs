//! The measured profile of a model and of its cluster.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::least_squares::polynomial;

type Result<T> = std::result::Result<T, String>;

/// A line through measured points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    slope: f64,
    constant: f64,
}

impl Line {
    pub(super) fn at(self, x: f64) -> f64 {
        self.slope * x + self.constant
    }

    fn through(points: &[(f64, f64)]) -> Line {
        let fitted = polynomial::<2>(points);
        Line { slope: fitted[1], constant: fitted[0] }
    }
}

/// Times of a collective in milliseconds by megabytes of the message.
#[derive(Clone, Debug)]
pub(super) struct Collective {
    measured: Vec<(f64, f64)>,
    line: Line,
}

impl Collective {
    /// The measured time of a message, otherwise the line's.
    pub(super) fn ms(&self, megabytes: f64) -> f64 {
        let exact = self.measured.iter().find(|(size, _)| size.total_cmp(&megabytes).is_eq());
        exact.map_or_else(|| self.line.at(megabytes), |(_, ms)| *ms)
    }
}

/// Megabytes of embedding and head, by tensor degree, or by tensor or sequence degree.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    pub(super) states: BTreeMap<u64, f64>,
    pub(super) activation: BTreeMap<u64, f64>,
}

/// The profile at one sequence length.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    /// Forward time in milliseconds of a layer, and of embedding and head, by samples of a rank.
    pub(super) layer_ms: Line,
    pub(super) outside_ms: Line,
    /// Megabytes of a layer's parameters in 32 bits.
    pub(super) parameter_mb: f64,
    /// Megabytes of a layer's activations for a sample, by tensor or sequence degree.
    pub(super) activation_mb: BTreeMap<u64, f64>,
    /// Megabytes of a recomputed layer's input for a sample.
    pub(super) input_mb: f64,
    /// Embedding and head together; on the first stage; on the last stage.
    pub(super) outside: [Outside; 3],
    pub(super) gathers: BTreeMap<u64, Collective>,
    pub(super) all_to_alls: BTreeMap<u64, Collective>,
    /// Milliseconds for a megabyte, by ranks and whether they are consecutive.
    reduce_ms_per_mb: BTreeMap<(u64, bool), f64>,
    /// Milliseconds for a megabyte, by stages.
    pub(super) message_ms_per_mb: BTreeMap<u64, f64>,
    /// Slowdown of communication and computation while both run.
    pub(super) overlap: f64,
}

/// Which of the measured points count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// Those of the length at hand, with the fewest samples.
    Static,
    /// Those of the length at hand, with a line through all numbers of samples.
    Batch,
    /// Those of single samples of all lengths: a square of the length for layers, a line for the rest.
    Sequence,
}

/// The modes of times and of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modes {
    pub(super) time: Mode,
    pub(super) memory: Mode,
}

/// The tables of a profile, as the reference's profiler writes them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables<'a> {
    pub(super) time: &'a Value,
    pub(super) memory: &'a Value,
    pub(super) all_reduce: &'a Value,
    pub(super) messages: &'a Value,
    pub(super) overlap: &'a Value,
    pub(super) collectives: &'a Value,
}

impl Profile {
    /// Reads the tables for sequences of `length` tokens on `world` ranks.
    pub(super) fn read(tables: Tables, length: u64, world: u64, modes: Modes) -> Result<Profile> {
        let time = object(tables.time, "the table of times")?;
        let memory = Memory { tables: tables.memory, length, scales: modes.memory == Mode::Sequence };
        let (layer_mb, scale) = memory.of("layertype_0")?;
        let activations = object(&layer_mb["tp_activation_per_bsz_dict"], "tp_activation_per_bsz_dict")?;
        let outside = |part: &str| -> Result<Outside> {
            let (table, scale) = memory.of(part)?;
            let states = by_number(object(&table["model_states"], "model_states")?, 1.0);
            let activation = by_number(object(&table["activation"], "activation")?, scale);
            Ok(Outside { states, activation })
        };
        let collectives = object(tables.collectives, "the table of collectives")?;
        Ok(Profile {
            layer_ms: forward_ms(time, "layertype_0", length, modes.time)?,
            outside_ms: forward_ms(time, "layertype_other", length, modes.time)?,
            parameter_mb: memory.parameter_mb()?,
            activation_mb: by_number(activations, scale),
            input_mb: number(&activations["checkpoint"], "checkpoint")? * scale,
            outside: [
                outside("other_memory_pp_off")?,
                outside("other_memory_pp_on_first")?,
                outside("other_memory_pp_on_last")?,
            ],
            // A gather is half of the measured all-reduce.
            gathers: collective(collectives, "allreduce", 0.5),
            all_to_alls: collective(collectives, "all2all", 1.0),
            reduce_ms_per_mb: reductions(object(tables.all_reduce, "the table of reductions")?, world),
            message_ms_per_mb: messages(object(tables.messages, "the table of messages")?),
            overlap: number(&tables.overlap["overlap_coe"], "overlap_coe")?,
        })
    }

    /// The same profile with the reference's own fits of the times at a length, where the document states them: its
    /// fitting ends a billionth away from the least squares.
    pub(super) fn with_fits(self, fits: &Value, length: u64) -> Profile {
        let stated = |name: &str, own: Line| {
            let ms = fits[format!("{name}_at_{length}")].as_f64();
            ms.map_or(own, |slope| Line { slope, constant: 0.0 })
        };
        let layer_ms = stated("forward_ms_per_layer", self.layer_ms);
        let outside_ms = stated("other_ms", self.outside_ms);
        Profile { layer_ms, outside_ms, ..self }
    }

    /// Milliseconds of a megabyte in a reduction over ranks, 0 for one rank; none if it was not measured.
    pub(super) fn reduce_ms_per_mb(&self, ranks: u64, is_consecutive: bool) -> Option<f64> {
        if ranks == 1 { Some(0.0) } else { self.reduce_ms_per_mb.get(&(ranks, is_consecutive)).copied() }
    }
}

/// The memory tables and the length they are read for.
struct Memory<'a> {
    tables: &'a Value,
    length: u64,
    scales: bool,
}

impl<'a> Memory<'a> {
    /// The table of a part and the factor of its activations: of this length, or of the longest measured one.
    fn of(&self, part: &str) -> Result<(&'a Value, f64)> {
        let lengths = self.lengths(part)?;
        let longest = lengths.keys().filter_map(|key| key.parse().ok()).max().unwrap_or_default();
        let measured: u64 = if self.scales { longest } else { self.length };
        let table =
            lengths.get(&measured.to_string()).ok_or_else(|| format!("{part} lacks sequence length {measured}"))?;
        Ok((table, float(self.length) / float(measured)))
    }

    /// A layer's parameters, which the reference takes from the shortest measured length.
    fn parameter_mb(&self) -> Result<f64> {
        let lengths = self.lengths("layertype_0")?;
        let shortest = lengths.keys().filter_map(|key| key.parse::<u64>().ok()).min();
        let key = if self.scales { shortest.unwrap_or_default() } else { self.length };
        number(&lengths[&key.to_string()]["parameter_size"], "parameter_size")
    }

    fn lengths(&self, part: &str) -> Result<&'a Map<String, Value>> {
        let split = self.tables.get(format!("{part}_sp"));
        object(split.unwrap_or(&self.tables[part]), part)
    }
}

/// The forward time of a rank by its samples.
fn forward_ms(time: &Map<String, Value>, kind: &str, length: u64, mode: Mode) -> Result<Line> {
    let own = measured(time, kind).filter(|&(_, measured, _)| measured == length);
    let singles = measured(time, kind).filter(|&(samples, ..)| samples == 1);
    let per_sample = |ms: f64| Line { slope: ms, constant: 0.0 };
    let lacks = || format!("{kind} lacks sequence length {length}");
    match mode {
        Mode::Static => own.min_by_key(|&(samples, ..)| samples).map(|(.., ms)| per_sample(ms)).ok_or_else(lacks),
        Mode::Batch => {
            let points: Vec<_> = own.map(|(samples, _, ms)| (float(samples), ms * float(samples))).collect();
            if points.len() < 2 { Err(lacks()) } else { Ok(Line::through(&points)) }
        }
        Mode::Sequence => {
            let points: Vec<_> = singles.map(|(_, length, ms)| (float(length), ms)).collect();
            if points.len() < 3 {
                return Err(format!("{kind} has {} lengths of single samples, a fit needs 3", points.len()));
            }
            let at = |terms: &[f64]| terms.iter().rev().fold(0.0, |sum, term| sum * float(length) + term);
            let is_layer = kind == "layertype_0";
            Ok(per_sample(if is_layer { at(&polynomial::<3>(&points)) } else { at(&polynomial::<2>(&points)) }))
        }
    }
}

/// Samples, length and milliseconds of a sample of all keys such as `layertype_0_bsz8_seq4096`.
fn measured<'a>(time: &'a Map<String, Value>, kind: &'a str) -> impl Iterator<Item = (u64, u64, f64)> + 'a {
    time.iter().filter_map(move |(key, value)| {
        let (samples, length) = key.strip_prefix(kind)?.strip_prefix("_bsz")?.split_once("_seq")?;
        Some((samples.parse().ok()?, length.parse().ok()?, value.as_f64()?))
    })
}

/// The collectives of all numbers of ranks, from keys such as `allreduce_size_8_16MB_time`.
fn collective(table: &Map<String, Value>, name: &str, factor: f64) -> BTreeMap<u64, Collective> {
    let mut points: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for (key, value) in table {
        let parts = key.strip_prefix(name).and_then(|rest| rest.strip_prefix("_size_")?.strip_suffix("MB_time"));
        let sizes = parts.and_then(|rest| rest.split_once('_'));
        let Some((Ok(ranks), Ok(size))) = sizes.map(|(ranks, size)| (ranks.parse(), size.parse::<f64>())) else {
            continue;
        };
        points.entry(ranks).or_default().extend(value.as_f64().map(|ms| (size, ms * factor)));
    }
    let of =
        |(ranks, measured): (u64, Vec<(f64, f64)>)| (ranks, Collective { line: Line::through(&measured), measured });
    points.into_iter().map(of).collect()
}

/// The inverse bandwidths; all ranks together count as consecutive.
fn reductions(table: &Map<String, Value>, world: u64) -> BTreeMap<(u64, bool), f64> {
    let mut costs = BTreeMap::new();
    for (key, value) in table {
        let sizes = key.strip_prefix("allreduce_size_").and_then(|rest| rest.split_once("_consec_"));
        if let (Some((Ok(ranks), order)), Some(rate)) = (sizes.map(|(n, order)| (n.parse(), order)), value.as_f64()) {
            costs.insert((ranks, order == "1"), 1.0 / rate);
        }
    }
    if let Some(&all) = costs.get(&(world, true)) {
        costs.insert((world, false), all);
    }
    costs
}

fn messages(table: &Map<String, Value>) -> BTreeMap<u64, f64> {
    let of =
        |(key, value): (&String, &Value)| Some((key.strip_prefix("pp_size_")?.parse().ok()?, 1.0 / value.as_f64()?));
    table.iter().filter_map(of).collect()
}

fn by_number(table: &Map<String, Value>, factor: f64) -> BTreeMap<u64, f64> {
    table.iter().filter_map(|(key, value)| Some((key.parse().ok()?, value.as_f64()? * factor))).collect()
}

fn object<'a>(value: &'a Value, name: &str) -> Result<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| format!("{name} is no object"))
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value.as_f64().ok_or_else(|| format!("{name} is no number"))
}

#[expect(clippy::cast_precision_loss, reason = "lengths, samples and megabytes are below 2^53")]
pub(super) fn float(x: u64) -> f64 {
    x as f64
}
