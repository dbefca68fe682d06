//! A plan in words: the strategy and its reasons, the work of each replica, and the obstacles to a shorter plan.

use std::fmt::Write;

use crate::cost::CostModel;
use crate::error::{Grouped, Result};
use crate::explain::memory::memory;
use crate::explain::recomputed::recomputed;
use crate::explain::wrapped::{table, wrapped};
use crate::plan::{BoundKind, Candidate, Outcome, Plan, ReplicaPlan, Scope, Stop, TIE};
use crate::spec::MemoryRule;
use crate::units::{Millis, Tokens};

/// Assumed error of a profile that does not state its own.
const USUAL_ERROR: f64 = 0.03;

/// Smallest gap that the text reports as a gap. The text writes gaps in percent with two decimals.
const LEAST_TOLD: f64 = 5e-5;

/// Largest number of strategies in an explanation. A list made from a profile's schemes may have hundreds.
const MOST_LISTED: usize = 12;

/// Pairs of the error of a profile's coefficients and the share by which the plan for that profile is longer than the
/// plan for the true coefficients. Each pair comes from six draws on lognormal batches. Other errors are interpolated
/// or extrapolated linearly.
const COST_OF_ERROR: [(f64, f64); 4] = [(0.0, 0.0), (0.03, 0.016), (0.05, 0.0265), (0.1, 0.035)];

/// A readable explanation of `plan` in plain text of at most 110 columns. A longer name stays whole.
pub fn explain(plan: &Plan) -> String {
    explained(plan, None)
}

/// The same, with the memory of the ranks, and the memory that they would take without recomputation, copies in host
/// memory and sharding.
///
/// It refuses a cost model of another cluster, or without the plan's schemes.
pub fn explain_with_memory(plan: &Plan, cost: &CostModel) -> Result<String> {
    Ok(explained(plan, Some(memory(plan, cost)?)))
}

fn explained(plan: &Plan, memory: Option<String>) -> String {
    let mut sections = vec![headline(plan), why_this_strategy(plan), replicas(plan)];
    sections.extend(recomputed(plan));
    sections.extend(memory);
    sections.push(what_bounds_it(plan));
    wrapped(&sections.join("\n\n")) + "\n"
}

fn headline(plan: &Plan) -> String {
    let (id, longest) = plan.batch.longest();
    let memory = match plan.memory {
        MemoryRule::PerMicroBatch => "",
        MemoryRule::InFlight => ", in-flight memory limit",
    };
    format!(
        "{}, {}, the longest {} (sequence {id})\n{} in nodes of {}{}, cost profile {}{memory}\n\nStrategy {}: {} ms an iteration{}",
        counted(plan.batch.len() as u64, "sequence"),
        counted(plan.batch.total_tokens().0, "token"),
        grouped(longest.0),
        counted(plan.cluster.gpus().into(), "GPU"),
        plan.cluster.gpus_per_node(),
        rates(plan),
        plan.profile,
        plan.strategy,
        millis(plan.iteration_ms.0),
        transfers(plan),
    )
}

/// The range of the ranks' rates, and the number of ranks without work; nothing if all ranks are alike.
fn rates(plan: &Plan) -> String {
    let Some(rates) = plan.cluster.rates() else { return String::new() };
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = rates.iter().copied().fold(0.0, f64::max);
    let idle = plan.positions().iter().filter(|position| position.is_none()).count();
    let range =
        if least < greatest { format!("rates {least:.2} to {greatest:.2}") } else { format!("rate {least:.2}") };
    format!(" and of {range}, {} idle", grouped(idle as u64))
}

fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

fn transfers(plan: &Plan) -> String {
    let Some(transfers) = plan.transfers else { return String::new() };
    format!(
        ",\n{} ms with transfers: {:.1} % of their {} ms are overlapped, {} MB cross between nodes",
        millis(transfers.step_ms.0),
        percent(transfers.overlapped()),
        millis(transfers.alone_ms.0),
        grouped(transfers.moved_bytes / 1_000_000),
    )
}

