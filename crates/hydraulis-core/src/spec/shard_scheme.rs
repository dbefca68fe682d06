//! The scheme of optimizer shards whose owners are in the replica group of every element under all schemes of a run.

use crate::spec::{Cluster, LayerPlan, Scheme};

/// A scheme that fits all given schemes: its replicas cover every rank of the cluster, and each rank's local shard
/// under it is equal to, or a part of, the rank's local shard under every given scheme. `None` if no such scheme
/// exists.
///
/// Context ranks have equal local shards, and checkpointing does not change the shards. Therefore only the tensor
/// degrees of schemes with one stage matter.
pub(crate) fn shard_scheme(schemes: &[Scheme], cluster: &Cluster) -> Option<Scheme> {
    let node = cluster.gpus_per_node();
    let scheme = only(schemes).or_else(|| finest(schemes, node))?;
    let stage_group = scheme.stage_group_ranks();
    // Where ranks differ, any place of a stage may be the next one's in another iteration. A rank keeps its tensor slice
    // alone, if stages are alone in their replicas and fill nodes evenly.
    let are_aligned = if cluster.is_uniform() {
        node.is_multiple_of(stage_group) || stage_group.is_multiple_of(node)
    } else {
        scheme.pp() == 1 && node.is_multiple_of(stage_group)
    };
    (are_aligned && u64::from(cluster.gpus()).is_multiple_of(scheme.ranks())).then_some(scheme)
}

/// The common degrees and stages of all schemes, if they are equal.
fn only(schemes: &[Scheme]) -> Option<Scheme> {
    let first = schemes.first()?.with_layers(LayerPlan::KEEP);
    let is_alike = schemes.iter().all(|scheme| scheme.with_layers(LayerPlan::KEEP) == first);
    is_alike.then_some(first)
}

/// The scheme with the widest tensor degree, if all schemes have one stage and a rank's slice under it is a part of the
/// rank's slice under every other scheme.
///
/// This condition holds if the tensor ranks split a parameter's units evenly, or copy units evenly, as training
/// requires for heads. If the tensor degrees differ, the widest one must divide a node: a group wider than a node may
/// begin at any node.
fn finest(schemes: &[Scheme], node: u32) -> Option<Scheme> {
    let widest = schemes.iter().map(|scheme| scheme.tp()).max()?;
    let finest = Scheme::new(widest, 1, 1).ok()?;
    let is_within = |scheme: &Scheme| {
        let is_in_node = scheme.tp() == widest || node.is_multiple_of(widest.into());
        scheme.pp() == 1 && is_in_node && finest.tensor_factors().starts_with(&scheme.tensor_factors())
    };
    schemes.iter().all(is_within).then_some(finest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(schemes: &[&str], gpus: u32, node: u32) -> Option<String> {
        let schemes: Vec<Scheme> = schemes.iter().map(|scheme| scheme.parse().unwrap()).collect();
        shard_scheme(&schemes, &Cluster::new(gpus, node).unwrap()).map(|scheme| scheme.to_string())
    }

    #[test]
    fn local_shards_depend_on_tensor_ranks_and_stages() {
        assert_eq!(common(&["<tp2>", "<tp2,cp2>", "<tp2,full>"], 8, 8).unwrap(), "<tp2>");
        assert_eq!(common(&["<tp2,cp2>", "<tp2,cp2,full>"], 8, 8).unwrap(), "<tp2,cp2>");
        assert_eq!(common(&["<tp2,pp2>", "<tp2,pp2,full>"], 8, 4).unwrap(), "<tp2,pp2>");
        assert_eq!(common(&["<tp2,pp2>", "<tp2,cp2,pp2>"], 8, 8), None);
        assert_eq!(common(&["<tp2>", "<tp2,pp2>"], 8, 8), None);
        assert_eq!(common(&[], 8, 8), None);
    }

    #[test]
    fn narrow_slices_are_made_of_wide_ones() {
        assert_eq!(common(&["<1>", "<tp4,cp2>", "<tp2>", "<tp8>"], 16, 8).unwrap(), "<tp8>");
        assert_eq!(common(&["<tp6>", "<tp2>"], 12, 6).unwrap(), "<tp6>");
        assert_eq!(common(&["<tp6>", "<tp3>"], 12, 6), None);
        assert_eq!(common(&["<tp3>", "<tp2>"], 12, 6), None);
        // After a stage group of 24 ranks, a stage group of 16 covers half of each of two groups of the optimizer
        // shards.
        assert_eq!(common(&["<tp16>", "<tp8,cp3>"], 48, 8), None);
        assert_eq!(common(&["<tp16>", "<tp16,cp3>"], 48, 8).unwrap(), "<tp16>");
    }

    #[test]
    fn every_rank_is_in_a_replica() {
        assert_eq!(common(&["<tp2,pp2>"], 8, 2).unwrap(), "<tp2,pp2>");
        assert_eq!(common(&["<tp8>"], 8, 4).unwrap(), "<tp8>");
        assert_eq!(common(&["<pp3>"], 8, 8), None);
        assert_eq!(common(&["<tp3>"], 24, 8), None);
        assert_eq!(common(&["<tp16>"], 8, 8), None);
        assert_eq!(common(&["<tp4>", "<tp2>"], 6, 8), None);
    }
}
