//! A profile on a cluster: times, and token limits of micro-batches.

use crate::cost::profile::SchemeProfile;
use crate::cost::{ClassCost, ClassId, CostProfile, RankMemory, RankPool};
use crate::error::{Error, Result};
use crate::spec::{Cluster, MemoryRule, Scheme};
use crate::units::{Tokens, whole};

/// The cost of every class of replicas of a profile on one cluster: each scheme on each pool of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    profile: CostProfile,
    cluster: Cluster,
    memory: MemoryRule,
    classes: Vec<ClassCost>,
}

impl CostModel {
    /// The profile's costs on `cluster`; no micro-batch exceeds its cap.
    ///
    /// Caps are computed, never read: the optimizer state is sharded over all ranks of the cluster, so a larger cluster
    /// leaves more room for activations.
    pub fn new(profile: CostProfile, cluster: Cluster) -> CostModel {
        let pool = RankPool::of_profile(&profile);
        CostModel::with_pools(profile, cluster, &[pool])
    }

    /// The costs of every scheme on each of these pools of ranks.
    fn with_pools(profile: CostProfile, cluster: Cluster, pools: &[RankPool]) -> CostModel {
        let classes = pools.iter().flat_map(|&pool| profile.schemes.iter().map(move |entry| (entry, pool)));
        let cost = |(place, (entry, pool))| ClassCost::new(ClassId(place), &profile, entry, cluster, pool);
        let classes = classes.enumerate().map(cost).collect();
        CostModel { profile, cluster, memory: MemoryRule::PerMicroBatch, classes }
    }

    /// The same costs with another memory rule.
    #[must_use]
    pub fn with_memory(self, memory: MemoryRule) -> CostModel {
        let classes = self.classes.into_iter().map(|cost| cost.with_memory(memory)).collect();
        CostModel { memory, classes, ..self }
    }

    /// The memory rule of micro-batches.
    pub fn memory(&self) -> MemoryRule {
        self.memory
    }

    /// The profile behind the costs.
    pub fn profile(&self) -> &CostProfile {
        &self.profile
    }

    /// The cluster.
    pub fn cluster(&self) -> Cluster {
        self.cluster
    }

    /// Every class, by its id.
    pub fn classes(&self) -> &[ClassCost] {
        &self.classes
    }

    /// The cost of one scheme, which must admit at least one token.
    pub fn scheme(&self, scheme: Scheme) -> Result<&ClassCost> {
        self.class_of(scheme).map(|class| self.class(class))
    }

    /// The class of a scheme's replicas: on the first pool of ranks where it admits at least one token.
    pub fn class_of(&self, scheme: Scheme) -> Result<ClassId> {
        let entry = self.profile.scheme(scheme)?;
        let cost = self.classes_of(scheme).find(|cost| cost.cap().0 > 0);
        cost.map(ClassCost::id).ok_or_else(|| self.too_large(entry))
    }

    /// The cost of one class of this model.
    pub fn class(&self, class: ClassId) -> &ClassCost {
        &self.classes[class.index()]
    }

    /// The memory of a rank of each stage while the stages hold `tokens` tokens of micro-batches.
    ///
    /// If the profile has the fullest stage's figures alone, the other stages count as equally full for the same
    /// tokens.
    pub fn rank_memory(&self, scheme: Scheme, tokens: &[Tokens]) -> Result<Vec<RankMemory>> {
        let entry = self.profile.scheme(scheme)?;
        let stages = self.profile.stage_memory(entry, self.cluster);
        Ok(stages.zip(tokens).map(|(stage, &tokens)| stage.holding(tokens)).collect())
    }

    fn too_large(&self, entry: &SchemeProfile) -> Error {
        let (needed, available) = self.needed_and_available(entry);
        Error::SchemeTooLarge {
            scheme: entry.scheme,
            gpus: self.cluster.gpus(),
            needed,
            multiple: self.profile.memory.token_multiple,
            available,
        }
    }

