//! The conditions of a simulated iteration.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::simulate::Network;
use crate::spec::Cluster;
use crate::timing::Link;

/// Slow ranks and links. Predictions of iterations use the default, which has neither.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Slowdowns of some ranks.
    pub slowdowns: Slowdowns,
    /// Network that carries activations between stages. Without it, they arrive at once.
    pub network: Option<Network>,
    /// Link that carries parameters from their owners and gradients to their owners. Without it, the simulation has no
    /// transfers of parameters and gradients.
    pub link: Option<Link>,
}

/// The factors of some ranks' times relative to the plan's, which knows the rates of the cluster. The other ranks of the cluster have the factor 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slowdowns(BTreeMap<u32, f64>);

impl Slowdowns {
    /// Slowdowns of these ranks. If a rank occurs twice, its last factor applies.
    ///
    /// A rank outside the cluster, or a factor outside the range of the ranks' rates, is refused with `argument_invalid`.
    pub fn new(cluster: &Cluster, factors: &[(u32, f64)]) -> Result<Slowdowns> {
        let gpus = cluster.gpus();
        let bad = factors.iter().find(|(rank, factor)| *rank >= gpus || !Cluster::RATES.contains(factor));
        match bad {
            Some(&(rank, factor)) => {
                let (least, limit) = (*Cluster::RATES.start(), *Cluster::RATES.end());
                Err(Error::Slowdown { rank, factor: factor.to_string(), least, limit, gpus })
            }
            None => Ok(Slowdowns(factors.iter().copied().collect())),
        }
    }

    /// The factor of a rank.
    pub fn of(&self, rank: u32) -> f64 {
        self.0.get(&rank).copied().unwrap_or(1.0)
    }

    /// The factor of ranks that wait for each other: the greatest of their factors.
    pub fn of_stage(&self, ranks: &[u32]) -> f64 {
        ranks.iter().map(|&rank| self.of(rank)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_as_slow_as_its_slowest_rank() {
        let slow = Slowdowns::new(&Cluster::new(8, 8).unwrap(), &[(1, 1.3), (2, 0.8), (1, 1.2)]).unwrap();
        let factors = [slow.of(0), slow.of(1), slow.of_stage(&[0, 1, 2]), slow.of_stage(&[2]), slow.of_stage(&[0, 2])];
        assert_eq!(factors.map(|factor| factor.to_string()), ["1", "1.2", "1.2", "0.8", "1"]);
    }

    #[test]
    fn ranks_and_factors_have_their_limits() {
        for bad in [(8, 1.2), (0, 0.0), (0, -1.0), (0, f64::NAN), (0, f64::INFINITY), (0, 1e308), (0, 1e-4)] {
            let error = Slowdowns::new(&Cluster::new(8, 8).unwrap(), &[(3, 1.1), bad]).unwrap_err();
            assert_eq!(error.code(), "argument_invalid");
            assert!(error.to_string().contains(&format!("rank {} has slowdown {}", bad.0, bad.1)), "{error}");
            assert!(error.to_string().contains("factors are from 0.001 to 1000"), "{error}");
        }
    }
}
