//! The source of lengths, as written on a command line.

use std::path::PathBuf;
use std::str::FromStr;

use hydraulis_core::batch::Batch;

use crate::error::{Error, Result};
use crate::workload::{Lognormal, cut_into_batches, draw, read_lengths};

/// A distribution, or a file with one length per line.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Lengths drawn from a distribution.
    Drawn(Lognormal),
    /// Lengths read in the file's order.
    File(PathBuf),
}

impl FromStr for Lengths {
    type Err = Error;

    fn from_str(text: &str) -> Result<Lengths> {
        if text.starts_with("lognormal:") { text.parse().map(Lengths::Drawn) } else { Ok(Lengths::File(text.into())) }
    }
}

impl Lengths {
    /// `count` batches of at least `tokens` each, with lengths cut to `longest`.
    ///
    /// The default seed of drawn lengths is 0; a seed for a file is refused.
    pub fn batches(&self, tokens: u64, count: usize, seed: Option<u64>, longest: Option<i64>) -> Result<Vec<Batch>> {
        let most = longest.unwrap_or(i64::MAX);
        match self {
            Lengths::Drawn(lognormal) => {
                let lognormal = Lognormal { longest: lognormal.longest.min(most), ..*lognormal };
                draw(&lognormal, seed.unwrap_or(0), tokens, count)
            }
            Lengths::File(path) if seed.is_some() => Err(Error::SeedUnused { path: path.display().to_string() }),
            Lengths::File(path) => {
                let lengths = read_lengths(path)?;
                cut_into_batches(lengths.into_iter().map(|length| length.min(most)), tokens, count)
            }
        }
    }
}
