//! Reads lengths from a text file, batches from a JSON file, and a cost profile by its command-line name.

use std::fs;
use std::path::Path;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{CostProfile, preset};

use crate::error::{Error, Result};

/// Reads the text of a file.
fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path)
        .map_err(|error| Error::FileUnreadable { path: path.display().to_string(), why: error.to_string() })
}

/// Reads one length per line, in the file's order; blank lines are skipped.
pub fn read_lengths(path: &Path) -> Result<Vec<i64>> {
    let text = read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let lengths = lines.map(|(index, line)| {
        let length = line.trim().parse().ok().filter(|&length: &i64| length >= 1);
        length.ok_or_else(|| Error::LengthsFile {
            path: path.display().to_string(),
            line: index + 1,
            text: line.trim().chars().take(40).collect(),
        })
    });
    lengths.collect()
}

/// Loads the preset with this name, or the profile in the JSON file at this path; `,cp` after either adds derived context
/// degrees.
pub fn read_profile(name_or_path: &str) -> Result<CostProfile> {
    if let Some(table) = name_or_path.strip_suffix(",cp") {
        return Ok(read_profile(table)?.with_context_degrees()?);
    }
    let path = Path::new(name_or_path);
    let is_path = name_or_path.contains(['/', '\\']) || path.extension().is_some();
    Ok(if is_path { CostProfile::from_json(&read_text(path)?) } else { preset(name_or_path) }?)
}

/// Reads a JSON array of arrays of lengths; longer ones are cut to `longest` tokens.
pub fn read_batches(path: &Path, longest: Option<i64>) -> Result<Vec<Batch>> {
    let lists: Vec<Vec<i64>> = serde_json::from_str(&read_text(path)?)
        .map_err(|error| Error::BatchesFile { path: path.display().to_string(), why: error.to_string() })?;
    let cut = |length: i64| longest.map_or(length, |longest| length.min(longest));
    let batches = lists.into_iter().enumerate().map(|(batch, lengths)| {
        let lengths: Vec<i64> = lengths.into_iter().map(cut).collect();
        Batch::new(&lengths, None).map_err(|error| Error::Batch { batch, error })
    });
    let batches: Vec<Batch> = batches.collect::<Result<_>>()?;
    if batches.is_empty() { Err(Error::WorkloadEmpty) } else { Ok(batches) }
}

/// Cuts lengths into `count` batches: each takes lengths in order until it has `tokens`; its last sequence stays whole.
pub fn cut_into_batches(lengths: impl IntoIterator<Item = i64>, tokens: u64, count: usize) -> Result<Vec<Batch>> {
    if tokens == 0 || count == 0 {
        return Err(Error::WorkloadEmpty);
    }
    let mut lengths = lengths.into_iter();
    let mut batches = Vec::new();
    while batches.len() < count {
        let (mut batch, mut used) = (Vec::new(), 0_u64);
        while used < tokens {
            let Some(length) = lengths.next() else {
                return Err(Error::TooFewLengths { batches: batches.len(), tokens, count });
            };
            used = used.saturating_add(length.unsigned_abs());
            batch.push(length);
        }
        batches.push(Batch::new(&batch, None).map_err(|error| Error::Batch { batch: batches.len(), error })?);
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(batches: &[Batch]) -> Vec<Vec<u64>> {
        batches.iter().map(|batch| batch.tokens().iter().map(|tokens| tokens.0).collect()).collect()
    }

    #[test]
    fn context_degrees_are_derived_on_request() {
        let table = read_profile("llama-7b-a800").unwrap();
        let derived = read_profile("llama-7b-a800,cp").unwrap();
        assert!(derived == table.clone().with_context_degrees().unwrap() && derived != table);
        assert_eq!(read_profile("llama-1t,cp").unwrap_err().code(), "profile_unknown");
    }

    #[test]
    fn the_last_sequence_is_kept_whole() {
        let batches = cut_into_batches([5, 4, 3, 9, 1, 1], 8, 2).unwrap();
        assert_eq!(lengths(&batches), [vec![5, 4], vec![3, 9]]);
    }

    #[test]
    fn a_file_that_does_not_fill_the_batches_is_named() {
        let code = |lengths: &[i64], tokens, count| {
            cut_into_batches(lengths.iter().copied(), tokens, count).unwrap_err().code()
        };
        assert_eq!(code(&[5, 4], 8, 2), "option_invalid");
        assert_eq!(code(&[5, 4], 0, 1), "batch_empty");
        assert_eq!(code(&[5, 4], 8, 0), "batch_empty");
        assert_eq!(code(&[i64::MAX], 8, 1), "lengths_invalid");
    }
}
