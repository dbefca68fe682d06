//! Every mix of a few schemes.

use hydraulis_core::construct::usable_schemes;
use hydraulis_core::cost::CostModel;
use hydraulis_core::layout::place;
use hydraulis_core::spec::{Scheme, Strategy};

/// Every strategy of at most `most_schemes` schemes that leaves no ranks for one more replica of any of them.
pub fn every_mix(cost: &CostModel, most_schemes: usize) -> Vec<Strategy> {
    let mut mixes = Vec::new();
    let schemes = usable_schemes(cost);
    extend(&schemes, most_schemes, u64::from(cost.cluster().gpus()), &mut Vec::new(), &mut mixes);
    mixes.retain(|mix| place(mix, cost.cluster()).is_ok());
    mixes.sort();
    mixes.dedup();
    mixes
}

/// Adds each number of replicas of each of these schemes to the replicas taken so far.
fn extend(schemes: &[Scheme], most: usize, ranks: u64, taken: &mut Vec<Scheme>, mixes: &mut Vec<Strategy>) {
    if taken.iter().all(|scheme| scheme.ranks() > ranks) {
        mixes.extend(Strategy::new(taken.clone()));
    }
    if most == 0 {
        return;
    }
    for (place, &scheme) in schemes.iter().enumerate() {
        let (before, mut left) = (taken.len(), ranks);
        while let Some(rest) = left.checked_sub(scheme.ranks()) {
            left = rest;
            taken.push(scheme);
            extend(&schemes[place + 1..], most - 1, left, taken, mixes);
        }
        taken.truncate(before);
    }
}

#[cfg(test)]
mod tests {
    use hydraulis_core::cost::preset;
    use hydraulis_core::spec::Cluster;

    use super::*;

    #[test]
    fn every_mix_uses_the_ranks_it_can() {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let mixes = every_mix(&cost, 3);
        let names: Vec<String> = mixes.iter().map(Strategy::to_string).collect();
        for expected in ["4x<tp16>", "3x<tp16>+4x<tp4>", "1x<tp16>+1x<tp8,pp3>+6x<tp4>"] {
            assert!(names.iter().any(|name| name == expected), "{expected}");
        }
        for (mix, name) in mixes.iter().zip(&names) {
            let idle = 64 - mix.ranks();
            assert!(mix.groups().len() <= 3 && mix.schemes().iter().all(|scheme| scheme.ranks() > idle), "{name}");
        }
        assert_eq!(mixes.len(), 2_407);
        assert!(every_mix(&cost, 1).len() < every_mix(&cost, 2).len());
    }
}
