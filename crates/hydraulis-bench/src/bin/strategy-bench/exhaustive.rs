//! Compares the search with every mix of a few schemes.

use std::io;

use hydraulis_bench::exhaustive::{AgainstMixes, Compared, Figures, LOST};
use hydraulis_bench::workload::{Kind, cut_into_batches, read_lengths, read_profile};
use hydraulis_bench::{Error, Result};
use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::spec::Cluster;

use crate::arguments::ExhaustiveArguments;
use crate::say;

pub(crate) fn run(arguments: &ExhaustiveArguments) -> Result<()> {
    row("profile", "gpus", "kind", &Figures::HEADER);
    let mut every = Figures::default();
    for name in &arguments.profiles {
        let profile = read_profile(name)?;
        for &gpus in &arguments.gpus {
            let cluster = Cluster::new(gpus, profile.hardware.gpus_per_node)?;
            let against_mixes = AgainstMixes::new(&profile, &cluster, arguments.schemes)?;
            let longest = against_mixes.search().longest_admitted().min(Tokens(arguments.longest));
            for (kind, batches) in batches(arguments, gpus, longest)? {
                let mut figures = Figures::default();
                for (index, batch) in batches.iter().enumerate() {
                    let compared = against_mixes.plan(batch)?;
                    figures.add(&compared);
                    if arguments.verbose {
                        report(&kind, index, &compared);
                    }
                }
                row(name, &gpus.to_string(), &kind, &figures.row());
                every.join(&figures);
            }
        }
    }
    row("all", "", "", &every.row());
    Ok(())
}

/// The batches of each kind for a cluster.
fn batches(arguments: &ExhaustiveArguments, gpus: u32, longest: Tokens) -> Result<Vec<(String, Vec<Batch>)>> {
    let tokens = arguments.tokens_per_gpu * u64::from(gpus);
    let named = |kind: &&Kind| arguments.kinds.is_empty() || arguments.kinds.iter().any(|name| name == kind.name);
    let drawn = Kind::ALL
        .iter()
        .filter(named)
        .map(|kind| Ok((kind.name.to_owned(), kind.batches(arguments.seed, tokens, arguments.count, longest)?)));
    let mut kinds = drawn.collect::<Result<Vec<_>>>()?;
    if let Some(path) = &arguments.lengths {
        let most = i64::try_from(longest.0).unwrap_or(i64::MAX);
        let lengths = read_lengths(path)?.into_iter().map(|length| length.min(most));
        kinds.push(("file".into(), cut_into_batches(lengths, tokens, arguments.count)?));
    }
    if kinds.is_empty() { Err(Error::WorkloadEmpty) } else { Ok(kinds) }
}

fn report(kind: &str, index: usize, compared: &Compared) {
    let (plan, (mix, ms)) = (&compared.plan, &compared.best);
    let ratio = compared.ratio();
    if ratio > 1.0 + LOST {
        let (found, found_ms, gap) = (&plan.strategy, plan.iteration_ms.0, 100.0 * plan.gap());
        let line =
            format!("  {kind} {index}: {ratio:.4} {found} {found_ms:.1} ms, gap {gap:.2} %; {mix} {:.1} ms", ms.0);
        say(&mut io::stdout(), &line);
    }
}

fn row(profile: &str, gpus: &str, kind: &str, cells: &[impl AsRef<str>; 8]) {
    let cells: Vec<String> = cells.iter().map(|cell| format!("{:>8}", cell.as_ref())).collect();
    say(&mut io::stdout(), &format!("{profile:<18} {gpus:>4} {kind:<18} {}", cells.join(" ")));
}
