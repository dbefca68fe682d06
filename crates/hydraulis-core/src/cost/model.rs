//! A profile on a cluster: times, and token limits of micro-batches.

use std::borrow::Cow;

use crate::cost::memory::FullestStage;
use crate::cost::profile::SchemeProfile;
use crate::cost::{ClassCost, CostProfile, RankMemory, RankPool, ReplicaClass};
use crate::error::{ClusterError, Error, Result};
use crate::spec::{Cluster, MemoryRule, Scheme};
use crate::units::Tokens;

/// The costs of a profile's schemes on one cluster, for replicas on any of its ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    profile: CostProfile,
    cluster: Cluster,
    memory: MemoryRule,
    /// The cost of each scheme on the cluster's best ranks.
    best: Vec<ClassCost>,
}

impl CostModel {
    /// The profile's costs on `cluster`; no micro-batch exceeds its cap.
    ///
    /// Caps are computed, never read: the optimizer state is sharded over all ranks of the cluster, so a larger cluster
    /// leaves more room for activations.
    ///
    /// Where a cluster states devices and no rates, each device has its own rate.
    pub fn new(profile: CostProfile, cluster: Cluster) -> CostModel {
        let cluster = with_rates_of_devices(&profile, cluster);
        let pool = RankPool::best_of(&profile, &cluster);
        let cost =
            |entry: &SchemeProfile| ClassCost::new(&profile, entry, &cluster, ReplicaClass::on(entry.scheme, pool));
        let best = profile.schemes.iter().map(cost).collect();
        CostModel { profile, cluster, memory: MemoryRule::PerMicroBatch, best }
    }

    /// The same costs with another memory rule.
    #[must_use]
    pub fn with_memory(self, memory: MemoryRule) -> CostModel {
        let best = self.best.into_iter().map(|cost| cost.with_memory(memory)).collect();
        CostModel { memory, best, ..self }
    }

    /// Refuses a cluster with a device of which the profile has no times.
    pub fn check_devices(&self) -> Result<()> {
        let devices = self.profile.devices();
        let unknown = |&rank: &u32| usize::from(self.cluster.device(rank)) >= devices;
        match (0..self.cluster.gpus()).find(unknown) {
            Some(rank) => {
                let (device, profile) = (self.cluster.device(rank), self.profile.name.clone());
                Err(ClusterError::Device { rank, device, profile, devices }.into())
            }
            None => Ok(()),
        }
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
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Each scheme of the profile on ranks like the cluster's fastest, with as much memory as its largest: no replica admits
    /// more, and of one device none is faster.
    pub fn best(&self) -> &[ClassCost] {
        &self.best
    }

    /// The cost of one scheme on the cluster's best ranks, where it must admit at least one token.
    pub fn scheme(&self, scheme: Scheme) -> Result<&ClassCost> {
        let entry = self.profile.scheme(scheme)?;
        let cost = self.best.iter().find(|cost| cost.scheme() == scheme).filter(|cost| cost.cap().0 > 0);
        cost.ok_or_else(|| self.too_large(entry, &self.best_class(scheme)))
    }

    /// The cost of a replica that occupies these ranks of the cluster, given stage by stage; it must admit at least one
    /// token.
    pub fn replica(&self, scheme: Scheme, ranks: &[u32]) -> Result<Cow<'_, ClassCost>> {
        if self.cluster.is_uniform() {
            return self.scheme(scheme).map(Cow::Borrowed);
        }
        self.class(ReplicaClass::of_ranks(scheme, &self.profile, &self.cluster, ranks)).map(Cow::Owned)
    }

    /// The cost of a class of replicas, which must admit at least one token.
    pub fn class(&self, class: ReplicaClass) -> Result<ClassCost> {
        let entry = self.profile.scheme(class.scheme)?;
        self.admitting(entry, ClassCost::new(&self.profile, entry, &self.cluster, class))
    }