    /// The error for these schemes, none of which leaves memory for a token; it names the one that takes least.
    pub(crate) fn all_too_large(&self, schemes: &[Scheme]) -> Option<Error> {
        let entries = self.profile.schemes.iter().filter(|entry| schemes.contains(&entry.scheme));
        let least = entries.min_by_key(|entry| self.needed_and_available(entry).0)?;
        let (needed, available) = self.needed_and_available(least);
        let (profile, gpus) = (self.profile.name.clone(), self.cluster.gpus());
        Some(Error::SchemesTooLarge { profile, gpus, least: least.scheme, needed, available })
    }

    /// Bytes of the fullest stage's ranks before the first token, and bytes of a rank, on the pool of most memory.
    fn needed_and_available(&self, entry: &SchemeProfile) -> (u64, u64) {
        let pools = self.classes_of(entry.scheme).map(|cost| cost.class().pool);
        let pool = pools.max_by_key(|pool| pool.memory_bytes).expect("every scheme of the profile has a class");
        (whole(self.profile.fullest_stage(entry, self.cluster, pool).empty.total()), pool.memory_bytes)
    }

    fn classes_of(&self, scheme: Scheme) -> impl Iterator<Item = &ClassCost> {
        self.classes.iter().filter(move |cost| cost.scheme() == scheme)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{PerStage, preset};
    use crate::spec::CheckpointingKind;
    use crate::units::count;

    fn cap_of(profile: &str, gpus: u32, scheme: &str) -> u64 {
        let cluster = Cluster::new(gpus, 8).unwrap();
        let model = CostModel::new(preset(profile).unwrap(), cluster);
        let scheme: Scheme = scheme.parse().unwrap();
        model.classes().iter().find(|cost| cost.scheme() == scheme).unwrap().cap().0
    }

    /// The figures follow from the artifact's own memory formula with the optimizer state on that many ranks.
    #[test]
    fn caps_depend_on_the_cluster() {
        for (scheme, tokens) in
            [("<tp4>", 7_808), ("<tp4,pp2>", 12_416), ("<tp8>", 21_888), ("<tp8,pp3>", 27_264), ("<tp16>", 43_520)]
        {
            assert_eq!(cap_of("llama-32b-a800", 64, scheme), tokens, "{scheme} on 64");
        }
        assert_eq!(cap_of("llama-32b-a800", 1024, "<tp4>"), 9_472);
        assert_eq!(cap_of("llama-7b-a800", 32, "<tp2>"), 21_888);
        assert_eq!(cap_of("llama-13b-a800", 32, "<tp2,pp2>"), 12_928);
    }

    /// Alone, a sequence may take the tokens of a full pipeline; without a pipeline, or with uneven stages, the cap.
    #[test]
    fn the_in_flight_limit_lengthens_what_even_pipelines_admit() {
        let mut profile = preset("llama-32b-a800").unwrap();
        let uneven = profile.schemes.iter().position(|entry| entry.scheme.to_string() == "<tp4,pp2>").unwrap();
        profile.schemes[uneven].stage_multipliers = Some(vec![1.0, 1.3]);
        let stated = profile.schemes.iter().position(|entry| entry.scheme.to_string() == "<tp4,pp6>").unwrap();
        profile.schemes[stated].stage_layers = Some(vec![5, 11, 11, 11, 11, 11]);
        let model = CostModel::new(profile, Cluster::new(64, 8).unwrap());
        let in_flight = model.clone().with_memory(MemoryRule::InFlight);
        for (scheme, cap, longest) in [
            ("<tp16>", 43_520, 43_520),
            ("<tp4,pp2>", 12_416, 12_416),
            ("<tp4,pp4>", 14_592, 58_368),
            ("<tp4,pp6>", 15_360, 15_360),
            ("<tp8,pp2>", 25_856, 51_712),
            ("<tp8,pp4>", 27_904, 111_616),
        ] {
            let of = |model: &CostModel| model.scheme(scheme.parse().unwrap()).unwrap().clone();
            assert_eq!((of(&model).longest(), of(&in_flight).cap()), (Tokens(cap), Tokens(cap)), "{scheme}");
            assert_eq!(of(&in_flight).longest(), Tokens(longest), "{scheme}");
            assert!(of(&in_flight).admits(Tokens(longest)) && !of(&in_flight).admits(Tokens(longest + 1)), "{scheme}");
        }
        assert_eq!(in_flight.memory(), MemoryRule::InFlight);
        assert_eq!(in_flight.with_memory(MemoryRule::PerMicroBatch), model);
    }

    /// 85,198,897,152 bytes, less 15,980,298,240 reserved and a 64th of the 405,601,517,568 of the optimizer state, are
    /// 62,881,075,200.
    #[test]
    fn the_fullest_stage_decides_and_each_has_its_own_memory() {
        let mut profile = preset("llama-32b-a800").unwrap();
        let scheme: Scheme = "<tp8,pp2>".parse().unwrap();
        let place = profile.schemes.iter().position(|entry| entry.scheme == scheme).unwrap();
        let with = |profile: &mut CostProfile, resident: [u64; 2], activations: [f64; 2]| {
            profile.schemes[place].resident_bytes = PerStage::each(resident.to_vec());
            profile.schemes[place].activation_bytes_per_token = PerStage::each(activations.to_vec());
            CostModel::new(profile.clone(), Cluster::new(64, 8).unwrap())
        };
        let longest = |model: CostModel| model.with_memory(MemoryRule::InFlight).scheme(scheme).unwrap().longest().0;
        // The first has two micro-batches in flight: 2 MB per token of each, or 1 MB per token of both together.
        let first = with(&mut profile, [22_881_075_200, 42_881_075_200], [2e6, 0.5e6]);
        assert_eq!(first.scheme(scheme).unwrap().cap(), Tokens(19_968));
        let resident = [Tokens(30_000), Tokens(20_000)];
        let memory = first.rank_memory(scheme, &resident).unwrap();
        let (reserved, optimizer) = (15_980_298_240.0, 405_601_517_568.0 / 64.0);
        let expected = [(22_881_075_200.0, 3e10), (42_881_075_200.0, 1e10)];
        assert_eq!(
            memory,
            expected.map(|(resident, activations)| RankMemory { reserved, optimizer, resident, activations })
        );
        // Both caps at once take 20 GB on the last stage, which it has: unequal times do not change that.
        assert_eq!(longest(first), 2 * 19_968);
        profile.schemes[place].stage_multipliers = Some(vec![0.9, 1.1]);
        let last = with(&mut profile, [22_881_075_200, 42_881_075_200], [2e6, 1.6e6]);
        assert_eq!(last.scheme(scheme).unwrap().cap(), Tokens(12_416));
        // The stage holds one cap only.
        assert_eq!(longest(last), 12_416);
        let head = with(&mut profile, [22_881_075_200, 42_881_075_200], [2e6, 0.6e6]);
        assert_eq!(head.scheme(scheme).unwrap().cap(), Tokens(19_968));
        assert_eq!(longest(head), 19_968);
        let even = with(&mut profile, [22_881_075_200; 2], [2e6, 1e6]);
        assert_eq!(longest(even), 2 * 19_968);
        let mut again = profile.clone();
        again.schemes[place].scheme = scheme.under(CheckpointingKind::Full);
        let again = CostModel::new(again, Cluster::new(64, 8).unwrap()).with_memory(MemoryRule::InFlight);
        assert_eq!(again.scheme(scheme.under(CheckpointingKind::Full)).unwrap().longest(), Tokens(19_968));
        let full = with(&mut profile, [22_881_075_200, 62_881_075_200], [2e6, 1e6]);
        let error = full.scheme(scheme).unwrap_err().to_string();
        assert!(error.contains("81,252 of 81,252 MiB"), "{error}");
    }

    /// The first stage has three quarters of the optimizer state, or an even share together with another scheme or idle
    /// ranks.
    #[test]
    fn shards_are_on_the_stages_ranks_if_these_always_hold_the_same() {
        let mut profile = preset("llama-32b-a800").unwrap();
        profile.schemes.retain(|entry| ["<tp8,pp2>", "<tp8>"].contains(&entry.scheme.to_string().as_str()));
        let scheme: Scheme = "<tp8,pp2>".parse().unwrap();
        let all = profile.memory.optimizer_bytes;
        for entry in &mut profile.schemes {
            entry.stage_optimizer_bytes = (entry.scheme == scheme).then(|| vec![all / 4 * 3, all / 4]);
        }
        let optimizer = |profile: &CostProfile, gpus: u32| {
            let model = CostModel::new(profile.clone(), Cluster::new(gpus, 8).unwrap());
            let memory = model.rank_memory(scheme, &[Tokens(1), Tokens(1)]).unwrap();
            memory.iter().map(|one| one.optimizer * f64::from(gpus) / count(all)).collect::<Vec<_>>()
        };
        assert_eq!(optimizer(&profile, 64), [1.0, 1.0]);
        profile.schemes.retain(|entry| entry.scheme == scheme);
        assert_eq!(optimizer(&profile, 64), [1.5, 0.5]);
        assert_eq!(optimizer(&profile, 24), [1.0, 1.0]);
    }

    #[test]
    fn a_scheme_without_room_is_refused_with_its_bytes() {
        let cluster = Cluster::new(8, 8).unwrap();
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), cluster);
        let error = model.scheme("<pp4>".parse().unwrap()).unwrap_err();
        assert_eq!(error.code(), "scheme_too_large");
    }

    #[test]
    fn equal_schemes_on_ranks_of_different_speed_and_memory_are_two_classes() {
        let profile = preset("llama-32b-a800").unwrap();
        let usual = RankPool::of_profile(&profile);
        let fast = RankPool { speed: 2.0, memory_bytes: 2 * usual.memory_bytes };
        let schemes = profile.schemes.len();
        let model = CostModel::with_pools(profile, Cluster::new(64, 8).unwrap(), &[usual, fast]);
        let slow_class = model.class_of("<tp16>".parse().unwrap()).unwrap();
        let (slow, quick) = (model.class(slow_class), model.class(ClassId(slow_class.index() + schemes)));
        assert_eq!(slow.scheme(), quick.scheme());
        assert_ne!((slow.id(), slow.class()), (quick.id(), quick.class()));
        let time = |cost: &ClassCost| cost.micro_batch_ms([Tokens(9_000), Tokens(700)].into_iter());
        assert!(time(quick).is_close(time(slow) * 0.5));
        assert!(quick.cap() > slow.cap());
    }

    /// On 8 ranks <pp4> needs 66 GB before its first token, besides a reserve of 16 GB.
    #[test]
    fn a_scheme_too_large_for_every_pool_is_refused_with_the_memory_of_the_largest() {
        let profile = preset("llama-32b-a800").unwrap();
        let usual = RankPool::of_profile(&profile);
        let small = RankPool { memory_bytes: usual.memory_bytes / 2, ..usual };
        let large = RankPool { memory_bytes: usual.memory_bytes + (1 << 30), ..usual };
        let scheme: Scheme = "<pp4>".parse().unwrap();
        let model = CostModel::with_pools(profile, Cluster::new(8, 8).unwrap(), &[small, large, usual]);
        let expected = large.memory_bytes;
        let (one, all) = (model.scheme(scheme).unwrap_err(), model.all_too_large(&[scheme]).unwrap());
        assert!(matches!(one, Error::SchemeTooLarge { available, .. } if available == expected), "{one}");
        assert!(matches!(all, Error::SchemesTooLarge { available, .. } if available == expected), "{all}");
    }

    #[test]
    fn time_is_the_stated_formula() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let cost = model.scheme("<tp16>".parse().unwrap()).unwrap();
        let alone = cost.micro_batch_ms([Tokens(32_768)].into_iter());
        assert!(
            (alone.0 - (1.377_797_23e-6 * 32_768.0 * 32_768.0 + 0.102_435_387 * 32_768.0 + 145.747_611_153_930_85))
                .abs()
                < 1e-9
        );
        // The planner notes give 4,982 ms for this sequence alone.
        assert!((alone.0 - 4_982.0).abs() < 1.0);
    }
}
