//! The part of a plan that its replicas compute again, and the micro-batches that need it.

use std::collections::BTreeMap;

use crate::error::Grouped;
use crate::plan::{Plan, ReplicaPlan};
use crate::spec::{CheckpointingKind, LayerPlan, Scheme};
use crate::units::Tokens;

/// For each scheme with recomputation: its layers that compute activations again, the tokens of its fullest
/// micro-batch, and the most that this leaves room for. None if no replica recomputes.
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
    Some(format!("Computed again in backward, so that longer micro-batches fit into memory:\n{}", lines.join("\n")))
}

fn fullest_micro_batch(replica: &ReplicaPlan, plan: &Plan) -> Tokens {
    let tokens = |ids: &Vec<usize>| ids.iter().map(|&id| plan.batch.tokens()[id]).sum::<Tokens>();
    replica.micro_batches.iter().map(tokens).max().unwrap_or_default()
}

/// The layers of each kind that recomputes.
fn layers(plan: LayerPlan) -> String {
    let [usual, other] = plan.kinds();
    let Some(layers) = plan.layers() else { return format!("{} in every layer", content(usual)) };
    let number = plan.number_in(0..layers.into());
    let others = format!("{} in {number} of {layers} layers", content(other));
    if usual == CheckpointingKind::None { others } else { format!("{others}, {} in the rest", content(usual)) }
}

/// The activations that a kind computes again.
fn content(kind: CheckpointingKind) -> &'static str {
    match kind {
        CheckpointingKind::None => "nothing",
        CheckpointingKind::Selective => "all but attention and matrix products",
        CheckpointingKind::Full => "everything",
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
    }
}
