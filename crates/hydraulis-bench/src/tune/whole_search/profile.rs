//! The measured profile of a model and of its cluster.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::degrees::{LayerStrategy, layer_strategies, powers};
use super::least_squares::polynomial;
use super::search::WIDEST;
use super::tables::{by_number, megabytes, object, positive, time, unreadable};
use crate::Result;
use crate::tune::reading::require;

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

    fn per_sample(ms: f64) -> Line {
        Line { slope: ms, constant: 0.0 }
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
        let times = object(tables.time, "the table of times")?;
        let memory = Memory { tables: tables.memory, length, scales: modes.memory == Mode::Sequence };
        let (layer_mb, scale, field) = memory.of("layertype_0")?;
        let (activations, field) =
            (&layer_mb["tp_activation_per_bsz_dict"], format!("{field}.tp_activation_per_bsz_dict"));
        let outside = |part: &str| -> Result<Outside> {
            let (table, scale, field) = memory.of(part)?;
            let states = by_number(&table["model_states"], &format!("{field}.model_states"), 1.0)?;
            let activation = by_number(&table["activation"], &format!("{field}.activation"), scale)?;
            Ok(Outside { states, activation })
        };
        let collectives = object(tables.collectives, "the table of collectives")?;
        let profile = Profile {
            layer_ms: forward_ms(times, "layertype_0", length, modes.time)?,
            outside_ms: forward_ms(times, "layertype_other", length, modes.time)?,
            parameter_mb: memory.parameter_mb()?,
            activation_mb: by_number(activations, &field, scale)?,
            input_mb: megabytes(&activations["checkpoint"], format!("{field}.checkpoint"))? * scale,
            outside: [
                outside("other_memory_pp_off")?,
                outside("other_memory_pp_on_first")?,
                outside("other_memory_pp_on_last")?,
            ],
            // A gather is half of the measured all-reduce.
            gathers: collective(collectives, "allreduce", 0.5)?,
            all_to_alls: collective(collectives, "all2all", 1.0)?,
            reduce_ms_per_mb: reductions(object(tables.all_reduce, "the table of reductions")?, world)?,
            message_ms_per_mb: messages(object(tables.messages, "the table of messages")?)?,
            overlap: positive(&tables.overlap["overlap_coe"], "overlap_coe")?,
        };
        profile.require_measured(world)?;
        Ok(profile)
    }

    /// Refuses tables that lack a collective of some strategy: without it the search would leave the strategy out.
    fn require_measured(&self, world: u64) -> Result<()> {
        let strategies = powers(world.min(WIDEST)).flat_map(|pp| layer_strategies(world, pp, true));
        for LayerStrategy { pp, tp, sp, dp, .. } in strategies.filter(|strategy| strategy.split() <= WIDEST) {
            let (ranks, order) = (dp * sp, u8::from(tp == 1));
            for (is_measured, key) in [
                (self.reduce_ms_per_mb(ranks, tp == 1).is_some(), format!("allreduce_size_{ranks}_consec_{order}")),
                (tp == 1 || self.gathers.contains_key(&tp), format!("allreduce_size_{tp}_1MB_time")),
                (sp == 1 || self.all_to_alls.contains_key(&sp), format!("all2all_size_{sp}_1MB_time")),
                (pp == 1 || self.message_ms_per_mb.contains_key(&pp), format!("pp_size_{pp}")),
            ] {
                require(is_measured, key, "missing", format!("measured for {world} ranks"))?;
            }
        }
        Ok(())
    }

    /// The same profile with the reference's own fits of the times at a length, where the document states them: its
    /// fitting ends a billionth away from the least squares.
    pub(super) fn with_fits(self, fits: &Value, length: u64) -> Result<Profile> {
        let key = |name: &str| format!("{name}_at_{length}");
        let (layer, other) = (key("forward_ms_per_layer"), key("other_ms"));
        let layer_ms = fits.get(&layer).map(|ms| positive(ms, layer)).transpose()?.map(Line::per_sample);
        let outside_ms = fits.get(&other).map(|ms| time(ms, other)).transpose()?.map(Line::per_sample);
        let (own, own_outside) = (self.layer_ms, self.outside_ms);
        Ok(Profile { layer_ms: layer_ms.unwrap_or(own), outside_ms: outside_ms.unwrap_or(own_outside), ..self })
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
    /// The table of a part, the factor of its activations and its field: of this length, or of the longest measured one.
    fn of(&self, part: &str) -> Result<(&'a Value, f64, String)> {
        let lengths = self.lengths(part)?;
        let longest = lengths.keys().filter_map(|key| key.parse().ok()).max().unwrap_or_default();
        let measured: u64 = if self.scales { longest } else { self.length };
        let lacks = || unreadable(format!("{part} lacks sequence length {measured}"));
        let table = lengths.get(&measured.to_string()).ok_or_else(lacks)?;
        Ok((table, float(self.length) / float(measured), format!("{part}.{measured}")))
    }

    /// A layer's parameters, which the reference takes from the shortest measured length.
    fn parameter_mb(&self) -> Result<f64> {
        let lengths = self.lengths("layertype_0")?;
        let shortest = lengths.keys().filter_map(|key| key.parse::<u64>().ok()).min();
        let key = if self.scales { shortest.unwrap_or_default() } else { self.length };
        positive(&lengths[&key.to_string()]["parameter_size"], format!("layertype_0.{key}.parameter_size"))
    }

    fn lengths(&self, part: &str) -> Result<&'a Map<String, Value>> {
        let split = self.tables.get(format!("{part}_sp"));
        object(split.unwrap_or(&self.tables[part]), part)
    }
}

