//! The instances of a document.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Value, json};

use super::cost::Setting;
use super::degrees::LayerStrategy;
use super::profile::{Mode, Modes, Profile, Tables, float};
use super::search::{Part, Plan, Space, Splits, search};
use crate::tune::layer_choice::whole;
use crate::tune::{Instance, Solved};

type Result<T> = serde_json::Result<T>;

/// Name of the file that has the profiles of documents without any.
const PROFILES: &str = "galvatron_test_profiles.json";
/// Hidden size and layers of llama2-7b, the model of documents that state none.
const LLAMA2_7B: (u64, u64) = (4_096, 32);
const MB_PER_GB: f64 = 1024.0;

pub(in crate::tune) fn is_kind(document: &Value) -> bool {
    is_cases(document) || is_measured(document)
}

fn is_cases(document: &Value) -> bool {
    document.get("common_inputs").is_some() && document.get("cases").is_some()
}

fn is_measured(document: &Value) -> bool {
    document.get("computation").is_some() && document.get("hardware").is_some()
}

pub(in crate::tune) fn instances(path: &str, document: &Value) -> Result<Vec<Instance>> {
    if is_cases(document) { of_cases(path, document) } else { of_measured(document) }
}

/// Inputs of a search, as the documents name them.
#[derive(Clone, Debug, Deserialize)]
struct Inputs {
    #[serde(default)]
    model: String,
    #[serde(default)]
    hidden_size: Option<u64>,
    #[serde(default)]
    num_layers: Option<u64>,
    #[serde(alias = "seq")]
    seq_len: u64,
    #[serde(default)]
    world_size: Option<u64>,
    #[serde(default = "one")]
    nodes: u64,
    #[serde(default)]
    gpus: Option<u64>,
    memory_gb: f64,
    global_batch: Batches,
    #[serde(default)]
    chunks: Option<u64>,
    #[serde(default = "zero2", alias = "dp")]
    dp_default: String,
    #[serde(default = "one_f_one_b")]
    pipeline: String,
    #[serde(default = "yes")]
    async_grad_reduce: bool,
    #[serde(default = "yes")]
    sequence_parallel: bool,
    #[serde(default = "yes")]
    global_memory_buffer: bool,
    #[serde(default = "bf16")]
    mixed_precision: String,
    #[serde(default = "by_default")]
    time_mode: Mode,
    #[serde(default = "by_default")]
    memory_mode: Mode,
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

fn bf16() -> String {
    "bf16".to_owned()
}

fn by_default() -> Mode {
    Mode::Static
}

/// One global batch, or all that a search may choose from.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Batches {
    One(u64),
    Several(Vec<u64>),
}

