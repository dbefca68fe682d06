//! The instances of a document.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Value, json};

use super::cost::Setting;
use super::degrees::LayerStrategy;
use super::inputs::{Inputs, MOST_NUMBER, number_after};
use super::profile::{Mode, Profile, Tables, float};
use super::search::{Part, Plan, Space, Splits, WIDEST, search};
use crate::Result;
use crate::tune::reading::{read, require};
use crate::tune::{Instance, Solved};

/// Name of the file that has the profiles of documents without any.
const PROFILES: &str = "galvatron_test_profiles.json";

pub(in crate::tune) fn is_kind(document: &Value) -> bool {
    is_cases(document) || is_measured(document)
}

fn is_cases(document: &Value) -> bool {
    document.get("common_inputs").is_some() && document.get("cases").is_some()
}

fn is_measured(document: &Value) -> bool {
    document.get("computation").is_some() && document.get("hardware").is_some()
}

pub(in crate::tune) fn instances(path: &str, document: &Value) -> serde_json::Result<Vec<Instance>> {
    if is_cases(document) { of_cases(path, document) } else { of_measured(document) }
}

/// The searches of a document with cases.
fn of_cases(path: &str, document: &Value) -> serde_json::Result<Vec<Instance>> {
    let profiles = match document.get("profiles") {
        Some(profiles) => profiles.clone(),
        None => neighbour(path)?,
    };
    let cases = document["cases"].as_object().filter(|cases| !cases.is_empty());
    let cases = cases.ok_or_else(|| serde_json::Error::custom("cases is no object with one case at least"))?;
    let of_case = |(name, case): (&String, &Value)| {
        of_case(document, &profiles, name, case).unwrap_or_else(|error| vec![Instance::refused(name.clone(), error)])
    };
    Ok(cases.iter().flat_map(of_case).collect())
}

fn of_case(document: &Value, profiles: &Value, name: &str, case: &Value) -> Result<Vec<Instance>> {
    let mut instances = Vec::new();
    let config = &case["config"];
    let mut own = case.get("inputs").cloned().unwrap_or_else(|| json!({}));
    let stated = config["chunks"].as_u64().or_else(|| number_after(name, "chunks"));
    if let (Some(inputs), Some(chunks)) = (own.as_object_mut(), stated) {
        inputs.entry("chunks").or_insert_with(|| json!(chunks));
    }
    let inputs = Inputs::read(&document["common_inputs"], &own)?;
    let stated_layers = config["tp_sizes_enc"].as_str().map(|list| list.split(',').count() as u64);
    let setting = Rc::new(inputs.setting(stated_layers)?);
    let fitted = of_test(profiles, &inputs)?.with_fits(&document["derived_fit"], inputs.seq_len)?;
    let profile = Rc::new(fitted);
    let is_uniform = name.starts_with("coarse");
    let whole = Space { batches: inputs.batches(), chunks: inputs.chunks, part: None, is_uniform };
    instances.push(instance(name.to_owned(), case["throughput"].as_f64(), &profile, &setting, whole));
    if is_uniform {
        let free = Space { batches: inputs.batches(), chunks: inputs.chunks, part: None, is_uniform: false };
        let name = format!("{name}, any strategy for each layer");
        instances.push(instance(name, case["throughput"].as_f64(), &profile, &setting, free));
    }
    for (place, entry) in case["tasks"].as_array().into_iter().flatten().enumerate() {
        let (task, space) = match read(entry).and_then(|task: Task| Ok((task.space(&setting, is_uniform)?, task))) {
            Ok((space, task)) => (task, space),
            Err(error) => {
                instances.push(Instance::refused(format!("{name}, task {place}"), error));
                continue;
            }
        };
        let name = format!("{name}, pp {}, {} up to {}", task.pp, task.mode, task.global_buffer_tp);
        let reference = Some(task.throughput).filter(|&throughput| throughput > 0.0);
        instances.push(instance(name, reference, &profile, &setting, space));
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
    /// The task's part of the space.
    fn space(&self, setting: &Setting, is_uniform: bool) -> Result<Space> {
        let splits = match self.mode.as_str() {
            "tp_only" => Some(Splits::Tensor),
            "sp_only" => Some(Splits::Sequence),
            "tp_with_sp" => Some(Splits::Both),
            _ => None,
        };
        require(splits.is_some(), "mode", &self.mode, "tp_only, sp_only or tp_with_sp")?;
        let batch = self.gbsz;
        require((1..=MOST_NUMBER).contains(&batch), "gbsz", batch, format!("from 1 to {MOST_NUMBER}"))?;
        let divides = self.chunks > 0 && batch.is_multiple_of(self.chunks);
        require(divides, "chunks", self.chunks, format!("a divisor of gbsz {batch}"))?;
        let most = setting.world.min(WIDEST).min(setting.layers as u64);
        let is_degree = |degree: u64, most: u64| degree.is_power_of_two() && degree <= most;
        require(is_degree(self.pp, most), "pp", self.pp, format!("a power of two up to {most}"))?;
        let most = setting.world / self.pp;
        let (pp, widest) = (self.pp, self.global_buffer_tp);
        require(is_degree(widest, most), "global_buffer_tp", widest, format!("a power of two up to {most}"))?;
        let part = splits.map(|splits| Part { pp, widest, splits });
        Ok(Space { batches: vec![batch], chunks: Some(self.chunks), part, is_uniform })
    }
}

/// The profiles in the folder of a document.
fn neighbour(path: &str) -> serde_json::Result<Value> {
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
    Profile::read(tables, inputs.seq_len, inputs.world(), inputs.modes())
}

/// The searches of a document with a measured profile.
fn of_measured(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let reproduced = &document["reproduced"];
    let division = document["committed_plan"]["pp_division"].as_str();
    let layers: Option<u64> = division.map(|list| list.split(',').filter_map(|own| own.parse::<u64>().ok()).sum());
    let add = |name: String, own: &Value, reference: Option<f64>| -> Result<Instance> {
        let inputs = Inputs::read(&reproduced["inputs"], own)?;
        let (profile, setting) = (Rc::new(of_nodes(document, &inputs)?), Rc::new(inputs.setting(layers)?));
        let space = Space { batches: inputs.batches(), chunks: inputs.chunks, part: None, is_uniform: false };
        Ok(instance(name, reference, &profile, &setting, space))
    };
    let of = |name: String, own: &Value, reference: Option<f64>| {
        add(name.clone(), own, reference).unwrap_or_else(|error| Instance::refused(name, error))
    };
    let mut instances = Vec::new();
    if reproduced.get("inputs").is_some() {
        instances.push(of("committed plan".to_owned(), &json!({}), reproduced["throughput"].as_f64()));
    }
    for point in document["memory_sweep"]["points"].as_array().into_iter().flatten() {
        let gb = &point["mem_gb"];
        instances.push(of(format!("{gb} GB"), &json!({"memory_gb": gb}), point["throughput"].as_f64()));
    }
    if instances.is_empty() {
        return Err(serde_json::Error::custom("reproduced.inputs and memory_sweep.points are both missing: give one"));
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
