//! Schemes that another one replaces without loss.

use crate::cost::{ClassCost, CostModel};
use crate::spec::Scheme;
use crate::units::Millis;

/// The schemes that no other one dominates; of two equal ones the first stays.
///
/// A replica of a dominating scheme fits where a replica of the other stands, admits every micro-batch of it, and takes
/// no more time for any. No plan is lost then: the iteration of every strategy is at least as short with the other
/// replica. On ranks of different speed or memory all schemes stay.
pub fn undominated(schemes: &[Scheme], cost: &CostModel) -> Vec<Scheme> {
    let known = |scheme: Scheme| cost.scheme(scheme).ok();
    let is_dominated = |place: usize| {
        let own = known(schemes[place]);
        let others = schemes.iter().enumerate().filter(|(other, _)| *other != place);
        others.into_iter().any(|(other, &scheme)| match (known(scheme), own) {
            (Some(one), Some(own)) => dominates(one, own) && (other < place || !dominates(own, one)),
            _ => false,
        })
    };
    let is_kept = |place: &usize| !cost.cluster().is_uniform() || !is_dominated(*place);
    (0..schemes.len()).filter(is_kept).map(|place| schemes[place]).collect()
}

fn dominates(one: &ClassCost, other: &ClassCost) -> bool {
    let (width, place) = (one.scheme().stage_group_ranks(), other.scheme().stage_group_ranks());
    let fits = one.scheme().pp() == other.scheme().pp() && place.is_multiple_of(width);
    let mut stages = one.stage_multipliers().iter().zip(other.stage_multipliers());
    let is_like =
        one.stage_multipliers().len() == other.stage_multipliers().len() && stages.all(|(one, other)| one <= other);
    let is_no_slower = |share: fn(f64) -> f64| {
        let (own, others) = (share(one.forward_share()), share(other.forward_share()));
        own * one.quadratic_ms_per_token2() <= others * other.quadratic_ms_per_token2()
            && own * one.linear_ms_per_token() <= others * other.linear_ms_per_token()
            && own * one.fixed_ms().0 <= others * other.fixed_ms().0
            && own * one.least_ms().0 <= others * other.ms_of_work(Millis::ZERO).0
    };
    // In a pipeline forward and backward of a stage are apart.
    let has_equal_shares = one.forward_share().total_cmp(&other.forward_share()).is_eq();
    let is_fast = if one.scheme().pp() == 1 || has_equal_shares {
        is_no_slower(|_| 1.0)
    } else {
        is_no_slower(|forward| forward) && is_no_slower(|forward| 1.0 - forward)
    };
    let (limit, least) = (one.in_flight_limit(), other.in_flight_limit());
    let admits = one.cap() >= other.cap()
        && one.longest() >= other.longest()
        && limit.micro_batches == least.micro_batches
        && limit.tokens >= least.tokens;
    fits && is_like && is_fast && admits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::usable_schemes;
    use crate::cost::{CostProfile, Efficiency, SchemeProfile, device, preset};
    use crate::spec::{CheckpointingKind, Cluster, MemoryRule};

    fn rich() -> CostModel {
        let model = preset("llama-7b-a800").unwrap().model.unwrap();
        let cluster = Cluster::new(16, 8).unwrap();
        let kinds = [CheckpointingKind::None, CheckpointingKind::Selective, CheckpointingKind::Full];
        let on = device("H100").unwrap();
        let efficiency = Efficiency::shipped(&on).unwrap();
        let profile = CostProfile::analytic(&model, &cluster, &on, &kinds, &efficiency).unwrap();
        CostModel::new(profile, cluster)
    }

    #[test]
    fn each_left_out_has_one_that_is_never_worse() {
        for cost in [rich(), rich().with_memory(MemoryRule::InFlight)] {
            let usable = usable_schemes(&cost);
            let kept = undominated(&usable, &cost);
            assert!(!kept.is_empty() && kept.len() < usable.len(), "{} of {}", kept.len(), usable.len());
            for scheme in usable.iter().filter(|scheme| !kept.contains(scheme)) {
                let own = cost.scheme(*scheme).unwrap();
                let is_replaced = kept.iter().map(|&other| cost.scheme(other).unwrap()).any(|other| {
                    let is_fast = [1, 100, 3_000, 20_000].into_iter().all(|tokens| {
                        let ms = |cost: &ClassCost| cost.micro_batch_ms([crate::Tokens(tokens)].into_iter());
                        ms(other) <= ms(own)
                    });
                    is_fast && other.longest() >= own.longest() && other.scheme().ranks() <= scheme.ranks()
                });
                assert!(is_replaced, "{scheme}");
            }
        }
    }

    #[test]
    fn a_scheme_with_less_least_time_stays() {
        let profile = preset("llama-7b-a800").unwrap();
        let scheme: Scheme = "<tp2>".parse().unwrap();
        let twin = |fixed_ms: f64, least_ms: f64| {
            let entry = CostProfile { schemes: vec![profile.scheme(scheme).unwrap().clone()], ..profile.clone() };
            let schemes = entry.schemes.into_iter().map(|own| SchemeProfile { fixed_ms, least_ms, ..own }).collect();
            let cost = CostModel::new(CostProfile { schemes, ..profile.clone() }, Cluster::new(8, 8).unwrap());
            cost.scheme(scheme).unwrap().clone()
        };
        let (without, with) = (twin(30.0, 0.0), twin(20.0, 50.0));
        assert!(!dominates(&with, &without) && !dominates(&without, &with));
        // No micro-batch takes less than its fixed time.
        assert!(dominates(&twin(20.0, 30.0), &without));
        assert!(dominates(&twin(20.0, 40.0), &with));
    }

    #[test]
    fn measured_schemes_that_gain_anywhere_stay() {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let usable = usable_schemes(&cost);
        let kept = undominated(&usable, &cost);
        for scheme in ["<tp4>", "<tp8>", "<tp16>", "<tp2,pp2>"] {
            assert!(kept.contains(&scheme.parse().unwrap()), "{scheme}");
        }
        let slow = Cluster::new(64, 8).unwrap().with_rates((0..64).map(|rank| f64::from(1 + rank % 2)).collect());
        let uneven = CostModel::new(preset("llama-32b-a800").unwrap(), slow.unwrap());
        assert_eq!(undominated(&usable, &uneven), usable);
    }
}
