//! `plan-bench` from the command line.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const CLUSTER: [&str; 4] = ["--profile", "llama-32b-a800", "--gpus", "64"];
const DRAWN: [&str; 8] =
    ["--lengths", "lognormal:6.2,1.2,32768", "--tokens-per-batch", "50000", "--count", "3", "--seed", "5"];

fn plan_bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plan-bench")).args(arguments).output().unwrap()
}

fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn one_json_line_for_each_batch_and_planner() {
    let every = "hydraulis,search,paper,static-balanced,static-first-fit,static-sorted,buckets,\
                 flexible-groups,longest-first,karmarkar-karp";
    let records = lines(&plan_bench(&[&CLUSTER[..], &DRAWN, &["--planner", every, "--json", "-"]].concat()));
    assert_eq!(records.len(), 3 * 10);
    for (place, record) in records.iter().enumerate() {
        assert_eq!(record["batch"], place / 10);
        assert_eq!(record["planner"], every.split(',').nth(place % 10).unwrap());
        assert_eq!(record["status"], "ok");
        assert!(record["transfer_ms"].is_null() && record["step_ms"].is_null());
        assert!(record["tokens"].as_u64().unwrap() >= 50_000);
        assert!(record["longest"].as_u64() <= record["tokens"].as_u64());
        assert!(record["sequences"].as_u64() >= record["micro_batches"].as_u64());
        assert!(record["plan_ms"].as_f64().unwrap() > 0.0);
        assert!(record["strategy"].as_str().unwrap().contains("x<"));
        let iteration = record["iteration_ms"].as_f64().unwrap();
        match record["lower_bound_ms"].as_f64() {
            Some(bound) => {
                assert!(place % 10 < 2 && bound <= iteration);
                assert!((iteration / bound - 1.0 - record["gap"].as_f64().unwrap()).abs() < 1e-9);
            }
            None => assert!(place % 10 >= 2 && record["gap"].is_null()),
        }
        assert_eq!(record.as_object().unwrap().len(), 15);
    }
}

#[test]
fn the_in_flight_limit_admits_longer_sequences_for_every_planner() {
    let batches = file("exact_batches.json", "[[100000, 90000, 90000, 90000, 60000, 30000, 500, 20], [110000, 7]]");
    let planners = ["--planner", "search,hydraulis,paper,static-balanced,static-first-fit,longest-first"];
    let given = [&CLUSTER[..], &["--batches", &batches, "--strategies", "2x<tp8,pp4>"], &planners].concat();
    let refused = plan_bench(&given);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let records = lines(&plan_bench(&[&given[..], &["--memory", "in_flight", "--json", "-"]].concat()));
    assert_eq!(records.len(), 12);
    for record in &records {
        assert_eq!(record["status"], "ok", "{record}");
        assert!(record["strategy"].as_str().unwrap().contains("<tp8,pp4>"), "{record}");
    }
}

#[test]
fn links_add_transfers_to_every_iteration() {
    let planners = ["--planner", "search,static-balanced,flexible-groups,buckets", "--link", "200"];
    let given = [&CLUSTER[..], &DRAWN, &planners].concat();
    let records = lines(&plan_bench(&[&given[..], &["--json", "-"]].concat()));
    assert_eq!(records.len(), 12);
    for record in &records {
        let time = |field: &str| record[field].as_f64().unwrap();
        assert!((time("iteration_ms") + time("transfer_ms") - time("step_ms")).abs() < 1e-6);
        // Inside a node alone a layer takes 1.3 ms; no layout of this model takes longer than twice 325 ms plus its
        // messages, and each step of an answer may have its own layout. Some transfer time is overlapped, and never all
        // of it.
        let layouts = record["strategy"].as_str().unwrap().split(';').count();
        let most = 700.0 * f64::from(u32::try_from(layouts).unwrap());
        assert!((100.0..=most).contains(&time("transfer_alone_ms")), "{record}");
        assert!((1.0..0.9 * time("transfer_alone_ms")).contains(&time("transfer_ms")), "{record}");
    }
    let table = String::from_utf8(plan_bench(&given).stdout).unwrap();
    assert_eq!(table.lines().filter(|line| line.starts_with("static-balanced")).count(), 2, "{table}");
}

#[test]
fn the_command_prints_a_table_and_writes_a_file() {
    let path = file("records.jsonl", "");
    let planners = ["--planner", "static-balanced,longest-first", "--json", &path];
    let output = plan_bench(&[&CLUSTER[..], &DRAWN, &planners].concat());
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("3 batches; ratios to static-balanced"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("longest-first")), "{table}");
    assert_eq!(fs::read_to_string(path).unwrap().lines().count(), 6);
}

