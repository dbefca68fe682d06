//! Static tuning problems of other systems, solved by the core and judged by each system's own cost formula.
//!
//! A file is a JSON document; its keys tell the kind. Each instance is read and checked by itself: a wrong one is refused by its
//! name, with a code and a message, and the others are solved.
//!
//! | key | kind | problem |
//! |---|---|---|
//! | `instances` with `mem_per_layer` | `layer_choice` | an option for each layer under a memory limit (Galvatron) |
//! | `mem_mb` with `cases` | `sharding` | sharded or replicated attention and MLP of each layer (OSDP) |
//! | `chains` | `recomputation` | recomputation in a chain of layers (Rotor) |
//! | `runs` with `used_devices_sr` | `stragglers` | groups, pipelines, layers and micro-batches on slow ranks (Malleus) |
//! | `switch_cases` | `reshard` | senders of the slices that a change of layouts moves (HSPMD) |
//! | `exact_planner_instances` | `sequence_groups` | groups of ranks and their sequences (`FlexSP`) |
//! | `common_inputs` with `cases`, or `computation` with `hardware` | `whole_search` | degrees, layer options, stages, micro-batches and batch (Galvatron) |
//! | `profile_llama31_8b_32xH100` or other `profile_...` | `packing_groups` | context degree and recomputation by length (HBP) |

mod exact_groups;
mod greedy_groups;
mod layer_choice;
mod packing_groups;
mod reading;
mod recomputation;
mod reshard;
mod senders;
mod sequence_groups;
mod sharding;
mod straggler_placing;
mod straggler_sets;
mod straggler_settings;
mod stragglers;
mod whole_search;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use crate::{Error, Result};

/// A problem with its solver.
pub struct Instance {
    /// Name of the instance within its file.
    pub name: String,
    /// The reference's objective; none if the file states none, or states that the instance is infeasible.
    pub reference: Option<f64>,
    /// Whether a greater objective is better, such as a throughput.
    pub is_maximised: bool,
    solve: Box<dyn Fn() -> Solved>,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("name", &self.name).field("reference", &self.reference).finish_non_exhaustive()
    }
}

/// The objective of a solution and the solution itself as JSON, or the reason why there is none.
pub type Solved = std::result::Result<(f64, Value), Refusal>;

/// The reason why an instance has no solution.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Code of the reason.
    pub code: String,
    /// Field, value, limit and remedy of an instance that is wrong itself; none for one that is infeasible.
    pub message: Option<String>,
}

impl Refusal {
    /// The reason of a solver that panicked.
    fn broken() -> Refusal {
        let message = "its solver broke off: this is a fault of the solver; report the instance";
        Refusal { code: "internal_error".to_owned(), message: Some(message.to_owned()) }
    }
}

impl From<&str> for Refusal {
    fn from(code: &str) -> Refusal {
        Refusal { code: code.to_owned(), message: None }
    }
}

impl From<String> for Refusal {
    fn from(code: String) -> Refusal {
        Refusal { code, message: None }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal { code: error.code().to_owned(), message: Some(error.to_string()) }
    }
}

/// The line of one instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Name of the instance.
    pub name: String,
    /// Objective of the solution; none if there is none.
    pub objective: Option<f64>,
    /// The reference's objective.
    pub reference: Option<f64>,
    /// Whether a solution exists.
    pub feasible: bool,
    /// Whether a greater objective is better.
    pub is_maximised: bool,
    /// Time of the solver.
    pub ms: f64,
    /// The code of the reason why no solution exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Name, field, value, limit and remedy of an instance that is wrong itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The solution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub solution: Option<Value>,
}

impl Instance {
    fn new(name: String, reference: Option<f64>, solve: impl Fn() -> Solved + 'static) -> Instance {
        Instance { name, reference, is_maximised: false, solve: Box::new(solve) }
    }

    /// An instance that is wrong itself.
    fn refused(name: String, error: Error) -> Instance {
        Instance::new(name, None, move || Err(error.clone().into()))
    }

    /// Solves the instance; a solver that panics is an error of this instance alone.
    pub fn solved(&self) -> Record {
        let start = Instant::now();
        let solved = catch_unwind(AssertUnwindSafe(&self.solve)).unwrap_or_else(|_| Err(Refusal::broken()));
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let (objective, solution, error) = match solved {
            Ok((objective, solution)) => (Some(objective), Some(solution), None),
            Err(refusal) => (None, None, Some(refusal)),
        };
        let message = error.as_ref().and_then(|refusal| refusal.message.as_ref());
        Record {
            name: self.name.clone(),
            objective,
            reference: self.reference,
            feasible: objective.is_some(),
            is_maximised: self.is_maximised,
            ms,
            message: message.map(|message| format!("instance '{}': {message}", self.name)),
            error: error.map(|refusal| refusal.code),
            solution,
        }
    }
}

impl Record {
    /// How much better than the reference the solution is, as a share of the reference: negative if it is worse; none
    /// without a reference or a solution.
    pub fn gain(&self) -> Option<f64> {
        let (own, reference) = (self.objective?, self.reference?);
        let gain = if self.is_maximised { own / reference - 1.0 } else { 1.0 - own / reference };
        Some(if reference.total_cmp(&own).is_eq() { 0.0 } else { gain })
    }
}

/// The instances of a document; `path` names it in errors. Batches without lengths of their own take theirs from
/// `lengths` in order.
pub fn instances(path: &str, text: &str, lengths: &[i64]) -> Result<Vec<Instance>> {
    let refused = |why: String| Error::InstancesFile { path: path.to_owned(), why };
    let document: Value = serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
    let has = |key: &str| document.get(key).is_some();
    let read = if whole_search::is_kind(&document) {
        whole_search::instances(path, &document)
    } else if has("switch_cases") {
        reshard::instances(&document)
    } else if has("chains") {
        recomputation::instances(&document)
    } else if has("mem_mb") && has("cases") {
        sharding::instances(&document)
    } else if has("runs") {
        stragglers::instances(&document)
    } else if has("exact_planner_instances") {
        sequence_groups::instances(&document, lengths)
    } else if has("instances") {
        layer_choice::instances(&document)
    } else if packing_groups::is_kind(&document) {
        Ok(packing_groups::instances(&document))
    } else {
        return Err(refused("it has none of the keys that tell a kind of instances".to_owned()));
    };
    read.map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_solver_that_panics_is_an_error_of_its_instance() {
        let record = Instance::new("a".to_owned(), Some(1.0), || panic!("a fault")).solved();
        assert_eq!((record.error.as_deref(), record.feasible), (Some("internal_error"), false));
        assert!(record.message.unwrap().starts_with("instance 'a': its solver broke off"));
    }
}
