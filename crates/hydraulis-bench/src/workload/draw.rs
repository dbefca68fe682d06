//! Lengths drawn from a log-normal distribution: most are short, a few are huge. The same on every machine.

use std::str::FromStr;

use hydraulis_core::batch::Batch;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::error::{Error, Result};
use crate::numbers::rounded;

/// A log-normal distribution, rounded and clipped to `1..=longest`; written `lognormal:MU,SIGMA,MAX`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lognormal {
    /// Mean of the logarithm.
    pub mu: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// Token limit to which longer lengths are cut.
    pub longest: i64,
}

impl FromStr for Lognormal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Lognormal> {
        let wrong = |why| Error::Distribution { text: text.into(), why };
        let numbers = text.strip_prefix("lognormal:").ok_or_else(|| wrong("its kind is unknown"))?;
        let numbers: Vec<&str> = numbers.split(',').map(str::trim).collect();
        let [mu, sigma, longest] = numbers[..] else { return Err(wrong("it needs three numbers")) };
        let float = |text: &str| text.parse().ok().filter(|x: &f64| x.is_finite());
        Ok(Lognormal {
            mu: float(mu).ok_or_else(|| wrong("MU is no number"))?,
            sigma: float(sigma).filter(|&sigma| sigma >= 0.0).ok_or_else(|| wrong("SIGMA is out of range"))?,
            longest: longest.parse().ok().filter(|&most| most >= 1).ok_or_else(|| wrong("MAX is out of range"))?,
        })
    }
}

/// Draws `count` batches of at least `tokens` each; equal seeds give equal batches.
pub fn draw(lengths: &Lognormal, seed: u64, tokens: u64, count: usize) -> Result<Vec<Batch>> {
    let mut random = Random::new(seed);
    let endless = std::iter::repeat_with(|| {
        let logarithm = lengths.mu + lengths.sigma * random.normal();
        rounded(logarithm.exp(), lengths.longest)
    });
    super::cut_into_batches(endless, tokens, count)
}

/// PCG, whose output is fixed by its definition: a seed gives the same batches after an update of the library.
pub(super) struct Random(Pcg64Mcg);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A float in `(0, 1]`.
    pub(super) fn uniform(&mut self) -> f64 {
        // The 53 highest bits fill a float's significand.
        let bits = self.0.next_u64() >> 11;
        (hydraulis_core::Tokens(bits).as_f64() + 1.0) / 2.0_f64.powi(53)
    }

    /// A standard normal value (Box and Muller 1958).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_or_refused() {
        let lognormal: Lognormal = "lognormal:6.2, 1.2,32768".parse().unwrap();
        assert_eq!(lognormal, Lognormal { mu: 6.2, sigma: 1.2, longest: 32_768 });
        for text in ["uniform:1,2,3", "lognormal:1,2", "lognormal:a,1,9", "lognormal:1,-1,9", "lognormal:1,1,0"] {
            assert_eq!(text.parse::<Lognormal>().unwrap_err().code(), "option_invalid", "{text}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_batches_and_another_others() {
        let lognormal = Lognormal { mu: 6.2, sigma: 1.2, longest: 32_768 };
        let of = |seed| draw(&lognormal, seed, 200_000, 3).unwrap();
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn the_median_is_that_of_the_distribution() {
        let batches = draw(&Lognormal { mu: 6.2, sigma: 1.2, longest: 32_768 }, 1, 5_000_000, 1).unwrap();
        let mut lengths: Vec<f64> = batches[0].tokens().iter().map(|tokens| tokens.as_f64()).collect();
        lengths.sort_by(f64::total_cmp);
        let (below, median) = (lengths[lengths.len() * 16 / 100].ln(), lengths[lengths.len() / 2].ln());
        assert!((median - 6.2).abs() < 0.05, "{median}");
        assert!((median - below - 1.2).abs() < 0.07, "{below}");
        assert!(lengths.iter().all(|&length| (1.0..=32_768.0).contains(&length)));
    }
}
