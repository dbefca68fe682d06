//! Chooses the micro-batches that determine a scheme's coefficients best.

use super::measurement::features;
use crate::linear::{Row, inverse};
use crate::units::{Tokens, count};

/// Most sequences of one micro-batch: more of them give the same equation as their sum.
const MOST_SEQUENCES: u64 = 16;
/// Number of lengths considered, each half of the one before.
const LENGTHS: u32 = 7;

/// `number` micro-batches of at most `tokens` tokens, of sequences up to `longest`, that together determine the three
/// coefficients best; fewer if not as many exist.
///
/// Each next one makes the determinant of the information largest (a D-optimal design: Fedorov 1972), for errors that
/// are relative, and for coefficients such that `a` and `b` share the time of the longest sequence, and `c` is an
/// eighth of it. The first is the longest sequence and the second the fullest micro-batch, so that no prediction is
/// beyond the points.
pub fn micro_batches_to_measure(longest: Tokens, tokens: Tokens, number: usize) -> Vec<Vec<Tokens>> {
    let longest = longest.min(tokens);
    let mut left = candidates(longest, tokens);
    let mut chosen: Vec<Vec<Tokens>> = Vec::new();
    let mut rows = vague();
    while chosen.len() < number && !left.is_empty() {
        let best = match chosen.len() {
            0 => place_of_most(&left, |mix| count(mix[0].0)),
            1 => place_of_most(&left, |mix| count(mix.len() as u64) * count(mix[0].0)),
            _ => place_of_most(&left, |mix| gain(&rows, row(mix, longest))),
        };
        let mix = left.remove(best);
        rows.push(row(&mix, longest));
        chosen.push(mix);
    }
    chosen
}

/// Sequences of one length: alone, in packs of two, four and so on, and as many as fit.
fn candidates(longest: Tokens, tokens: Tokens) -> Vec<Vec<Tokens>> {
    let mut mixes: Vec<Vec<Tokens>> = Vec::new();
    for halvings in 0..LENGTHS {
        let length = Tokens((longest.0 >> halvings).max(1));
        let most = (tokens.0 / length.0).clamp(1, MOST_SEQUENCES);
        let packs = (0..u64::BITS).map(|doublings| 1 << doublings).take_while(|&sequences| sequences < most);
        for sequences in packs.chain([most]) {
            let mix: Vec<Tokens> = (0..sequences).map(|_| length).collect();
            if !mixes.contains(&mix) {
                mixes.push(mix);
            }
        }
    }
    mixes
}

/// A point's equation, relative to its time under the assumed coefficients.
fn row(mix: &[Tokens], longest: Tokens) -> Row<3> {
    let longest = longest.as_f64();
    let [squares, tokens, one] = features(mix);
    let features = [squares / longest / longest, tokens / longest, one / 4.0];
    let time: f64 = features.iter().sum();
    Row { features: features.map(|feature| feature / time), target: 1.0 }
}

/// Prior knowledge so weak that it only decides before three points exist.
fn vague() -> Vec<Row<3>> {
    [0, 1, 2]
        .map(|j| [0, 1, 2].map(|k| if j == k { 1e-2 } else { 0.0 }))
        .map(|features| Row { features, target: 0.0 })
        .into()
}

/// A point's factor on the determinant of the information: the variance of its prediction (matrix determinant lemma).
fn gain(rows: &[Row<3>], new: Row<3>) -> f64 {
    let Some(covariance) = inverse(rows) else { return 0.0 };
    let spread =
        covariance.map(|entries| entries.iter().zip(&new.features).map(|(left, right)| left * right).sum::<f64>());
    spread.iter().zip(&new.features).map(|(left, right)| left * right).sum()
}

/// The first micro-batch of the greatest value.
fn place_of_most(mixes: &[Vec<Tokens>], value: impl Fn(&[Tokens]) -> f64) -> usize {
    let values: Vec<f64> = mixes.iter().map(|mix| value(mix)).collect();
    (0..mixes.len()).rev().max_by(|&one, &other| values[one].total_cmp(&values[other])).unwrap_or_default()
}
