//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use hydraulis_bench::Result;
use hydraulis_bench::workload::{Lengths, read_profile};
use hydraulis_core::batch::Batch;
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{Cluster, LinkRates};

/// Measure the cost of a run's choice of strategies against a search for each batch.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Propose lists from the first half of the batches, and plan the other half over them
    Propose(ProposeArguments),
    /// Plan the batches in turn, with a limit on the number of distinct strategies
    Limit(LimitArguments),
    /// Plan several consecutive batches together, and let sequences move between them
    Lookahead(LookaheadArguments),
    /// Compare the search with every mix of a few schemes, on batches of many kinds
    Exhaustive(ExhaustiveArguments),
    /// Print the list of the paper's dynamic program, and the time to compute it
    Paper(PaperArguments),
}

/// A planner, and the batches of a run.
#[derive(Debug, Args)]
pub(crate) struct Workload {
    /// Cost profile: a preset's name, or the path of a JSON file
    #[arg(long, value_name = "NAME|FILE")]
    profile: String,
    /// GPUs of the cluster
    #[arg(long)]
    gpus: u32,
    /// Text file with one length per line, read in order, or a distribution to draw from
    #[arg(long, value_name = "FILE|lognormal:MU,SIGMA,MAX")]
    lengths: Lengths,
    /// Tokens at which a batch is complete; its last sequence stays whole
    #[arg(long, value_name = "T")]
    tokens_per_batch: u64,
    /// Number of batches
    #[arg(long, value_name = "K", default_value_t = 100)]
    count: usize,
    /// Seed of drawn lengths [default: 0]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Token limit to which longer sequences are cut
    #[arg(long, value_name = "TOKENS")]
    longest: Option<i64>,
}

#[derive(Debug, Args)]
pub(crate) struct ProposeArguments {
    #[command(flatten)]
    pub(crate) workload: Workload,
    /// Numbers of strategies of the lists to propose
    #[arg(
        long = "strategies",
        short = 'k',
        value_name = "K[,K...]",
        value_delimiter = ',',
        default_value = "1,2,3,5,8"
    )]
    pub(crate) counts: Vec<NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(crate) struct LimitArguments {
    #[command(flatten)]
    pub(crate) workload: Workload,
    /// Limits to try
    #[arg(long = "max-strategies", value_name = "N[,N...]", value_delimiter = ',', default_values_t = [2, 4, 8, 16])]
    pub(crate) limits: Vec<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct LookaheadArguments {
    #[command(flatten)]
    pub(crate) workload: Workload,
    /// Numbers of batches to plan together
    #[arg(long = "lookaheads", value_name = "N[,N...]", value_delimiter = ',', default_value = "1,4,8,16")]
    pub(crate) lookaheads: Vec<NonZeroUsize>,
    /// Most batches by which a sequence may be trained earlier or later than its own
    #[arg(long = "max-delay", value_name = "N[,N...]", value_delimiter = ',', default_values_t = [0, 1, 3])]
    pub(crate) delays: Vec<usize>,
    /// Milliseconds that a change of strategy takes
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub(crate) switch_ms: f64,
    /// Count transfers too: gigabytes (1e9 bytes) a second between each node and the others, between each GPU and the
    /// others of its node [default: 200], and microseconds per message [default: 10]
    #[arg(long, value_name = "NODE[,GPU[,MESSAGE]]")]
    pub(crate) link: Option<LinkRates>,
}

#[derive(Debug, Args)]
pub(crate) struct PaperArguments {
    #[command(flatten)]
    pub(crate) workload: Workload,
    /// GPUs between two rows of the table
    #[arg(long, value_name = "N_STEP", default_value_t = 4)]
    pub(crate) gpu_step: u32,
    /// Tokens between two columns of the table
    #[arg(long, value_name = "S_STEP", default_value_t = 1_024)]
    pub(crate) token_step: u64,
    /// Most tokens of a sequence to serve
    #[arg(long, value_name = "S")]
    pub(crate) context: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ExhaustiveArguments {
    /// Cost profiles: presets' names, or paths of JSON files
    #[arg(
        long = "profile",
        value_name = "NAME|FILE[,...]",
        value_delimiter = ',',
        default_value = "llama-32b-a800,llama-13b-a800,llama-7b-a800,llama-7b-a100-40g"
    )]
    pub(crate) profiles: Vec<String>,
    /// GPUs of the clusters
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', default_values_t = [16, 32, 64, 128])]
    pub(crate) gpus: Vec<u32>,
    /// Kinds of batches to draw [default: all]
    #[arg(long = "kind", value_name = "NAME", num_args = 1)]
    pub(crate) kinds: Vec<String>,
    /// Text file with one length per line: one more kind
    #[arg(long, value_name = "FILE")]
    pub(crate) lengths: Option<PathBuf>,
    /// Tokens of a batch for each GPU
    #[arg(long, value_name = "T", default_value_t = 3_125)]
    pub(crate) tokens_per_gpu: u64,
    /// Batches of each kind for each cluster
    #[arg(long, value_name = "K", default_value_t = 5)]
    pub(crate) count: usize,
    /// Seed of drawn lengths
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Token limit to which longer sequences are cut
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768)]
    pub(crate) longest: u64,
    /// Most schemes of a mix
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) schemes: usize,
    /// Print each batch on which a mix is shorter by more than 0.2 %
    #[arg(long)]
    pub(crate) verbose: bool,
}

impl Workload {
    /// A planner that searches.
    pub(crate) fn search(&self) -> Result<Planner> {
        let profile = read_profile(&self.profile)?;
        let cluster = Cluster::new(self.gpus, profile.hardware.gpus_per_node)?;
        Ok(Planner::search(profile, cluster)?)
    }

    /// The batches of the run.
    pub(crate) fn batches(&self) -> Result<Vec<Batch>> {
        self.lengths.batches(self.tokens_per_batch, self.count, self.seed, self.longest)
    }
}
