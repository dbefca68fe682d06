//! Runs every command of docs/plan-bench.md on a smaller workload.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan-bench.md");
const LENGTHS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/lengths.txt");

/// Values of options that replace those of the page: fewer batches, of fewer tokens, on fewer GPUs.
const LESS: [(&str, &str, &str); 6] = [
    ("plan-bench", "--count", "1"),
    ("plan-bench", "--tokens-per-batch", "40000"),
    ("strategy-bench", "--count", "1"),
    ("strategy-bench", "--gpus", "16"),
    ("plan-scale", "--gpus", "16,32,64"),
    ("plan-scale", "--tokens-per-gpu", "300,1200"),
];

/// The commands of the page's shell blocks: the program, and its arguments.
fn commands() -> Vec<(String, Vec<String>)> {
    let page = fs::read_to_string(PAGE).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let lines = blocks.flat_map(|block| {
        let joined = block.replace("\\\n", "");
        joined.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines
        .map(|line| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let after = |word: &str| words.iter().position(|one| one == word).unwrap() + 1;
            (words[after("--bin")].clone(), words[after("--")..].to_vec())
        })
        .collect()
}

fn binary(name: &str) -> &'static str {
    match name {
        "plan-bench" => env!("CARGO_BIN_EXE_plan-bench"),
        "strategy-bench" => env!("CARGO_BIN_EXE_strategy-bench"),
        "plan-scale" => env!("CARGO_BIN_EXE_plan-scale"),
        _ => panic!("{name} is no program that this test knows"),
    }
}

fn less(program: &str, words: &[String], folder: &Path) -> Vec<String> {
    let mut given: Vec<String> = Vec::new();
    for word in words {
        let option = given.last().cloned().unwrap_or_default();
        let shorter = LESS.iter().find(|(of, name, _)| *of == program && *name == option);
        given.push(match word.as_str() {
            "lengths.txt" => LENGTHS.to_owned(),
            name if option == "--json" => folder.join(name).to_str().unwrap().to_owned(),
            _ => shorter.map_or_else(|| word.clone(), |(_, _, value)| (*value).to_owned()),
        });
    }
    given
}

#[test]
fn the_commands_of_the_page_run_and_print() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page");
    fs::create_dir_all(&folder).unwrap();
    let commands = commands();
    assert!(commands.len() >= 3, "{commands:?}");
    for (program, words) in commands {
        let given = less(&program, &words, &folder);
        let output = Command::new(binary(&program)).args(&given).output().unwrap();
        assert!(output.status.success(), "{program} {given:?}: {output:?}");
        assert!(output.stdout.split(|&byte| byte == b'\n').count() > 4, "{program} {given:?}: {output:?}");
    }
    let records = fs::read_to_string(folder.join("wikipedia.jsonl")).unwrap();
    assert_eq!(records.lines().count(), 4);
}