fn why_this_strategy(plan: &Plan) -> String {
    let number = plan.candidates.len();
    let mut lines = vec![match plan.scope {
        Scope::List => format!("Chosen among {number} strategies:"),
        Scope::Any => format!("Found by a search that planned {number} strategies:"),
    }];
    let listed = most_telling(&plan.candidates);
    let width = listed.iter().map(|entry| entry.strategy.to_string().len()).max().unwrap_or(0).min(70);
    for entry in &listed {
        let outcome = match entry.outcome {
            Outcome::Planned(ms) if entry.strategy == plan.strategy => {
                format!("{} ms, chosen{}", millis(ms.0), why_not_the_least(plan))
            }
            Outcome::Planned(ms) => {
                format!("{} ms, {:+.1} %", millis(ms.0), percent(ms.0 / plan.step_ms().0 - 1.0))
            }
            Outcome::Pruned(ms) => format!("not tried: cannot be below {} ms", millis(ms.0)),
            Outcome::TooNarrow(limit) => format!("too narrow: admits {} tokens at most", grouped(limit.0)),
        };
        lines.push(format!("  {:width$}  {outcome}", entry.strategy.to_string()));
    }
    if number > listed.len() {
        lines.push(format!("  and {} that are longer, not tried for that, or too narrow", number - listed.len()));
    }
    lines.join("\n")
}

/// The reason for choosing a strategy that is not the shortest. Strategies within a tie of the shortest count as
/// equally good.
fn why_not_the_least(plan: &Plan) -> String {
    let planned = plan.candidates.iter().filter_map(|entry| match entry.outcome {
        Outcome::Planned(ms) => Some(ms),
        _ => None,
    });
    let is_tied = |least: Millis| least < plan.step_ms() && plan.step_ms() <= least * (1.0 + TIE);
    if !planned.min().is_some_and(is_tied) {
        return String::new();
    }
    let less =
        if plan.transfers.is_some() { "moves fewer bytes, or takes less GPU time" } else { "takes less GPU time" };
    format!(": within {:.1} % of the shortest, and {less}", 100.0 * TIE)
}

/// All of `candidates` if they are at most `MOST_LISTED`, otherwise the most informative ones. Planned strategies come
/// before strategies that were not tried, and those before too narrow ones; in each class the best comes first.
fn most_telling(candidates: &[Candidate]) -> Vec<&Candidate> {
    let mut entries: Vec<&Candidate> = candidates.iter().collect();
    if entries.len() > MOST_LISTED {
        entries.sort_by(|one, other| {
            let ((one_kind, one_value), (other_kind, other_value)) = (merit(&one.outcome), merit(&other.outcome));
            one_kind.cmp(&other_kind).then(one_value.total_cmp(&other_value))
        });
        entries.truncate(MOST_LISTED);
    }
    entries
}

/// Sort key of an outcome. A smaller key is better.
fn merit(outcome: &Outcome) -> (u8, f64) {
    match outcome {
        Outcome::Planned(ms) => (0, ms.0),
        Outcome::Pruned(ms) => (1, ms.0),
        Outcome::TooNarrow(limit) => (2, -limit.as_f64()),
    }
}