    /// The memory of a rank of each stage while the stages hold `tokens` tokens of micro-batches.
    ///
    /// If the profile has the fullest stage's figures alone, the other stages count as equally full for the same
    /// tokens. `largest` are the tokens of the replica's largest micro-batch; absent for equal ones, as many as a stage
    /// holds at once.
    pub fn rank_memory(&self, scheme: Scheme, tokens: &[Tokens], largest: Option<Tokens>) -> Result<Vec<RankMemory>> {
        let entry = self.profile.scheme(scheme)?;
        let stages = self.profile.stage_memory(entry, &self.cluster);
        Ok(stages.zip(tokens).map(|(stage, &tokens)| stage.holding(tokens, largest)).collect())
    }

    /// The cost of a class that bounds every class of at most its speed and memory; it must admit at least one token.
    pub(crate) fn exceeding(&self, class: ReplicaClass) -> Result<ClassCost> {
        let entry = self.profile.scheme(class.scheme)?;
        self.admitting(entry, ClassCost::exceeding(&self.profile, entry, &self.cluster, class))
    }

    fn admitting(&self, entry: &SchemeProfile, cost: ClassCost) -> Result<ClassCost> {
        if cost.cap().0 == 0 {
            return Err(self.too_large(entry, cost.class()));
        }
        Ok(cost.with_memory(self.memory))
    }

    fn too_large(&self, entry: &SchemeProfile, class: &ReplicaClass) -> Error {
        let fullest = self.profile.fullest_stage(entry, &self.cluster, &class.stages);
        self.host_too_small(entry.scheme, fullest).unwrap_or(Error::SchemeTooLarge {
            scheme: entry.scheme,
            gpus: self.cluster.gpus(),
            needed: fullest.empty_bytes,
            multiple: self.profile.memory.token_multiple,
            available: fullest.memory_bytes,
        })
    }

    /// The error for a scheme whose copies find no room in host memory; none if the device has no room either.
    fn host_too_small(&self, scheme: Scheme, fullest: FullestStage) -> Option<Error> {
        let (needed, available) = fullest.lacking_host_bytes.zip(self.profile.hardware.host_memory_bytes)?;
        let multiple = self.profile.memory.token_multiple;
        Some(Error::HostMemoryTooSmall { scheme, multiple, needed, available })
    }

    /// The error for these schemes, none of which leaves memory for a token; it names the one that takes least.
    pub(crate) fn all_too_large(&self, schemes: &[Scheme]) -> Option<Error> {
        let entries = self.profile.schemes.iter().filter(|entry| schemes.contains(&entry.scheme));
        let fullest = |entry: &SchemeProfile| {
            self.profile.fullest_stage(entry, &self.cluster, &self.best_class(entry.scheme).stages)
        };
        let (least, fullest) =
            entries.map(|entry| (entry.scheme, fullest(entry))).min_by_key(|(_, stage)| stage.empty_bytes)?;
        Some(self.host_too_small(least, fullest).unwrap_or(Error::SchemesTooLarge {
            profile: self.profile.name.clone(),
            gpus: self.cluster.gpus(),
            least,
            needed: fullest.empty_bytes,
            available: fullest.memory_bytes,
        }))
    }

    fn best_class(&self, scheme: Scheme) -> ReplicaClass {
        ReplicaClass::on(scheme, RankPool::best_of(&self.profile, &self.cluster))
    }
}