/// The forward time of a rank by its samples.
fn forward_ms(times: &Map<String, Value>, kind: &str, length: u64, mode: Mode) -> Result<Line> {
    let all = measured(times, kind)?;
    let own = all.iter().filter(|point| point.length == length);
    let lacks = || unreadable(format!("{kind} lacks sequence length {length}"));
    let line = match mode {
        Mode::Static => {
            own.min_by_key(|point| point.samples).map(|point| Line::per_sample(point.ms)).ok_or_else(lacks)?
        }
        Mode::Batch => {
            let points: Vec<_> = own.map(|point| (float(point.samples), point.ms * float(point.samples))).collect();
            if points.len() < 2 {
                return Err(lacks());
            }
            Line::through(&points)
        }
        Mode::Sequence => {
            let singles = all.iter().filter(|point| point.samples == 1);
            let points: Vec<_> = singles.map(|point| (float(point.length), point.ms)).collect();
            if points.len() < 3 {
                let found = points.len();
                return Err(unreadable(format!("{kind} has {found} lengths of single samples, a fit needs 3")));
            }
            let at = |terms: &[f64]| terms.iter().rev().fold(0.0, |sum, term| sum * float(length) + term);
            let is_layer = kind == "layertype_0";
            Line::per_sample(if is_layer { at(&polynomial::<3>(&points)) } else { at(&polynomial::<2>(&points)) })
        }
    };
    let (ms, field) = (line.at(1.0), format!("the fitted time of {kind} at length {length}"));
    require(ms > 0.0 || (ms == 0.0 && kind != "layertype_0"), field, ms, "above 0")?;
    Ok(line)
}

/// The measured time of a sample.
struct Point {
    samples: u64,
    length: u64,
    ms: f64,
}

/// The points of all keys such as `layertype_0_bsz8_seq4096`; a layer takes some time.
fn measured(times: &Map<String, Value>, kind: &str) -> Result<Vec<Point>> {
    let sizes = |key: &str| -> Option<(u64, u64)> {
        let (samples, length) = key.strip_prefix(kind)?.strip_prefix("_bsz")?.split_once("_seq")?;
        Some((samples.parse().ok()?, length.parse().ok()?))
    };
    let points = times.iter().filter_map(|(key, value)| Some((sizes(key)?, key, value)));
    let checked = |((samples, length), key, value)| {
        let ms = if kind == "layertype_0" { positive(value, key)? } else { time(value, key)? };
        Ok(Point { samples, length, ms })
    };
    points.map(checked).collect()
}

/// The collectives of all numbers of ranks, from keys such as `allreduce_size_8_16MB_time`.
fn collective(table: &Map<String, Value>, name: &str, factor: f64) -> Result<BTreeMap<u64, Collective>> {
    let mut points: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for (key, value) in table {
        let parts = key.strip_prefix(name).and_then(|rest| rest.strip_prefix("_size_")?.strip_suffix("MB_time"));
        let sizes = parts.and_then(|rest| rest.split_once('_'));
        let Some((Ok(ranks), Ok(size))) = sizes.map(|(ranks, size)| (ranks.parse(), size.parse::<f64>())) else {
            continue;
        };
        points.entry(ranks).or_default().push((size, time(value, key)? * factor));
    }
    let of = |(ranks, measured): (u64, Vec<(f64, f64)>)| {
        let sizes: BTreeSet<u64> = measured.iter().map(|(size, _)| size.to_bits()).collect();
        require(sizes.len() > 1, format!("the number of sizes of {name}_size_{ranks}"), sizes.len(), "at least 2")?;
        Ok((ranks, Collective { line: Line::through(&measured), measured }))
    };
    points.into_iter().map(of).collect()
}

/// The inverse bandwidths; all ranks together count as consecutive.
fn reductions(table: &Map<String, Value>, world: u64) -> Result<BTreeMap<(u64, bool), f64>> {
    let mut costs = BTreeMap::new();
    for (key, value) in table {
        let sizes = key.strip_prefix("allreduce_size_").and_then(|rest| rest.split_once("_consec_"));
        if let Some((Ok(ranks), order)) = sizes.map(|(ranks, order)| (ranks.parse(), order)) {
            costs.insert((ranks, order == "1"), 1.0 / positive(value, key)?);
        }
    }
    if let Some(&all) = costs.get(&(world, true)) {
        costs.insert((world, false), all);
    }
    Ok(costs)
}

fn messages(table: &Map<String, Value>) -> Result<BTreeMap<u64, f64>> {
    let stages = |key: &str| key.strip_prefix("pp_size_")?.parse().ok();
    let rates = table.iter().filter_map(|(key, value)| Some((stages(key)?, key, value)));
    rates.map(|(stages, key, value)| Ok((stages, 1.0 / positive(value, key)?))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "lengths, samples and megabytes are below 2^53")]
pub(super) fn float(x: u64) -> f64 {
    x as f64
}
