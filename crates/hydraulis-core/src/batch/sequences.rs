//! The token and target counts of one global batch.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::units::Tokens;

/// Largest length of a sequence. Up to this limit, squares of lengths and sums over a batch are exact in a float.
pub const LONGEST_SEQUENCE: i64 = 1 << 26;

/// Token counts of one global batch. A sequence's id is its position.
///
/// Each length has a number of *target* tokens, the tokens that enter the loss. The mean loss of an iteration is taken
/// over all target tokens under every strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BatchFields")]
pub struct Batch {
    tokens: Vec<Tokens>,
    targets: Vec<u64>,
}

/// The fields of a batch in a document, before validation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchFields {
    tokens: Vec<i64>,
    targets: Vec<i64>,
}

impl TryFrom<BatchFields> for Batch {
    type Error = Error;
    fn try_from(fields: BatchFields) -> Result<Batch> {
        Batch::new(&fields.tokens, Some(&fields.targets))
    }
}

impl Batch {
    /// A batch of sequences with these `lengths`, of which `targets` tokens enter the loss. Without `targets`, all
    /// tokens enter it.
    pub fn new(lengths: &[i64], targets: Option<&[i64]>) -> Result<Batch> {
        if lengths.is_empty() {
            return Err(Error::BatchEmpty);
        }
        let tokens = lengths.iter().enumerate().map(|(sequence, &length)| checked_length(sequence, length));
        let tokens: Vec<Tokens> = tokens.collect::<Result<_>>()?;
        let targets = match targets {
            Some(targets) => checked_targets(targets, &tokens)?,
            None => tokens.iter().map(|tokens| tokens.0).collect(),
        };
        if targets.iter().all(|&count| count == 0) {
            return Err(Error::NoTargets);
        }
        Ok(Batch { tokens, targets })
    }

    /// A batch for each list of lengths, with the list of targets at the same position. An error names the position.
    pub fn several(lengths: &[Vec<i64>], targets: Option<&[Vec<i64>]>) -> Result<Vec<Batch>> {
        let batch = |(place, lengths): (usize, &Vec<i64>)| {
            let targets = targets.map(|lists| lists.get(place).map(Vec::as_slice).unwrap_or_default());
            Batch::new(lengths, targets).map_err(|error| error.in_batch(place))
        };
        lengths.iter().enumerate().map(batch).collect()
    }

    /// A batch of sequences from several other batches. Each sequence is given by the position of its batch and its id
    /// there.
    pub fn gathered(batches: &[Batch], sequences: impl Iterator<Item = (usize, usize)>) -> Result<Batch> {
        let counts = sequences.map(|(batch, id)| (batches[batch].tokens[id], batches[batch].targets[id]));
        let (tokens, targets): (Vec<Tokens>, Vec<u64>) = counts.unzip();
        if tokens.is_empty() {
            return Err(Error::BatchEmpty);
        }
        if targets.iter().all(|&count| count == 0) {
            return Err(Error::NoTargets);
        }
        Ok(Batch { tokens, targets })
    }

    /// The length of each sequence.
    pub fn tokens(&self) -> &[Tokens] {
        &self.tokens
    }