/// The cluster with the rate of each rank's device, if it states devices alone.
fn with_rates_of_devices(profile: &CostProfile, cluster: Cluster) -> Cluster {
    match cluster.devices() {
        Some(devices) if cluster.rates().is_none() => {
            let rates = devices.iter().map(|&device| profile.of_device(device).1).collect();
            cluster.with_rates(rates).expect("a checked profile has a valid rate for each device")
        }
        _ => cluster,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Efficiency, PerStage, device, preset};
    use crate::spec::CheckpointingKind;
    use crate::units::{Millis, count, whole};

    fn cap_of(profile: &str, gpus: u32, scheme: &str) -> u64 {
        let cluster = Cluster::new(gpus, 8).unwrap();
        let model = CostModel::new(preset(profile).unwrap(), cluster);
        let scheme: Scheme = scheme.parse().unwrap();
        model.best().iter().find(|cost| cost.scheme() == scheme).unwrap().cap().0
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
    fn the_in_flight_limit_admits_longer_sequences_in_even_pipelines() {
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
        let memory = first.rank_memory(scheme, &resident, None).unwrap();
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
        again.schemes[place].scheme = scheme.with_checkpointing(CheckpointingKind::Full);
        let again = CostModel::new(again, Cluster::new(64, 8).unwrap()).with_memory(MemoryRule::InFlight);
        assert_eq!(again.scheme(scheme.with_checkpointing(CheckpointingKind::Full)).unwrap().longest(), Tokens(19_968));
        let full = with(&mut profile, [22_881_075_200, 62_881_075_200], [2e6, 1e6]);
        let error = full.scheme(scheme).unwrap_err().to_string();
        assert!(error.contains("81,252 of 81,252 MiB"), "{error}");
    }

    /// The first stage has three quarters of the optimizer state, or an even share together with another scheme or idle
    /// ranks.
    #[test]
    fn shards_are_on_the_stages_ranks_if_local_shards_never_change() {
        let mut profile = preset("llama-32b-a800").unwrap();
        profile.schemes.retain(|entry| ["<tp8,pp2>", "<tp8>"].contains(&entry.scheme.to_string().as_str()));
        let scheme: Scheme = "<tp8,pp2>".parse().unwrap();
        let all = profile.memory.optimizer_bytes;
        for entry in &mut profile.schemes {
            entry.stage_optimizer_bytes = (entry.scheme == scheme).then(|| vec![all / 4 * 3, all / 4]);
        }
        let optimizer = |profile: &CostProfile, gpus: u32| {
            let model = CostModel::new(profile.clone(), Cluster::new(gpus, 8).unwrap());
            let memory = model.rank_memory(scheme, &[Tokens(1), Tokens(1)], None).unwrap();
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

    /// On 8 ranks <tp8,offload> has room on the device, and <1,offload> has none: 3 MiB of host memory are too few.
    #[test]
    fn copies_without_room_in_host_memory_are_refused_with_their_bytes() {
        let (cluster, kinds) = (Cluster::new(8, 8).unwrap(), [CheckpointingKind::Offload]);
        let model = preset("llama-7b-a800").unwrap().model.unwrap();
        let device = device("A100-40GB").unwrap();
        let mut profile =
            CostProfile::analytic(&model, &cluster, &device, &kinds, &Efficiency::shipped(&device).unwrap()).unwrap();
        profile.hardware.host_memory_bytes = Some(3 << 20);
        let model = CostModel::new(profile, cluster);
        let scheme: Scheme = "<tp8,offload>".parse().unwrap();
        let entry = model.profile().scheme(scheme).unwrap();
        let host_bytes =
            entry.host_bytes_per_token.as_ref().unwrap().of(0) * count(model.profile().memory.token_multiple);
        let expected = Error::HostMemoryTooSmall {
            scheme,
            multiple: model.profile().memory.token_multiple,
            needed: whole(host_bytes.ceil()),
            available: 3 << 20,
        };
        let error = model.scheme(scheme).unwrap_err();
        assert_eq!((error.to_string(), error.code()), (expected.to_string(), "scheme_too_large"));
        let all = model.all_too_large(&[scheme, scheme.with_checkpointing(CheckpointingKind::Offload)]).unwrap();
        assert_eq!(all.to_string(), expected.to_string());
        let full = model.scheme("<1,offload>".parse().unwrap()).unwrap_err();
        assert!(matches!(full, Error::SchemeTooLarge { .. }), "{full}");
    }

    #[test]
    fn equal_schemes_on_ranks_of_different_speed_and_memory_are_two_classes() {
        let profile = preset("llama-32b-a800").unwrap();
        let usual = profile.hardware.memory_bytes;
        let rates = (0..64).map(|rank| if rank < 32 { 2.0 } else { 1.0 }).collect();
        let memory = (0..64).map(|rank| if rank < 32 { 2 * usual } else { usual }).collect();
        let cluster = Cluster::new(64, 8).unwrap().with_rates(rates).unwrap().with_memory_bytes(memory).unwrap();
        let model = CostModel::new(profile, cluster);
        let on =
            |first: u32| model.replica("<tp16>".parse().unwrap(), &(first..first + 16).collect::<Vec<_>>()).unwrap();
        let (quick, slow) = (on(0), on(48));
        assert_eq!(slow.scheme(), quick.scheme());
        assert_ne!(slow.class(), quick.class());
        let time = |cost: &ClassCost| cost.micro_batch_ms([Tokens(9_000), Tokens(700)].into_iter());
        assert!(time(&quick).is_close(time(&slow) * 0.5));
        assert!(quick.cap() > slow.cap());
        assert_eq!(*quick, *model.scheme("<tp16>".parse().unwrap()).unwrap());
        // One slow rank makes its whole group slow.
        assert_eq!(on(17).class(), slow.class());
    }

    #[test]
    fn a_micro_batch_takes_the_least_time_or_what_its_sequences_take() {
        let mut profile = preset("llama-32b-a800").unwrap();
        let scheme: Scheme = "<tp8>".parse().unwrap();
        let time = |profile: &CostProfile, tokens: &[u64]| {
            let model = CostModel::new(profile.clone(), Cluster::new(64, 8).unwrap());
            model.scheme(scheme).unwrap().micro_batch_ms(tokens.iter().copied().map(Tokens))
        };
        let (short, long) = (time(&profile, &[300, 20]), time(&profile, &[9_000, 700]));
        let entry = profile.schemes.iter_mut().find(|entry| entry.scheme == scheme).unwrap();
        entry.least_ms = 500.0;
        assert!(short < Millis(500.0) && Millis(500.0) < long);
        assert_eq!(time(&profile, &[300, 20]), Millis(500.0));
        assert_eq!(time(&profile, &[9_000, 700]), long);
        // Slow ranks take longer for either.
        let cluster = Cluster::new(8, 8).unwrap().with_rates(vec![0.5; 8]).unwrap();
        let slow = CostModel::new(profile, cluster);
        let slow = slow.replica(scheme, &(0..8).collect::<Vec<_>>()).unwrap();
        assert_eq!(slow.micro_batch_ms([Tokens(320)].into_iter()) * slow.slowest_multiplier(), Millis(1_000.0));
    }

    #[test]
    fn a_stage_takes_as_long_as_its_slowest_rank() {
        let mut rates = vec![1.0; 64];
        rates[6] = 0.25;
        let cluster = Cluster::new(64, 8).unwrap().with_rates(rates).unwrap();
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), cluster);
        let scheme: Scheme = "<tp4,pp2>".parse().unwrap();
        let (usual, slow) =
            (model.scheme(scheme).unwrap(), model.replica(scheme, &(0..8).collect::<Vec<_>>()).unwrap());
        let stage_ms = |cost: &ClassCost, stage: usize| {
            cost.micro_batch_ms([Tokens(5_000)].into_iter()) * cost.stage_multipliers()[stage]
        };
        assert!(stage_ms(&slow, 0).is_close(stage_ms(usual, 0)));
        assert!(stage_ms(&slow, 1).is_close(stage_ms(usual, 1) * 4.0));
        assert_eq!(slow.cap(), usual.cap());
    }

    /// On 8 ranks <pp4> needs 66 GB before its first token, besides a reserve of 16 GB.
    #[test]
    fn a_replica_too_large_for_its_ranks_is_refused_with_their_memory() {
        let profile = preset("llama-32b-a800").unwrap();
        let scheme: Scheme = "<pp4>".parse().unwrap();
        let (most, least) = (profile.hardware.memory_bytes + (1 << 20), 1 << 30);
        let memory = vec![most, most, most, most, most, least, most, most];
        let model = CostModel::new(profile, Cluster::new(8, 8).unwrap().with_memory_bytes(memory).unwrap());
        let refused = |error: Error, expected: u64| match error {
            Error::SchemeTooLarge { available, .. } | Error::SchemesTooLarge { available, .. } => available == expected,
            _ => false,
        };
        assert!(refused(model.scheme(scheme).unwrap_err(), most));
        assert!(refused(model.all_too_large(&[scheme]).unwrap(), most));
        assert!(refused(model.replica(scheme, &[4, 5, 6, 7]).unwrap_err(), least));
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