#[test]
fn batches_and_lengths_come_from_files() {
    let batches = file("batches.json", "[[30000, 500, 20], [7]]");
    let list = file("strategies.txt", "4x<tp16>\n1x<tp16>+12x<tp4>\n");
    let given = ["--batches", &batches, "--strategies", &list, "--planner", "hydraulis", "--json", "-"];
    let records = lines(&plan_bench(&[&CLUSTER[..], &given].concat()));
    let longest: Vec<u64> = records.iter().map(|record| record["longest"].as_u64().unwrap()).collect();
    assert_eq!(longest, [30_000, 7]);

    let lengths = file("lengths.txt", "40000\n\n500\n600\n700\n");
    let given = ["--lengths", &lengths, "--tokens-per-batch", "1000", "--count", "2", "--longest", "32768"];
    let planned = ["--strategies", "4x<tp16>", "--planner", "paper", "--json", "-"];
    let records = lines(&plan_bench(&[&CLUSTER[..], &given, &planned].concat()));
    let tokens: Vec<u64> = records.iter().map(|record| record["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [32_768, 1_100]);
    assert!(records.iter().all(|record| record["strategy"] == "4x<tp16>"));
}

#[test]
fn wrong_arguments_are_named_with_exit_code_2() {
    let lengths = file("wrong_lengths.txt", "500\nmany\n");
    let few = file("few_lengths.txt", "500\n");
    let nested = file("wrong_batches.json", "[1, 2]");
    let empty = file("no_batches.json", "[]");
    let long = file("long_batches.json", "[[500], [20, 50000]]");
    let planner = ["--planner", "hydraulis"];
    let profile = hydraulis_core::cost::preset("llama-32b-a800").unwrap().to_json();
    let start = profile.find("  \"model\": {").expect("the profile has its model");
    let end = profile.find("  \"dtype\"").expect("the type follows the model");
    let without_model = file("without_model.json", &[&profile[..start], &profile[end..]].concat());
    let from_lengths = |path| [&CLUSTER[..], &["--lengths", path, "--tokens-per-batch", "9000"], &planner].concat();
    let from_batches = |path| [&CLUSTER[..], &["--batches", path], &planner].concat();
    let with = |more: &'static [&'static str]| [&CLUSTER[..], &DRAWN, &planner, more].concat();
    let cases: [(&str, Vec<&str>); 17] = [
        ("data_file_invalid", from_lengths(&lengths)),
        ("option_invalid", from_lengths(&few)),
        ("file_unreadable", from_lengths("no/such/file")),
        ("option_invalid", [&from_lengths(&few)[..], &["--seed", "1"]].concat()),
        ("data_file_invalid", from_batches(&nested)),
        ("batch_empty", from_batches(&empty)),
        ("sequence_too_long", from_batches(&long)),
        ("sequence_too_long", [&CLUSTER[..], &["--batches", &long, "--planner", "static-sorted"]].concat()),
        ("profile_unknown", [&["--profile", "llama-1t", "--gpus", "64"][..], &DRAWN, &planner].concat()),
        ("argument_invalid", [&["--profile", "llama-32b-a800", "--gpus", "60"][..], &DRAWN, &planner].concat()),
        ("strategy_invalid", with(&["--strategies", "4x<tp16>;5y<tp4>"])),
        ("strategy_unplaceable", with(&["--strategies", "5x<tp16>"])),
        ("file_unwritable", with(&["--json", "no/such/folder/out"])),
        (
            "profile_invalid",
            [&["--profile", &without_model, "--gpus", "64", "--link", "200"][..], &DRAWN, &planner].concat(),
        ),
        ("Usage", with(&["--link", "0"])),
        ("Usage", with(&["--planner", "the-best"])),
        ("Usage", [&CLUSTER[..], &planner].concat()),
    ];
    for (expected, arguments) in cases {
        let output = plan_bench(&arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{expected}: {text}");
        let named = text.contains(&format!("[{expected}]")) || text.contains("--help") && expected == "Usage";
        assert!(named, "{expected}: {text}");
        assert!(output.stdout.is_empty(), "{expected}");
    }
}

#[test]
fn scale_measures_each_cluster_with_each_batch() {
    let plan_scale =
        |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_plan-scale")).args(arguments).output().unwrap();
    let output = plan_scale(&[
        "--gpus",
        "16,32,64",
        "--tokens-per-gpu",
        "300,1200",
        "--count",
        "2",
        "--profile",
        "llama-7b-a800",
    ]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let gpus: Vec<&str> = text.lines().skip(1).map_while(|line| line.split_whitespace().next()).collect();
    assert_eq!(gpus, ["16", "16", "32", "32", "64", "64"], "{text}");
    assert!(text.contains("plan CPU ms ~ GPUs^"), "{text}");
    let refused = plan_scale(&["--gpus", "12"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("[argument_invalid]"));
}

#[test]
fn lookaheads_are_compared_with_each_batch_alone() {
    let given = [&CLUSTER[..], &DRAWN, &["--lookaheads", "1,3", "--max-delay", "0,1", "--switch-ms", "50"]].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_strategy-bench")).arg("lookahead").args(given).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let names: Vec<&[&str]> = rows.iter().map(|row| &row[..2]).collect();
    assert_eq!(names, [["alone", "0"], ["1", "0"], ["3", "0"], ["3", "1"]]);
    let step_ms: Vec<f64> = rows.iter().map(|row| row[2].parse().unwrap()).collect();
    assert!(step_ms.windows(2).all(|pair| pair[1] <= pair[0] * 1.001), "{step_ms:?}");
}

#[test]
fn the_search_is_compared_with_every_mix() {
    let lengths = file("mixed_lengths.txt", &"900\n3000\n200\n".repeat(40));
    let given = ["--profile", "llama-7b-a800", "--gpus", "8", "--kind", "few-long", "--count", "2", "--schemes", "2"];
    let output = Command::new(env!("CARGO_BIN_EXE_strategy-bench"))
        .arg("exhaustive")
        .args(given)
        .args(["--tokens-per-gpu", "2000", "--lengths", &lengths])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 4, "{text}");
    assert_eq!([rows[1][2], rows[2][2], rows[3][0]], ["few-long", "file", "all"]);
    assert_eq!([rows[1][3], rows[2][3], rows[3][1]], ["2", "2", "4"]);
    for row in &rows[1..] {
        // The worst and the mean ratio to the best mix.
        let of = |from_end: usize| row[row.len() - from_end].parse::<f64>().unwrap();
        assert!(of(7) >= of(6) && of(6) > 0.5 && of(7) < 1.5, "{text}");
    }
}
