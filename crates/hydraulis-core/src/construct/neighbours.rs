//! The neighbours of a strategy.

use crate::layout::place;
use crate::spec::{Cluster, Scheme, Strategy};

/// Every strategy in which replicas of one scheme replace a few of another.
///
/// For each scheme of the strategy and each other scheme of `pool`, the fewest replicas leave that free enough ranks,
/// together with the idle ranks, for one of the new scheme. Then idle ranks are filled either by that one replica alone
/// or by as many as fit. On ranks of different rates, one replica fewer is a neighbour too: it leaves the slowest ranks
/// idle. Strategies that cannot be placed are left out.
pub fn neighbours(strategy: &Strategy, pool: &[Scheme], cluster: &Cluster) -> Vec<Strategy> {
    let idle = u64::from(cluster.gpus()) - strategy.ranks();
    let mut found = Vec::new();
    for (leaving, replicas) in strategy.groups() {
        if cluster.rates().is_some() {
            found.extend(without(strategy, leaving, 1));
        }
        for &entering in pool.iter().filter(|&&scheme| scheme != leaving) {
            let needed = entering.ranks().saturating_sub(idle).div_ceil(leaving.ranks()).max(1);
            let Ok(left) = usize::try_from(needed) else { continue };
            if left > replicas {
                continue;
            }
            let room = idle + needed * leaving.ranks();
            let most = usize::try_from(room / entering.ranks()).unwrap_or(0);
            for added in if most > 1 { vec![1, most] } else { vec![most] } {
                found.extend(exchanged(strategy, leaving, left, entering, added));
            }
        }
    }
    found.sort();
    found.dedup();
    found.retain(|other| place(other, cluster).is_ok());
    found
}

/// The strategy without `left` replicas of one scheme and with `added` of another.
fn exchanged(strategy: &Strategy, leaving: Scheme, left: usize, entering: Scheme, added: usize) -> Option<Strategy> {
    let mut schemes = remaining(strategy, leaving, left)?;
    schemes.extend(std::iter::repeat_n(entering, added));
    Strategy::new(schemes).ok()
}

/// The strategy without `left` replicas of one scheme; none if no other replica remains.
fn without(strategy: &Strategy, leaving: Scheme, left: usize) -> Option<Strategy> {
    Strategy::new(remaining(strategy, leaving, left)?).ok()
}

fn remaining(strategy: &Strategy, leaving: Scheme, left: usize) -> Option<Vec<Scheme>> {
    let mut schemes = strategy.schemes().to_vec();
    let first = schemes.iter().position(|scheme| *scheme == leaving)?;
    schemes.drain(first..first + left);
    Some(schemes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_replaced_by_others_of_the_same_ranks() {
        let pool: Vec<Scheme> = ["<tp8>", "<tp4>", "<tp2,pp2>"].iter().map(|text| text.parse().unwrap()).collect();
        let cluster = Cluster::new(16, 8).unwrap();
        let names = |strategy: &str| -> Vec<String> {
            let strategy = strategy.parse().unwrap();
            neighbours(&strategy, &pool, &cluster).iter().map(Strategy::to_string).collect()
        };
        let found = names("1x<tp8>+2x<tp4>");
        for expected in ["4x<tp4>", "2x<tp8>", "2x<tp4>+2x<tp2,pp2>", "1x<tp8>+1x<tp4>+1x<tp2,pp2>"] {
            assert!(found.contains(&expected.to_owned()), "{expected} in {found:?}");
        }
        // Idle ranks are used: the new scheme may be wider than the one that leaves.
        assert!(names("1x<tp4>").contains(&"1x<tp8>".to_owned()));
    }

    #[test]
    fn on_slow_ranks_a_replica_may_leave_without_another() {
        let cluster = Cluster::new(8, 8).unwrap();
        let slow = cluster.clone().with_rates(vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]).unwrap();
        let (strategy, fewer) = ("2x<tp4>".parse().unwrap(), "1x<tp4>".parse().unwrap());
        assert!(neighbours(&strategy, &[], &slow).contains(&fewer));
        assert_eq!(neighbours(&strategy, &[], &cluster), []);
        assert_eq!(neighbours(&fewer, &[], &slow), []);
    }

    #[test]
    fn no_neighbour_is_larger_than_the_cluster() {
        let pool: Vec<Scheme> = ["<tp8>", "<pp3>", "<1>"].iter().map(|text| text.parse().unwrap()).collect();
        let cluster = Cluster::new(8, 8).unwrap();
        let strategy: Strategy = "1x<tp4>+4x<1>".parse().unwrap();
        for other in neighbours(&strategy, &pool, &cluster) {
            assert!(other.ranks() <= 8, "{other}");
        }
    }
}
