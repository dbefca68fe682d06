//! The command line and its values.

use std::fs;
use std::path::PathBuf;

use clap::{ArgGroup, Parser};
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostModel;
use hydraulis_core::spec::{Cluster, LinkRates, MemoryRule, Strategy};

use crate::error::{Error, Result};
use crate::planner_under_test::Name;
use crate::workload::{Lengths, read_batches, read_profile};

/// The name of standard output on the command line.
pub(crate) const STDOUT: &str = "-";

/// Larger than any training run, so that a typing error stops here and not in an allocation.
const MAX_TOKENS: u64 = 10_000_000_000;

/// Compare planners on the same batches.
///
/// Prints the planning time of each planner and the time of its planned iterations, as ratios to the first planner. The
/// exit code is 1 if a plan breaks a promise, and 2 if an argument is wrong.
#[derive(Debug, Parser)]
#[command(version, group = ArgGroup::new("workload").required(true).args(["batches", "lengths"]))]
pub(crate) struct Arguments {
    /// Cost profile: a preset's name, or the path of a JSON file; ,cp after it adds derived context degrees
    #[arg(long, value_name = "NAME|FILE")]
    profile: String,
    /// GPUs of the cluster
    #[arg(long)]
    gpus: u32,
    /// GPUs of a node [default: the profile's]
    #[arg(long)]
    gpus_per_node: Option<u32>,
    /// Memory rule for every planner: `per_micro_batch` limits each micro-batch by itself, `in_flight` any consecutive
    /// micro-batches that a pipeline holds at once
    #[arg(long, value_name = "per_micro_batch|in_flight", default_value_t)]
    memory: MemoryRule,
    /// JSON file: an array with an array of lengths for each batch
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens_per_batch", "count", "seed"])]
    batches: Option<PathBuf>,
    /// Text file with one length per line, read in order, or a distribution to draw from
    #[arg(long, value_name = "FILE|lognormal:MU,SIGMA,MAX", requires = "tokens_per_batch")]
    lengths: Option<Lengths>,
    /// Tokens at which a batch is complete; its last sequence stays whole
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..=MAX_TOKENS))]
    tokens_per_batch: Option<u64>,
    /// Number of batches
    #[arg(long, value_name = "K", default_value_t = 100)]
    count: usize,
    /// Seed of drawn lengths [default: 0]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Token limit to which longer sequences are cut
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(i64).range(1..))]
    longest: Option<i64>,
    /// Strategies for hydraulis and paper to choose from [default: the profile's]
    ///
    /// Separated by ';', as in `4x<tp16>;1x<tp16>+12x<tp4>`, or in a text file with one or more on each line.
    #[arg(long, value_name = "LIST|FILE")]
    strategies: Option<String>,
    /// Count transfers of parameters and gradients too: gigabytes (1e9 bytes) a second between each node and the
    /// others, between each GPU and the others of its node [default: 200], and microseconds per message [default: 10]
    #[arg(long, value_name = "NODE[,GPU[,MESSAGE]]")]
    pub(crate) link: Option<LinkRates>,
    /// Planners to compare; the first is the reference
    #[arg(long = "planner", value_name = "NAME[,NAME...]", value_delimiter = ',', required = true)]
    planners: Vec<Name>,
    /// File for one JSON line per batch and planner, in addition to the table; '-' writes them to standard output in
    /// place of the table
    #[arg(long, value_name = "OUT")]
    pub(crate) json: Option<String>,
}

impl Arguments {
    /// The profile's costs on the cluster.
    pub(crate) fn cost(&self) -> Result<CostModel> {
        let profile = read_profile(&self.profile)?;
        let cluster = Cluster::new(self.gpus, self.gpus_per_node.unwrap_or(profile.hardware.gpus_per_node))?;
        Ok(CostModel::new(profile, cluster).with_memory(self.memory))
    }

    /// The batches of the run.
    pub(crate) fn batches(&self) -> Result<Vec<Batch>> {
        match (&self.batches, &self.lengths) {
            (Some(path), _) => read_batches(path, self.longest),
            (None, Some(lengths)) => {
                lengths.batches(self.tokens_per_batch.unwrap_or_default(), self.count, self.seed, self.longest)
            }
            (None, None) => Err(Error::WorkloadEmpty),
        }
    }

    /// The strategies given, if any; an argument without `<` is a file.
    pub(crate) fn strategies(&self) -> Result<Option<Vec<Strategy>>> {
        let Some(given) = &self.strategies else { return Ok(None) };
        let text = if given.contains('<') { given.clone() } else { read(given)? };
        let names = text.split([';', '\n']).map(str::trim).filter(|name| !name.is_empty());
        Ok(Some(names.map(str::parse).collect::<hydraulis_core::Result<_>>()?))
    }

    /// The planners, each once.
    pub(crate) fn planners(&self) -> Vec<Name> {
        let mut planners: Vec<Name> = Vec::new();
        for &name in &self.planners {
            if !planners.contains(&name) {
                planners.push(name);
            }
        }
        planners
    }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::FileUnreadable { path: path.into(), why: error.to_string() })
}