    /// The number of target tokens of each sequence.
    pub fn targets(&self) -> &[u64] {
        &self.targets
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Always false, because the constructor refuses an empty batch.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of tokens of the whole batch.
    pub fn total_tokens(&self) -> Tokens {
        self.tokens.iter().copied().sum()
    }

    /// Number of target tokens of the whole batch: the one denominator of its loss.
    pub fn total_targets(&self) -> u64 {
        self.targets.iter().sum()
    }

    /// The id and length of the longest sequence. Among equally long sequences, the first one wins.
    pub fn longest(&self) -> (usize, Tokens) {
        let by_length = |&(id, tokens): &(usize, Tokens)| (tokens, std::cmp::Reverse(id));
        self.tokens.iter().copied().enumerate().max_by_key(by_length).unwrap_or_default()
    }
}

pub(super) fn checked_length(sequence: usize, length: i64) -> Result<Tokens> {
    match u64::try_from(length) {
        Ok(tokens) if (1..=LONGEST_SEQUENCE).contains(&length) => Ok(Tokens(tokens)),
        _ => Err(Error::LengthOutOfRange { sequence, length, limit: LONGEST_SEQUENCE }),
    }
}

fn checked_targets(targets: &[i64], tokens: &[Tokens]) -> Result<Vec<u64>> {
    if targets.len() != tokens.len() {
        return Err(Error::TargetsMismatch { targets: targets.len(), sequences: tokens.len() });
    }
    let pairs = targets.iter().zip(tokens).enumerate();
    let counts = pairs.map(|(sequence, (&targets, length))| match u64::try_from(targets) {
        Ok(count) if count <= length.0 => Ok(count),
        _ => Err(Error::TargetOutOfRange { sequence, targets, length: length.0 }),
    });
    counts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_named() {
        let error = |lengths: &[i64], targets: Option<&[i64]>| Batch::new(lengths, targets).unwrap_err();
        let out_of_range = |sequence, length| Error::LengthOutOfRange { sequence, length, limit: LONGEST_SEQUENCE };
        assert_eq!(error(&[], None), Error::BatchEmpty);
        assert_eq!(error(&[5, 0], None), out_of_range(1, 0));
        assert_eq!(error(&[-1], None), out_of_range(0, -1));
        assert_eq!(error(&[i64::MAX], None), out_of_range(0, i64::MAX));
        assert_eq!(error(&[5, 6], Some(&[5])), Error::TargetsMismatch { targets: 1, sequences: 2 });
        for targets in [6, -1] {
            let refused = Error::TargetOutOfRange { sequence: 0, targets, length: 5 };
            assert_eq!(error(&[5], Some(&[targets])), refused);
            assert_eq!(refused.code(), "lengths_invalid");
        }
        assert_eq!(error(&[5, 1], Some(&[0, 0])), Error::NoTargets);
    }

    #[test]
    fn the_wrong_one_of_several_batches_is_named() {
        let error = Batch::several(&[vec![5], vec![7, 0]], None).unwrap_err();
        assert_eq!(error.code(), "lengths_invalid");
        assert!(error.to_string().starts_with("batch 1: sequence 1 has length 0"), "{error}");
        let lengths = [vec![5], vec![7, 2]];
        assert_eq!(Batch::several(&lengths, None).unwrap()[1], Batch::new(&[7, 2], None).unwrap());
        let with_targets = Batch::several(&lengths, Some(&[vec![4], vec![7, 0]])).unwrap();
        assert_eq!(with_targets[1], Batch::new(&[7, 2], Some(&[7, 0])).unwrap());
        let missing = Batch::several(&lengths, Some(&[vec![4]])).unwrap_err();
        assert_eq!(missing.code(), "lengths_invalid");
        assert!(missing.to_string().contains("target counts were given for"), "{missing}");
    }

    #[test]
    fn sequences_of_several_batches_are_gathered() {
        let batches = [Batch::new(&[5, 6], Some(&[0, 3])).unwrap(), Batch::new(&[7], None).unwrap()];
        let gathered = |sequences: &[(usize, usize)]| Batch::gathered(&batches, sequences.iter().copied());
        assert_eq!(gathered(&[(1, 0), (0, 0)]).unwrap(), Batch::new(&[7, 5], Some(&[7, 0])).unwrap());
        assert_eq!(gathered(&[]).unwrap_err(), Error::BatchEmpty);
        assert_eq!(gathered(&[(0, 0)]).unwrap_err(), Error::NoTargets);
    }

    #[test]
    fn totals_and_the_longest_sequence_are_known() {
        let batch = Batch::new(&[3, 7, 7], Some(&[2, 6, 0])).unwrap();
        assert_eq!(batch.total_tokens(), Tokens(17));
        assert_eq!(batch.total_targets(), 8);
        assert_eq!(batch.longest(), (1, Tokens(7)));
    }
}
