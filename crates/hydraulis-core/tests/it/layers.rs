//! The permitted dependencies between the core's modules, and the facilities that none of them may use.

use std::fs;
use std::path::{Path, PathBuf};

/// Uses against the order: `error` and `spec` name each other, since an error contains the refused scheme.
const EXCEPTIONS: [(&str, &str); 2] = [("error", "spec"), ("error", "units")];

/// The judge of plans. Every module that it must share no code with is declared after it.
const JUDGE: &str = "check";
const MAKERS: [&str; 4] = ["capacity", "bound", "construct", "search"];

/// The modules that the judge may use.
const JUDGE_SEES: [&str; 10] =
    ["error", "spec", "batch", "cost", "units", "pipeline", "timing", "layout", "plan", JUDGE];

/// The parts of the plan module that the judge may use: the value alone.
const OF_THE_PLAN: [&str; 3] = [
    "use crate::plan::{BoundKind, Candidate, Outcome, Plan, ReplicaPlan};",
    "use crate::plan::{Plan, PlannedTransfers, ReplicaPlan};",
    "use crate::plan::ReplicaPlan;",
];

/// The modules of searches. Their limits are in `spec/search_budget`.
const SEARCHES: [&str; 8] = ["linear", "capacity", "bound", "construct", "search", "propose", "lookahead", "batching"];

/// Numbers of the searches that are no limits: tolerances of rounding, contracts of a value, refused
/// inputs, and the choice between two forms of the same values.
const NO_LIMITS: [&str; 15] = [
    "ROUNDING",
    "MARGIN",
    "BETTER",
    "WHOLE",
    "SHORTER",
    "TOLERANCE_PARTS",
    "LEAST_PIVOT",
    "NEGATIVE",
    "MAX_MICRO_BATCHES",
    "MAX_REPLICAS",
    "MAX_CAP",
    "MAX_COST",
    "MAX_WINDOW",
    "MAX_SEQUENCES",
    "TOKENS_PER_SEQUENCE",
];

/// The core prints nothing, opens no file, and depends on no clock, thread or overlapped state.
const FORBIDDEN: [&str; 12] = [
    "println!",
    "print!",
    "dbg!",
    "std::fs",
    "std::env",
    "std::io",
    "std::net",
    "std::thread",
    "std::process",
    "SystemTime",
    "Instant",
    "HashMap",
];

struct Source {
    /// Path below `src`.
    path: PathBuf,
    text: String,
}

impl Source {
    /// The top module the file belongs to.
    fn module(&self) -> String {
        let first = self.path.iter().next().unwrap();
        Path::new(first).file_stem().unwrap().to_str().unwrap().to_owned()
    }

    /// Lines without comments, up to the unit tests.
    fn lines(&self) -> impl Iterator<Item = &str> {
        let lines = self.text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
        lines.map(|line| line.split("//").next().unwrap_or_default())
    }

    /// Every module named by a path from the root of the crate.
    fn used(&self) -> Vec<String> {
        let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
        self.lines().flat_map(|line| line.split("crate::").skip(1).map(name).collect::<Vec<_>>()).collect()
    }
}

/// Every Rust file below `src`.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source { path: path.strip_prefix(&root).unwrap().to_owned(), text });
            }
        }
    }
    assert!(found.len() >= 30, "{} files", found.len());
    found
}

/// The modules in the order in which lib.rs declares them.
fn declared() -> Vec<String> {
    let lines = include_str!("../../src/lib.rs").lines();
    let names = lines.filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    let names: Vec<String> = names.map(str::to_owned).collect();
    assert!(names.len() >= 10, "{names:?}");
    names
}

#[test]
fn a_module_uses_only_those_declared_before_it() {
    let order = declared();
    let place = |module: &str| order.iter().position(|name| name == module).unwrap();
    let mut seen = 0;
    let mut excused = Vec::new();
    for source in sources().iter().filter(|source| source.path != Path::new("lib.rs")) {
        let module = source.module();
        for used in source.used().iter().filter(|used| **used != module) {
            seen += 1;
            match EXCEPTIONS.iter().find(|(from, to)| *from == module && to == used) {
                Some(exception) => excused.push(exception),
                None => assert!(place(used) < place(&module), "{} uses {used}", source.path.display()),
            }
        }
    }
    assert!(seen >= 60, "{seen} uses");
    assert!(EXCEPTIONS.iter().all(|exception| excused.contains(&exception)), "an exception is used no more");
}

#[test]
fn the_judge_stands_before_the_makers() {
    let order = declared();
    let place = |module: &str| order.iter().position(|name| name == module).unwrap();
    for maker in MAKERS {
        assert!(place(JUDGE) < place(maker), "{maker} is declared before the judge, which might use it");
    }
    let sources = sources();
    let judge: Vec<&Source> = sources.iter().filter(|source| source.module() == JUDGE).collect();
    assert!(judge.len() >= 3, "{} files", judge.len());
    for file in judge {
        assert!(file.used().iter().all(|used| JUDGE_SEES.contains(&used.as_str())), "{:?}", file.used());
        let mut of_the_plan = file.lines().filter(|line| line.contains("crate::plan"));
        assert!(of_the_plan.all(|line| OF_THE_PLAN.contains(&line)));
        // The timeline of the planner's own transfers, in a module before the judge.
        assert!(file.lines().all(|line| !line.contains("StepTimeline") && !line.contains("super::")));
    }
}

#[test]
fn the_checker_of_lookaheads_shares_no_code_with_their_planner() {
    let sources = sources();
    let checker = sources.iter().find(|source| source.path == Path::new("lookahead/check.rs")).unwrap();
    let own: Vec<&str> = checker.lines().filter(|line| line.contains("crate::lookahead")).collect();
    assert_eq!(own, ["use crate::lookahead::{Lookahead, LookaheadPlan, Step, TOLERANCE_PARTS};"]);
    let plans: Vec<&str> = checker.lines().filter(|line| line.contains("crate::plan")).collect();
    assert_eq!(plans, [] as [&str; 0]);
    assert!(checker.lines().all(|line| !line.contains("super::")));
    assert!(checker.used().iter().all(|used| !MAKERS.contains(&used.as_str())));
}

#[test]
fn the_limits_of_a_search_are_in_its_budget() {
    let mut seen = Vec::new();
    for source in sources().iter().filter(|source| SEARCHES.contains(&source.module().as_str())) {
        for line in source.lines().filter(|line| line.contains('=')) {
            let Some((_, named)) = line.split_once("const ") else { continue };
            let Some((name, kind)) = named.split_once(": ") else { continue };
            let is_number = ["f64", "usize", "u64", "i64", "[("].iter().any(|number| kind.starts_with(number));
            // The width of a machine word.
            if is_number && !source.path.starts_with("batching/windows/bit_set.rs") {
                assert!(NO_LIMITS.contains(&name), "{}: {name}", source.path.display());
                seen.push(name.to_owned());
            }
        }
    }
    assert!(NO_LIMITS.iter().all(|name| seen.iter().any(|one| one == name)), "a constant is gone: {seen:?}");
}

#[test]
fn nothing_prints_opens_or_looks_at_a_clock() {
    let mut lines = 0;
    for source in sources() {
        for line in source.lines() {
            lines += 1;
            let found = FORBIDDEN.iter().find(|word| line.contains(**word));
            assert_eq!(found, None, "{}: {line}", source.path.display());
        }
    }
    assert!(lines >= 2_000, "{lines} lines");
}
