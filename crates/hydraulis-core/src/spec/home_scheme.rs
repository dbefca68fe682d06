//! Whether a rank holds the same under all schemes of a run.

use crate::spec::{Cluster, Scheme};

/// The scheme whose replicas take every rank of the cluster, and by which each holds what it holds under all of these; none where
/// there is no such scheme.
///
/// Context ranks hold the same and checkpointing changes nothing of it, so schemes of one stage need the same tensor degree
/// alone.
pub(crate) fn home_scheme(schemes: &[Scheme], cluster: Cluster) -> Option<Scheme> {
    let &first = schemes.first()?;
    let degrees = |scheme: &Scheme| (scheme.tp(), scheme.cp(), scheme.pp());
    let cp = if schemes.iter().all(|scheme| degrees(scheme) == degrees(&first)) {
        first.cp()
    } else if schemes.iter().all(|scheme| (scheme.tp(), scheme.pp()) == (first.tp(), 1)) {
        1
    } else {
        return None;
    };
    let scheme = Scheme::new(first.tp(), cp, first.pp()).ok()?;
    let (block, node) = (scheme.block(), cluster.gpus_per_node());
    let are_aligned = node.is_multiple_of(block) || block.is_multiple_of(node);
    (are_aligned && u64::from(cluster.gpus()).is_multiple_of(scheme.ranks())).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(schemes: &[&str], gpus: u32, node: u32) -> Option<String> {
        let schemes: Vec<Scheme> = schemes.iter().map(|scheme| scheme.parse().unwrap()).collect();
        home_scheme(&schemes, Cluster::new(gpus, node).unwrap()).map(|scheme| scheme.to_string())
    }

    #[test]
    fn what_ranks_hold_depends_on_tensor_ranks_and_stages() {
        assert_eq!(common(&["<tp2>", "<tp2,cp2>", "<tp2,full>"], 8, 8).unwrap(), "<tp2>");
        assert_eq!(common(&["<tp2,cp2>", "<tp2,cp2,full>"], 8, 8).unwrap(), "<tp2,cp2>");
        assert_eq!(common(&["<tp2,pp2>", "<tp2,pp2,full>"], 8, 4).unwrap(), "<tp2,pp2>");
        assert_eq!(common(&["<tp2,pp2>", "<tp2,cp2,pp2>"], 8, 8), None);
        assert_eq!(common(&["<tp2>", "<tp4>"], 8, 8), None);
        assert_eq!(common(&[], 8, 8), None);
    }

    #[test]
    fn every_rank_is_in_a_replica() {
        assert_eq!(common(&["<tp2,pp2>"], 8, 2).unwrap(), "<tp2,pp2>");
        assert_eq!(common(&["<tp8>"], 8, 4).unwrap(), "<tp8>");
        assert_eq!(common(&["<pp3>"], 8, 8), None);
        assert_eq!(common(&["<tp3>"], 24, 8), None);
        assert_eq!(common(&["<tp16>"], 8, 8), None);
    }
}
