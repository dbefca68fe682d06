//! The inputs of a whole search.

use serde::Deserialize;
use serde_json::Value;

use super::cost::Setting;
use super::profile::{Mode, Modes};
use crate::Result;
use crate::tune::layer_choice::whole;
use crate::tune::reading::{MOST_WHOLE, read, require};

/// Hidden size and layers of llama2-7b, the model of documents that state none.
const LLAMA2_7B: (u64, u64) = (4_096, 32);
const MB_PER_GB: f64 = 1024.0;
/// Greatest number of ranks, of layers and of samples of a step.
pub(super) const MOST_NUMBER: u64 = 1 << 20;
/// Greatest memory of a rank.
const MOST_GB: f64 = 1e12;

/// Inputs of a search, as the documents name them.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the reference's search")]
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Inputs {
    #[serde(default)]
    model: String,
    #[serde(default)]
    hidden_size: Option<u64>,
    #[serde(default)]
    num_layers: Option<u64>,
    #[serde(alias = "seq")]
    pub(super) seq_len: u64,
    #[serde(default)]
    world_size: Option<u64>,
    #[serde(default = "one")]
    pub(super) nodes: u64,
    #[serde(default)]
    gpus: Option<u64>,
    memory_gb: f64,
    global_batch: Batches,
    #[serde(default)]
    pub(super) chunks: Option<u64>,
    #[serde(default = "zero2", alias = "dp")]
    dp_default: String,
    #[serde(default = "one_f_one_b")]
    pipeline: String,
    #[serde(default = "yes")]
    async_grad_reduce: bool,
    #[serde(default = "yes")]
    pub(super) sequence_parallel: bool,
    #[serde(default = "yes")]
    global_memory_buffer: bool,
    #[serde(default)]
    mixed_precision: Option<String>,
    /// Stated in place of `mixed_precision`.
    #[serde(default = "yes")]
    bf16: bool,
    #[serde(default = "by_default")]
    pub(super) time_mode: Mode,
    #[serde(default = "by_default")]
    pub(super) memory_mode: Mode,
}

fn one() -> u64 {
    1
}

fn yes() -> bool {
    true
}

fn zero2() -> String {
    "zero2".to_owned()
}

fn one_f_one_b() -> String {
    "pipedream_flush".to_owned()
}

fn by_default() -> Mode {
    Mode::Static
}

/// One global batch, or all that a search may choose from.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Batches {
    One(u64),
    Several(Vec<u64>),
}

impl Inputs {
    /// The inputs with those of one case in place of the common ones.
    pub(super) fn read(common: &Value, own: &Value) -> Result<Inputs> {
        let mut merged = common.clone();
        if let (Some(into), Some(from)) = (merged.as_object_mut(), own.as_object()) {
            into.extend(from.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        let inputs: Inputs = read(&merged)?;
        inputs.check()?;
        Ok(inputs)
    }

    pub(super) fn world(&self) -> u64 {
        self.world_size.unwrap_or_else(|| self.nodes.saturating_mul(self.gpus.unwrap_or(8)))
    }

    /// Refuses numbers for which the reference has no degrees or no micro-batches.
    fn check(&self) -> Result<()> {
        let world = self.world();
        let is_number = |number: u64| (1..=MOST_NUMBER).contains(&number);
        let limit = format!("from 1 to {MOST_NUMBER}");
        require(is_number(self.nodes), "nodes", self.nodes, &limit)?;
        require(world.is_power_of_two() && is_number(world), "the number of ranks", world, "a power of two to 2^20")?;
        require(world.is_multiple_of(self.nodes), "nodes", self.nodes, format!("a divisor of the {world} ranks"))?;
        require((1..=MOST_WHOLE).contains(&self.seq_len), "seq_len", self.seq_len, "from 1 to 2^53")?;
        require(
            (0.0..=MOST_GB).contains(&self.memory_gb),
            "memory_gb",
            self.memory_gb,
            format!("from 0 to {MOST_GB}"),
        )?;
        self.check_choices()?;
        let batches = self.batches();
        require(!batches.is_empty(), "the length of global_batch", 0, "at least 1")?;
        for &batch in &batches {
            require(is_number(batch), "global_batch", batch, &limit)?;
        }
        let Some(chunks) = self.chunks else { return Ok(()) };
        let divides = chunks > 0 && batches.iter().any(|batch| batch.is_multiple_of(chunks));
        require(divides, "chunks", chunks, format!("a divisor of global_batch {batches:?}"))
    }

    /// Refuses choices that the reference does not have.
    fn check_choices(&self) -> Result<()> {
        let precision = self.mixed_precision.as_deref();
        for (field, value, known) in [
            ("dp_default", Some(self.dp_default.as_str()), &["ddp", "zero2"][..]),
            ("pipeline", Some(self.pipeline.as_str()), &["gpipe", "pipedream_flush"]),
            ("mixed_precision", precision, &["fp32", "fp16", "bf16"]),
        ] {
            let is_known = value.is_none_or(|value| known.contains(&value));
            require(is_known, field, value.unwrap_or_default(), known.join(" or "))?;
        }
        Ok(())
    }

    pub(super) fn setting(&self, stated_layers: Option<u64>) -> Result<Setting> {
        let hidden = self.hidden_size.or_else(|| number_after(&self.model, "hidden "));
        let layers =
            self.num_layers.or(stated_layers).or_else(|| number_after(&self.model, "num_layers overridden to "));
        let layers = layers.unwrap_or(LLAMA2_7B.1);
        require((1..=MOST_NUMBER).contains(&layers), "num_layers", layers, format!("from 1 to {MOST_NUMBER}"))?;
        let layers = usize::try_from(layers).unwrap_or_default();
        let hidden = hidden.unwrap_or(LLAMA2_7B.0);
        require((1..=MOST_NUMBER).contains(&hidden), "hidden_size", hidden, format!("from 1 to {MOST_NUMBER}"))?;
        Ok(Setting {
            world: self.world(),
            layers,
            hidden,
            length: self.seq_len,
            memory_mb: whole(self.memory_gb * MB_PER_GB),
            shards_by_default: self.dp_default != "ddp",
            reduces_async: self.async_grad_reduce,
            sequence_parallel: self.sequence_parallel,
            has_buffer: self.global_memory_buffer,
            half_precision: self.mixed_precision.as_ref().map_or(self.bf16, |precision| precision != "fp32"),
            is_gpipe: self.pipeline == "gpipe",
        })
    }

    pub(super) fn batches(&self) -> Vec<u64> {
        match &self.global_batch {
            Batches::One(batch) => vec![*batch],
            Batches::Several(batches) => batches.clone(),
        }
    }

    pub(super) fn modes(&self) -> Modes {
        Modes { time: self.time_mode, memory: self.memory_mode }
    }
}

/// The number that follows some words of a text.
pub(super) fn number_after(text: &str, words: &str) -> Option<u64> {
    let rest = &text[text.find(words)? + words.len()..];
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