impl Inputs {
    /// The inputs with those of one case in place of the common ones.
    fn read(common: &Value, own: &Value) -> Result<Inputs> {
        let mut merged = common.clone();
        if let (Some(into), Some(from)) = (merged.as_object_mut(), own.as_object()) {
            into.extend(from.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Inputs::deserialize(&merged)
    }

    fn world(&self) -> u64 {
        self.world_size.unwrap_or_else(|| self.nodes * self.gpus.unwrap_or(8))
    }

    fn setting(&self, stated_layers: Option<u64>) -> Result<Setting> {
        let hidden = self.hidden_size.or_else(|| number_after(&self.model, "hidden "));
        let layers =
            self.num_layers.or(stated_layers).or_else(|| number_after(&self.model, "num_layers overridden to "));
        let layers = usize::try_from(layers.unwrap_or(LLAMA2_7B.1)).map_err(serde_json::Error::custom)?;
        let (world, is_invalid) = (self.world(), |x: u64| x == 0);
        if is_invalid(world) || layers == 0 || self.batches().into_iter().any(is_invalid) {
            return Err(serde_json::Error::custom("ranks, layers and global batches are at least 1"));
        }
        Ok(Setting {
            world,
            layers,
            hidden: hidden.unwrap_or(LLAMA2_7B.0),
            length: self.seq_len,
            memory_mb: whole(self.memory_gb * MB_PER_GB),
            shards_by_default: self.dp_default != "ddp",
            reduces_async: self.async_grad_reduce,
            sequence_parallel: self.sequence_parallel,
            has_buffer: self.global_memory_buffer,
            half_precision: self.mixed_precision != "fp32",
            is_gpipe: self.pipeline == "gpipe",
        })
    }

    fn batches(&self) -> Vec<u64> {
        match &self.global_batch {
            Batches::One(batch) => vec![*batch],
            Batches::Several(batches) => batches.clone(),
        }
    }

    fn modes(&self) -> Modes {
        Modes { time: self.time_mode, memory: self.memory_mode }
    }
}

/// The number that follows some words of a text.
fn number_after(text: &str, words: &str) -> Option<u64> {
    let rest = &text[text.find(words)? + words.len()..];
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The searches of a document with cases.
fn of_cases(path: &str, document: &Value) -> Result<Vec<Instance>> {
    let profiles = match document.get("profiles") {
        Some(profiles) => profiles.clone(),
        None => neighbour(path)?,
    };
    let cases = document["cases"].as_object().ok_or_else(|| serde_json::Error::custom("cases is no object"))?;
    let mut instances = Vec::new();
    for (name, case) in cases {
        let config = &case["config"];
        let mut own = case.get("inputs").cloned().unwrap_or_else(|| json!({}));
        let stated = config["chunks"].as_u64().or_else(|| number_after(name, "chunks"));
        if let (Some(inputs), Some(chunks)) = (own.as_object_mut(), stated) {
            inputs.entry("chunks").or_insert_with(|| json!(chunks));
        }
        let inputs = Inputs::read(&document["common_inputs"], &own)?;
        let stated_layers = config["tp_sizes_enc"].as_str().map(|list| list.split(',').count() as u64);
        let setting = Rc::new(inputs.setting(stated_layers)?);
        let fitted = of_test(&profiles, &inputs)?.with_fits(&document["derived_fit"], inputs.seq_len);
        let profile = Rc::new(fitted);
        let is_uniform = name.starts_with("coarse");
        let whole = Space { batches: inputs.batches(), chunks: inputs.chunks, part: None, is_uniform };
        instances.push(instance(name.clone(), case["throughput"].as_f64(), &profile, &setting, whole));
        if is_uniform {
            let free = Space { batches: inputs.batches(), chunks: inputs.chunks, part: None, is_uniform: false };
            let name = format!("{name}, any strategy for each layer");
            instances.push(instance(name, case["throughput"].as_f64(), &profile, &setting, free));
        }
        for task in case["tasks"].as_array().into_iter().flatten() {
            let task = Task::deserialize(task)?;
            let space = Space {
                batches: vec![task.gbsz],
                chunks: Some(task.chunks),
                part: Some(
                    task.part().ok_or_else(|| serde_json::Error::custom(format!("mode {} is unknown", task.mode)))?,
                ),
                is_uniform,
            };
            let name = format!("{name}, pp {}, {} up to {}", task.pp, task.mode, task.global_buffer_tp);
            let reference = Some(task.throughput).filter(|&throughput| throughput > 0.0);
            instances.push(instance(name, reference, &profile, &setting, space));
        }
    }
    Ok(instances)
}

/// A part of a whole search with its result.
#[derive(Debug, Deserialize)]
struct Task {
    gbsz: u64,
    chunks: u64,
    pp: u64,
    global_buffer_tp: u64,
    mode: String,
    throughput: f64,
}

impl Task {
    fn part(&self) -> Option<Part> {
        let splits = match self.mode.as_str() {
            "tp_only" => Splits::Tensor,
            "sp_only" => Splits::Sequence,
            "tp_with_sp" => Splits::Both,
            _ => return None,
        };
        Some(Part { pp: self.pp, widest: self.global_buffer_tp, splits })
    }
}

/// The profiles in the folder of a document.
fn neighbour(path: &str) -> Result<Value> {
    let file = Path::new(path).with_file_name(PROFILES);
    let unreadable = |error| {
        let why = format!("it has no profiles, and {} cannot be read: {error}", file.display());
        serde_json::Error::custom(why)
    };
    serde_json::from_str(&fs::read_to_string(&file).map_err(unreadable)?)
}

fn of_test(profiles: &Value, inputs: &Inputs) -> Result<Profile> {
    let time = match inputs.time_mode {
        Mode::Static => "time_static",
        Mode::Batch => "time_batch",
        Mode::Sequence => "time_sequence",
    };
    let memory = match (inputs.memory_mode, inputs.sequence_parallel) {
        (Mode::Sequence, _) => "memory_sequence_sp",
        (_, true) => "memory_static_sp",
        (_, false) => "memory_static",
    };
    let hardware = &profiles["hardware"];
    let tables = Tables {
        time: &profiles[time],
        memory: &profiles[memory],
        all_reduce: &hardware["allreduce"],
        messages: &hardware["p2p"],
        overlap: &hardware["overlap"],
        collectives: &hardware["sp"],
    };
    profile(tables, inputs)
}

fn profile(tables: Tables, inputs: &Inputs) -> Result<Profile> {
    Profile::read(tables, inputs.seq_len, inputs.world(), inputs.modes()).map_err(serde_json::Error::custom)
}

/// The searches of a document with a measured profile.
fn of_measured(document: &Value) -> Result<Vec<Instance>> {
    let reproduced = &document["reproduced"];
    let division = document["committed_plan"]["pp_division"].as_str();
    let layers: Option<u64> = division.map(|list| list.split(',').filter_map(|own| own.parse::<u64>().ok()).sum());
    let mut instances = Vec::new();
    let mut add = |name: String, own: &Value, reference: Option<f64>| -> Result<()> {
        let inputs = Inputs::read(&reproduced["inputs"], own)?;
        let (profile, setting) = (Rc::new(of_nodes(document, &inputs)?), Rc::new(inputs.setting(layers)?));
        let space = Space { batches: inputs.batches(), chunks: inputs.chunks, part: None, is_uniform: false };
        instances.push(instance(name, reference, &profile, &setting, space));
        Ok(())
    };
    if reproduced.get("inputs").is_some() {
        add("committed plan".to_owned(), &json!({}), reproduced["throughput"].as_f64())?;
    }
    for point in document["memory_sweep"]["points"].as_array().into_iter().flatten() {
        let gb = &point["mem_gb"];
        add(format!("{gb} GB"), &json!({"memory_gb": gb}), point["throughput"].as_f64())?;
    }
    Ok(instances)
}

/// The tables of a measured profile for its number of nodes.
fn of_nodes(document: &Value, inputs: &Inputs) -> Result<Profile> {
    let nodes = format!("{}nodes_{}gpus_per_node.json", inputs.nodes, inputs.world() / inputs.nodes);
    let hardware = &document["hardware"];
    let tables = Tables {
        time: &document["computation"],
        memory: &document["memory"],
        all_reduce: &hardware[format!("allreduce_bandwidth_{nodes}")],
        messages: &hardware[format!("p2p_bandwidth_{nodes}")],
        overlap: &hardware["overlap_coefficient.json"],
        collectives: &hardware[format!("sp_time_{nodes}")],
    };
    profile(tables, inputs)
}

fn instance(
    name: String,
    reference: Option<f64>,
    profile: &Rc<Profile>,
    setting: &Rc<Setting>,
    space: Space,
) -> Instance {
    let (profile, setting) = (Rc::clone(profile), Rc::clone(setting));
    let solve = move || -> Solved {
        let plan = search(&profile, &setting, &space).ok_or("memory_too_small")?;
        Ok((plan.throughput(), described(&plan)))
    };
    Instance { is_maximised: true, ..Instance::new(name, reference, solve) }
}

/// A plan as JSON: run lengths of strategies by stage.
fn described(plan: &Plan) -> Value {
    let stage = |mix: &Vec<(LayerStrategy, usize)>| -> Value {
        mix.iter().map(|(strategy, layers)| json!([strategy.to_string(), layers])).collect()
    };
    let balance = |shares: &[f64]| {
        let greatest = shares.iter().copied().fold(0.0, f64::max);
        1.0 - greatest / shares.iter().sum::<f64>()
    };
    let megabytes: Vec<f64> = plan.stage_mb.iter().map(|&mb| float(mb)).collect();
    json!({
        "global_batch": plan.batch,
        "chunks": plan.chunks,
        "pp": plan.part.pp,
        "buffer_tp": plan.part.widest,
        "stages": plan.stages.iter().map(stage).collect::<Vec<_>>(),
        "embedding": plan.outside.to_string(),
        "memory_mb": plan.stage_mb,
        "stage_s": plan.stage_s,
        "time_s": plan.time,
        "time_balance": balance(&plan.stage_s),
        "memory_balance": balance(&megabytes),
    })
}