fn replicas(plan: &Plan) -> String {
    let header = ["replica", "scheme", "ranks", "sequences", "micro-batches", "tokens", "fill", "ms", "bubble", "idle"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(plan.replicas.iter().enumerate().map(|(index, replica)| row(index, replica, plan).to_vec()));
    let mut text = table(&rows) + "\n";
    let fill = match plan.memory {
        MemoryRule::PerMicroBatch => "what its micro-batches may hold",
        MemoryRule::InFlight => "the caps of its micro-batches",
    };
    let _ = write!(
        text,
        "fill: tokens, of {fill}; bubble: share of its time that its stages wait;\n\
         idle: share of the iteration after its end"
    );
    let placed: usize = plan.replicas.iter().map(|replica| replica.ranks.len()).sum();
    let unused = u64::from(plan.cluster.gpus()).saturating_sub(placed as u64);
    if unused > 0 {
        let _ = write!(text, "; {} of the cluster in no replica", counted(unused, "GPU"));
    }
    text
}

fn row(index: usize, replica: &ReplicaPlan, plan: &Plan) -> [String; 10] {
    let tokens = replica.tokens(&plan.batch);
    let room = Tokens(replica.cap_tokens.0.saturating_mul(replica.micro_batches.len() as u64));
    let share =
        |part: f64, whole: f64| if whole > 0.0 { format!("{:.1} %", percent(part / whole)) } else { "-".into() };
    let (busy, ends, iteration) = (replica.busy_ms.0, replica.predicted_ms.0, plan.iteration_ms.0);
    [
        index.to_string(),
        scheme(replica),
        ranks(&replica.ranks),
        grouped(replica.sequences() as u64),
        replica.micro_batches.len().to_string(),
        grouped(tokens.0),
        share(tokens.as_f64(), room.as_f64()),
        millis(ends),
        share(ends - busy, ends),
        share(iteration - ends, iteration),
    ]
}

/// The scheme and the kind of its context parallelism.
fn scheme(replica: &ReplicaPlan) -> String {
    replica.context.map_or_else(|| replica.scheme.to_string(), |kind| format!("{} {kind}", replica.scheme))
}

fn what_bounds_it(plan: &Plan) -> String {
    let bound = plan.lower_bound;
    let reason = match bound.kind {
        BoundKind::Sequence(id) => {
            let tokens = grouped(plan.batch.tokens()[id].0);
            format!("sequence {id} ({tokens} tokens) alone takes that long wherever it is admitted")
        }
        BoundKind::Work => {
            let transfers =
                if plan.transfers.is_some() { " with the transfers that are certain to be exposed" } else { "" };
            format!("the work of all sequences, divided evenly over the replicas, takes that long{transfers}")
        }
    };
    format!(
        "No plan over {} is below {} ms:\n{reason}.\nThis plan is within {:.2} % of that; its dispatch was refined {}.{}",
        match plan.scope {
            Scope::List => "these strategies",
            Scope::Any => "any strategies of this profile",
        },
        millis(bound.ms.0),
        100.0 * plan.gap().max(0.0),
        match plan.stop {
            Stop::LocalOptimum => "until no move or swap helped",
            Stop::WorkBudget => "until its budget of work was used up",
        },
        what_is_reliable(plan),
    )
}

/// A comparison of the gap with the profile's own error, and the plan's extrapolation beyond the measurements.
fn what_is_reliable(plan: &Plan) -> String {
    let reliabilities = || plan.replicas.iter().filter_map(|replica| replica.reliability);
    let stated = reliabilities().map(|reliability| reliability.error).max_by(f64::total_cmp);
    let error = stated.unwrap_or(USUAL_ERROR);
    let mut text = String::new();
    // A gap that the text does not report as a gap leaves nothing to gain.
    if plan.gap() > LEAST_TOLD && plan.gap() < cost_of(error) {
        let whose = if stated.is_some() { "The profile's times are" } else { "Times of a profile are usually" };
        let _ = write!(
            text,
            "\n{whose} {:.1} % off, which alone lengthens a plan by {:.1} %, more than this gap:\n\
             a plan at the bound may be no faster on the cluster.",
            percent(error),
            percent(cost_of(error))
        );
    }
    if let Some(extrapolation) = plan.extrapolation() {
        let _ = write!(text, "\n{extrapolation}");
    }
    text
}

/// The share by which a profile's error makes a plan longer.
fn cost_of(error: f64) -> f64 {
    let segment = COST_OF_ERROR.windows(2).find(|pair| error <= pair[1].0).unwrap_or(&COST_OF_ERROR[2..]);
    let [(from, low), (to, high)] = [segment[0], segment[1]];
    low + (high - low) * (error - from) / (to - from)
}

/// The ranks as text. Consecutive ranks are written as a range from the first to the last.
fn ranks(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let written = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    written.collect::<Vec<_>>().join(",")
}

/// A share in percent, for output with one decimal. Sums have rounding errors, and no share may be written as `-0.0`.
fn percent(share: f64) -> f64 {
    let percent = 100.0 * share;
    if percent.abs() < 0.05 { 0.0 } else { percent }
}

/// A number with separated thousands.
fn grouped(number: u64) -> String {
    Grouped(number).to_string()
}

fn millis(ms: f64) -> String {
    let decimals = if ms >= 100.0 { 0 } else { 2 };
    let text = format!("{ms:.decimals$}");
    match text.split_once('.') {
        Some(_) => text,
        None => grouped(text.parse().unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_an_error_is_interpolated_between_measurements() {
        for (error, cost) in [(0.0, 0.0), (0.015, 0.008), (0.03, 0.016), (0.05, 0.0265), (0.1, 0.035), (0.2, 0.052)] {
            assert!((cost_of(error) - cost).abs() < 1e-12, "{error}");
        }
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!((millis(4_981.6), millis(99.5)), ("4,982".into(), "99.50".into()));
        assert_eq!(
            format!("{:.1}, {:+.1}, {:.1}", percent(-1e-15), percent(-4e-4), percent(-0.031)),
            "0.0, +0.0, -3.1"
        );
        assert_eq!(ranks(&[8, 9, 10]), "8-10");
        assert_eq!(ranks(&[0, 1, 4, 5]), "0-1,4-5");
        assert_eq!(ranks(&[3, 5, 4, 7, 8, 9]), "3,5,4,7-9");
        assert_eq!((counted(1, "GPU"), counted(2_000, "token")), ("1 GPU".into(), "2,000 tokens".into()));
    }
}
