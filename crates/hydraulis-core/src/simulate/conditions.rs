//! What an iteration is simulated under.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::simulate::Network;
use crate::spec::Cluster;
use crate::timing::Link;

/// Slow ranks and links; the default is what iterations are predicted under: none of either.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// How much longer some ranks take.
    pub slowdowns: Slowdowns,
    /// What carries activations between stages; left out, they arrive at once.
    pub network: Option<Network>,
    /// What carries parameters from home and gradients to it; left out, only the iteration is simulated.
    pub link: Option<Link>,
}

/// How many times as long as the cost model says some ranks of a cluster take; the others take as long as it says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slowdowns(BTreeMap<u32, f64>);

impl Slowdowns {
    /// Slowdowns of these ranks; of one named twice, the last.
    ///
    /// Refused with `slowdown` for a rank outside of the cluster, or a factor that is not finite and above 0.
    pub fn new(cluster: Cluster, factors: &[(u32, f64)]) -> Result<Slowdowns> {
        let gpus = cluster.gpus();
        let bad = factors.iter().find(|(rank, factor)| *rank >= gpus || !(*factor > 0.0 && factor.is_finite()));
        match bad {
            Some(&(rank, factor)) => Err(Error::Slowdown { rank, factor: factor.to_string(), gpus }),
            None => Ok(Slowdowns(factors.iter().copied().collect())),
        }
    }

    /// The factor of a rank.
    pub fn of(&self, rank: u32) -> f64 {
        self.0.get(&rank).copied().unwrap_or(1.0)
    }

    /// The factor of ranks that wait for each other: the greatest.
    pub fn of_stage(&self, ranks: &[u32]) -> f64 {
        ranks.iter().map(|&rank| self.of(rank)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_as_slow_as_its_slowest_rank() {
        let slow = Slowdowns::new(Cluster::new(8, 8).unwrap(), &[(1, 1.3), (2, 0.8), (1, 1.2)]).unwrap();
        let factors = [slow.of(0), slow.of(1), slow.of_stage(&[0, 1, 2]), slow.of_stage(&[2]), slow.of_stage(&[0, 2])];
        assert_eq!(factors.map(|factor| factor.to_string()), ["1", "1.2", "1.2", "0.8", "1"]);
    }

    #[test]
    fn ranks_and_factors_have_their_limits() {
        for bad in [(8, 1.2), (0, 0.0), (0, -1.0), (0, f64::NAN), (0, f64::INFINITY)] {
            let error = Slowdowns::new(Cluster::new(8, 8).unwrap(), &[(3, 1.1), bad]).unwrap_err();
            assert_eq!(error.code(), "argument_invalid");
            assert!(error.to_string().contains(&format!("rank {} has slowdown {}", bad.0, bad.1)), "{error}");
        }
    }
}
