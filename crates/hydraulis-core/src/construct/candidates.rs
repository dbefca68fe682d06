//! The strategies to choose from when the caller names none.

use crate::cost::{ClassCost, CostModel};
use crate::error::{Error, Result, StrategyError};
use crate::layout::place;
use crate::spec::{Cluster, Scheme, Strategy};

/// The profile's own list for a cluster of this size, or else every mix of two schemes.
pub fn candidates(cost: &CostModel) -> Vec<Strategy> {
    let gpus = cost.cluster().gpus();
    match cost.profile().strategies.iter().find(|list| list.gpus == gpus) {
        Some(list) => list.strategies.clone(),
        None => mixes(cost),
    }
}

/// The schemes that fit the cluster and leave memory for at least one token.
pub fn usable_schemes(cost: &CostModel) -> Vec<Scheme> {
    let roomy = cost.classes().iter().filter(|scheme| scheme.cap().0 > 0).map(ClassCost::scheme);
    roomy.filter(|&scheme| place_alone(scheme, cost).is_ok()).collect()
}

/// The error for a cluster without a usable scheme: it names, among the schemes that can be placed, the one that needs
/// least memory.
pub fn nothing_fits(cost: &CostModel) -> Error {
    let schemes = || cost.classes().iter().map(ClassCost::scheme);
    let placed: Vec<Scheme> = schemes().filter(|&scheme| place_alone(scheme, cost).is_ok()).collect();
    let smallest = || schemes().min_by_key(|scheme| scheme.ranks());
    let refused = cost.all_too_large(&placed).or_else(|| Some(no_place(smallest()?, cost)));
    refused.unwrap_or(StrategyError::NoneGiven.into())
}

/// The error for a profile whose smallest scheme cannot be placed on the cluster.
fn no_place(smallest: Scheme, cost: &CostModel) -> Error {
    let gpus = cost.cluster().gpus();
    match place_alone(smallest, cost) {
        Err(error) if smallest.ranks() <= u64::from(gpus) => error,
        _ => {
            let (profile, needed) = (cost.profile().name.clone(), smallest.ranks());
            StrategyError::SchemesTooWide { profile, smallest, needed, gpus }.into()
        }
    }
}

fn place_alone(scheme: Scheme, cost: &CostModel) -> Result<()> {
    place(&Strategy::new(vec![scheme])?, cost.cluster()).map(drop)
}

/// For every pair of usable schemes: one replica of the first, and as many of the second as fit.
///
/// The single replica serves the long tail; with equal schemes the mix is homogeneous.
pub fn mixes(cost: &CostModel) -> Vec<Strategy> {
    let schemes = usable_schemes(cost);
    let pairs = schemes.iter().flat_map(|&wide| schemes.iter().map(move |&narrow| (wide, narrow)));
    let mut strategies: Vec<Strategy> =
        pairs.filter_map(|(wide, narrow)| widest_mix(wide, narrow, cost.cluster())).collect();
    strategies.sort();
    strategies.dedup();
    strategies
}

/// One `wide` replica and as many `narrow` ones as aligned ranks allow.
fn widest_mix(wide: Scheme, narrow: Scheme, cluster: Cluster) -> Option<Strategy> {
    let left = u64::from(cluster.gpus()).checked_sub(wide.ranks())?;
    let most = usize::try_from(left / narrow.ranks()).ok()?;
    (0..=most).rev().find_map(|others| {
        let mix = std::iter::once(wide).chain(std::iter::repeat_n(narrow, others)).collect();
        Strategy::new(mix).ok().filter(|strategy| place(strategy, cluster).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;

    fn of(profile: &str, gpus: u32) -> Vec<String> {
        let cost = CostModel::new(preset(profile).unwrap(), Cluster::new(gpus, 8).unwrap());
        candidates(&cost).iter().map(Strategy::to_string).collect()
    }

    #[test]
    fn the_profiles_list_comes_first() {
        let list = of("llama-32b-a800", 64);
        assert_eq!(list.len(), 7);
        assert_eq!(list[3], "1x<tp16>+12x<tp4>");
    }

    #[test]
    fn mixes_fill_other_clusters() {
        let list = of("llama-7b-a800", 16);
        for expected in ["1x<tp16>", "1x<tp8>+4x<tp2>", "8x<tp2>", "1x<tp8>+8x<1>"] {
            // This profile has no coefficients of <1>, so no strategy may contain it.
            assert_eq!(list.iter().any(|name| name == expected), !expected.contains("<1>"), "{expected} in {list:?}");
        }
    }
}
