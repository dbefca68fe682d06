//! Plans compared to stored ones: equal in debug and release builds, and on every machine.
//! `tests/core/test_golden.py` compares the plans of the release build that ships.
//!
//! A change of the planner that changes plans makes these tests fail. Each test then writes the current plans into
//! `target/tmp/golden`: look at `git diff --no-index` of that folder and `tests/it/golden`, and copy the intended
//! changes.

use std::fs;
use std::path::Path;

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::preset;
use hydraulis_core::lookahead::{Lookahead, plan_lookahead};
use hydraulis_core::plan::Plan;
use hydraulis_core::search::Planner;
use hydraulis_core::spec::Cluster;

/// Line width in columns.
const WIDTH: usize = 120;

/// Compares documents to the stored ones, by file name.
fn assert_stored(found: &[(&str, String)]) {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let now = Path::new(env!("CARGO_TARGET_TMPDIR")).join("golden");
    let mut changed = Vec::new();
    for (name, json) in found {
        let text = broken(json, 0) + "\n";
        if fs::read_to_string(stored.join(name)).ok().as_ref() != Some(&text) {
            fs::create_dir_all(&now).unwrap();
            fs::write(now.join(name), text).unwrap();
            changed.push(name);
        }
    }
    assert!(changed.is_empty(), "{changed:?} changed: compare {} with {}", stored.display(), now.display());
}

/// Breaks a document that is too long for one line into several; every character except white space stays.
fn broken(json: &str, indent: usize) -> String {
    let is_nested = json.starts_with(['{', '[']);
    if !is_nested || indent + json.len() < WIDTH {
        return json.to_owned();
    }
    let (open, inner, close) = (&json[..1], &json[1..json.len() - 1], &json[json.len() - 1..]);
    let pad = " ".repeat(indent + 2);
    let items = items(inner);
    let lines: Vec<String> = if items.iter().any(|item| item.contains(['{', '[']) || open == "{") {
        let item = |item: &&str| match item.split_once("\":").filter(|_| open == "{") {
            Some((key, value)) => format!("{pad}{key}\": {}", broken(value, indent + 2)),
            None => pad.clone() + &broken(item, indent + 2),
        };
        items.iter().map(item).collect()
    } else {
        filled(&items, &pad)
    };
    format!("{open}\n{}\n{}{close}", lines.join(",\n"), " ".repeat(indent))
}

/// Joins scalars into lines, as many as a line takes.
fn filled(items: &[&str], pad: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut().filter(|line| line.len() + 2 + item.len() < WIDTH) {
            Some(line) => line.extend([", ", item]),
            None => lines.push(format!("{pad}{item}")),
        }
    }
    lines
}

/// The parts between commas outside of inner brackets and strings.
fn items(inner: &str) -> Vec<&str> {
    let (mut depth, mut in_text, mut start) = (0, false, 0);
    let mut items = Vec::new();
    for (at, letter) in inner.char_indices() {
        match letter {
            '"' => in_text = !in_text,
            '{' | '[' if !in_text => depth += 1,
            '}' | ']' if !in_text => depth -= 1,
            ',' if !in_text && depth == 0 => {
                items.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&inner[start..]);
    items
}

#[test]
fn breaking_lines_changes_white_space_alone() {
    let json = format!("{{\"a\":[{}0],\"b, [\":\"<tp4,pp2>\",\"c\":{{}}}}", "100,".repeat(40));
    let text = broken(&json, 0);
    assert!(text.lines().count() > 5 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
    let bare = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
    assert_eq!(bare(&text), bare(&json));
    let (read, expected): (serde_json::Value, serde_json::Value) =
        (serde_json::from_str(&text).unwrap(), serde_json::from_str(&json).unwrap());
    assert_eq!(read, expected);
}

/// 400 lengths with a long tail, by integer arithmetic alone: no library function may round differently elsewhere.
fn lengths() -> Vec<i64> {
    let mut state = 12_345_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..400).map(|_| i64::try_from(1 + next() % (16 << (next() % 12))).unwrap()).collect()
}

fn planned(planner: &Planner, lengths: &[i64]) -> Plan {
    planner.plan(&Batch::new(lengths, None).unwrap()).unwrap()
}

/// The stored plans, in the order of their names.
fn plans() -> [Plan; 4] {
    let (large, small) = (Cluster::new(64, 8).unwrap(), Cluster::new(16, 8).unwrap());
    let listed = Planner::new(preset("llama-32b-a800").unwrap(), large.clone(), None).unwrap();
    let searching = Planner::search(preset("llama-32b-a800").unwrap(), large).unwrap();
    let on_few = Planner::search(preset("llama-7b-a800").unwrap(), small).unwrap();
    // <tp4> admits 7,808 tokens, <tp8> admits 21,888.
    let at_caps: Vec<i64> = (0..90).map(|index| [7_808, 21_888, 3_904, 7_809][index % 4]).collect();
    [
        planned(&listed, &lengths()),
        planned(&searching, &lengths()),
        planned(&on_few, &lengths()),
        planned(&searching, &at_caps),
    ]
}

#[test]
fn fixed_batches_give_the_stored_plans() {
    let plans = plans();
    let piped = |plan: &Plan| plan.replicas.iter().any(|replica| replica.scheme.pp() > 1);
    assert!(plans.iter().any(piped), "some case must exercise pipelines");
    let names = ["32b-64-gpus-list.json", "32b-64-gpus-search.json", "7b-16-gpus-search.json", "32b-64-gpus-caps.json"];
    let found: Vec<(&str, String)> = names.into_iter().zip(plans.iter().map(Plan::to_json)).collect();
    assert_stored(&found);
}

/// Three batches with a long sequence each, which the lookahead gathers; a change of strategy has a cost.
#[test]
fn a_lookahead_gives_the_stored_plans() {
    let planner = Planner::search(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).unwrap();
    let batches: Vec<Batch> =
        lengths().chunks(134).map(|part| Batch::new(&[part, &[32_768][..]].concat(), None).unwrap()).collect();
    let lookahead = Lookahead { switch: Millis(20.0), max_delay: 2, ..Lookahead::new(&batches) };
    let plan = plan_lookahead(&planner, &lookahead, &|| Ok(()), &mut |_| Ok(())).unwrap();
    assert!(plan.moved() > 0);
    let steps = plan.steps.iter().map(|step| {
        let members: Vec<String> =
            step.members.iter().map(|member| format!("[{},{}]", member.batch, member.sequence)).collect();
        let switch = step.switch_ms.0;
        format!("{{\"plan\":{},\"members\":[{}],\"switch_ms\":{switch:?}}}", step.plan.to_json(), members.join(","))
    });
    assert_stored(&[("lookahead.json", format!("[{}]", steps.collect::<Vec<_>>().join(",")))]);
}
