//! The strategies to choose from when the caller names none.

use crate::cost::{CostModel, SchemeCost};
use crate::error::Result;
use crate::spec::{Scheme, Strategy};

/// The profile's own list for a cluster of this size, or else every mix of two schemes.
///
/// A mix is as many replicas of one scheme as fit beside a single replica of another, which serves the long
/// tail: homogeneous strategies are the case of equal schemes. Schemes without room for a token are left out.
pub fn candidates(cost: &CostModel) -> Result<Vec<Strategy>> {
    let gpus = cost.cluster().gpus();
    if let Some(list) = cost.profile().strategies.iter().find(|list| list.gpus == gpus) {
        return Ok(list.strategies.clone());
    }
    let roomy = cost.schemes().iter().filter(|scheme| scheme.cap().0 > 0).map(SchemeCost::scheme);
    let schemes: Vec<Scheme> = roomy.filter(|scheme| scheme.ranks() <= u64::from(gpus)).collect();
    let mut strategies = Vec::new();
    for &wide in &schemes {
        for &narrow in &schemes {
            let left = u64::from(gpus) - wide.ranks();
            let others = usize::try_from(left / narrow.ranks()).unwrap_or(0);
            let mix = std::iter::once(wide).chain(std::iter::repeat_n(narrow, others)).collect();
            let strategy = Strategy::new(mix)?;
            if super::place(&strategy, cost.cluster()).is_ok() {
                strategies.push(strategy);
            }
        }
    }
    strategies.sort();
    strategies.dedup();
    Ok(strategies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::preset;
    use crate::spec::Cluster;

    fn of(profile: &str, gpus: u32) -> Vec<String> {
        let cost = CostModel::new(preset(profile).unwrap(), Cluster::new(gpus, 8).unwrap());
        candidates(&cost).unwrap().iter().map(Strategy::to_string).collect()
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
            // <1> has no coefficients in this profile, so nothing may offer it.
            assert_eq!(list.iter().any(|name| name == expected), !expected.contains("<1>"), "{expected} in {list:?}");
        }
    }
}
