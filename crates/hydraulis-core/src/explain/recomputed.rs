//! The part of a plan that its replicas compute again or copy to host memory, and the micro-batches that need it.

use std::collections::BTreeMap;

use crate::error::Grouped;
use crate::plan::{Plan, ReplicaPlan};
use crate::spec::{CheckpointingKind, LayerPlan, Scheme};
use crate::units::Tokens;

/// For each scheme with recomputation or copies: its layers that do so, the tokens of its fullest micro-batch, and the
/// most that this leaves room for. None if every replica saves all activations on its devices.
pub(super) fn recomputed(plan: &Plan) -> Option<String> {
    let mut fullest: BTreeMap<Scheme, (Tokens, Tokens)> = BTreeMap::new();
    for replica in plan.replicas.iter().filter(|replica| !replica.scheme.layer_plan().keeps_activations()) {
        let (tokens, cap) = fullest.entry(replica.scheme).or_insert((Tokens(0), replica.cap_tokens));
        (*tokens, *cap) = ((*tokens).max(fullest_micro_batch(replica, plan)), (*cap).min(replica.cap_tokens));
    }
    if fullest.is_empty() {
        return None;
    }
    let line = |(scheme, (tokens, cap)): (&Scheme, &(Tokens, Tokens))| {
        format!(
            "  {scheme}: {}; its fullest micro-batch has {} tokens, and {} fit",
            layers(scheme.layer_plan()),
            Grouped(tokens.0),
            Grouped(cap.0)
        )
    };
    let lines: Vec<String> = fullest.iter().map(line).collect();
    let copied = fullest.keys().any(|scheme| scheme.layer_plan().offloads());
    let also = if copied { ", or copied to host memory in forward" } else { "" };
    Some(format!(
        "Computed again in backward{also}, so that longer micro-batches fit into memory:\n{}",
        lines.join("\n")
    ))
}

fn fullest_micro_batch(replica: &ReplicaPlan, plan: &Plan) -> Tokens {
    let tokens = |ids: &Vec<usize>| ids.iter().map(|&id| plan.batch.tokens()[id]).sum::<Tokens>();
    replica.micro_batches.iter().map(tokens).max().unwrap_or_default()
}

/// The layers of each kind that recomputes or copies.
fn layers(plan: LayerPlan) -> String {
    let [usual, other] = plan.kinds();
    let Some(layers) = plan.layers() else { return format!("{} in every layer", content(usual)) };
    let number = plan.number_in(0..layers.into());
    let others = format!("{} in {number} of {layers} layers", content(other));
    let again = if plan.offloads() { " computed again" } else { "" };
    if usual == CheckpointingKind::None { others } else { format!("{others}, {}{again} in the rest", content(usual)) }
}

/// The activations that a kind computes again, or copies.
fn content(kind: CheckpointingKind) -> &'static str {
    match kind {
        CheckpointingKind::None => "nothing",
        CheckpointingKind::Selective => "all but attention and matrix products",
        CheckpointingKind::Full => "everything",
        CheckpointingKind::Offload => "everything copied to host memory",
        CheckpointingKind::FullOffload => "everything, from inputs copied to host memory,",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_each_kind_are_counted() {
        let of = |parts: &[&str]| layers(LayerPlan::parse(parts).unwrap());
        assert_eq!(of(&["full"]), "everything in every layer");
        assert_eq!(of(&["selective:22/40"]), "all but attention and matrix products in 22 of 40 layers");
        assert_eq!(
            of(&["selective", "full:3/8"]),
            "everything in 3 of 8 layers, all but attention and matrix products in the rest"
        );
        assert_eq!(of(&["full-offload"]), "everything, from inputs copied to host memory, in every layer");
        assert_eq!(of(&["offload:12/40"]), "everything copied to host memory in 12 of 40 layers");
        assert_eq!(
            of(&["full", "offload:3/8"]),
            "everything copied to host memory in 3 of 8 layers, everything computed again in the rest"
        );
    }
}
