//! Predicted profiles: close to measured profiles that they were not learnt from, and valid for any model and device.

use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::{CostModel, CostProfile, DEVICES, Efficiency, PRESETS, SchemeProfile, device, preset};
use hydraulis_core::search::Planner;
use hydraulis_core::spec::{CheckpointingKind, Cluster, ContextKind, ModelPart, ModelShape, ParameterRow, Scheme};

fn shipped() -> Vec<CostProfile> {
    PRESETS.iter().map(|(name, _)| preset(name).unwrap()).collect()
}

fn cluster() -> Cluster {
    Cluster::new(64, 8).unwrap()
}

fn llama_32b() -> ModelShape {
    preset("llama-32b-a800").unwrap().model.unwrap()
}

fn analytic(device_name: &str, checkpointing: CheckpointingKind) -> CostProfile {
    let on = device(device_name).unwrap();
    let efficiency = Efficiency::shipped(&on).unwrap();
    CostProfile::analytic(&llama_32b(), &cluster(), &on, &[checkpointing], &efficiency).unwrap()
}

/// Relative errors of the times of single sequences, under each scheme, at each admitted length.
fn errors(predicted: &CostProfile, measured: &CostProfile) -> Vec<f64> {
    let [predicted, measured] = [predicted, measured].map(|profile| CostModel::new(profile.clone(), cluster()));
    let mut errors = Vec::new();
    for truth in measured.best() {
        let extrapolation = predicted.best().iter().find(|cost| cost.scheme() == truth.scheme()).unwrap();
        for tokens in [512, 2_048, 8_192, 32_768].map(Tokens).into_iter().filter(|&tokens| tokens <= truth.cap()) {
            let ms = |cost: &hydraulis_core::cost::ClassCost| cost.micro_batch_ms([tokens].into_iter()).0;
            errors.push((ms(extrapolation) / ms(truth) - 1.0).abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    errors
}

#[test]
fn each_table_is_predicted_from_the_others() {
    for (place, target) in shipped().iter().enumerate() {
        let mut others = shipped();
        others.remove(place);
        let on = device(&target.hardware.device).unwrap();
        let efficiency = Efficiency::learnt(&others).unwrap();
        let model = target.model.as_ref().unwrap();
        let extrapolation =
            CostProfile::analytic(model, &cluster(), &on, &[CheckpointingKind::None], &efficiency).unwrap();
        let errors = errors(&extrapolation, target);
        assert!(errors.len() >= 10, "{}", errors.len());
        let (median, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
        assert!(median < 0.06 && worst < 0.3, "{}: median {median}, worst {worst}", target.name);
    }
}

#[test]
fn every_device_plans() {
    for known in DEVICES {
        let profile = analytic(known.name, CheckpointingKind::Full);
        assert_eq!(CostProfile::from_json(&profile.to_json()).unwrap(), profile);
        // 32 billion parameters do not fit on 64 cores of 8 GiB.
        if known.name == "cpu" {
            continue;
        }
        let planner = Planner::search(profile, cluster()).unwrap();
        let batch = Batch::new(&[4_000, 3_000, 900, 900, 450, 80], None).unwrap();
        let plan = planner.plan(&batch).unwrap();
        assert_eq!(planner.check(&plan, &batch), [], "{}", known.name);
    }
}

#[test]
fn a_faster_device_is_faster_and_more_checkpointing_slower_and_smaller() {
    let of = |device: &str, kind: CheckpointingKind| {
        let scheme = "<tp8,pp2>".parse::<Scheme>().unwrap().with_checkpointing(kind);
        analytic(device, kind).scheme(scheme).unwrap().clone()
    };
    let old = of("A100-80GB", CheckpointingKind::None);
    let new = of("H100", CheckpointingKind::None);
    assert!(new.linear_ms_per_token < old.linear_ms_per_token);
    assert!(new.quadratic_ms_per_token2 < old.quadratic_ms_per_token2);
    let [none, selective, full] = CheckpointingKind::ON_DEVICE.map(|kind| of("H100", kind));
    assert!(none.linear_ms_per_token <= selective.linear_ms_per_token);
    assert!(selective.linear_ms_per_token < full.linear_ms_per_token);
    for stage in 0..2 {
        let [none, selective, full] =
            [&none, &selective, &full].map(|entry| entry.activation_bytes_per_token.of(stage));
        assert!(none > selective && selective > full);
    }
}

#[test]
fn context_ranks_share_the_tokens_and_exchange_heads() {
    let profile = analytic("H100", CheckpointingKind::None);
    let [alone, two, wide] =
        ["<tp2>", "<tp2,cp2>", "<tp2,cp8>"].map(|text| profile.scheme(text.parse().unwrap()).unwrap());
    let ratio = |pair: [f64; 2]| pair[0] / pair[1];
    for (entry, ranks) in [(two, 2.0), (wide, 8.0)] {
        assert!((ratio([alone.quadratic_ms_per_token2, entry.quadratic_ms_per_token2]) - ranks).abs() < 1e-9);
        assert!((ratio([alone, entry].map(|entry| entry.activation_bytes_per_token.of(0))) - ranks).abs() < 1e-9);
        // Communication adds to a share of the other time, and it takes longer over two nodes.
        let share = ratio([alone.linear_ms_per_token, entry.linear_ms_per_token]) / ranks;
        assert!((0.5..1.0).contains(&share), "{}: {share}", entry.scheme);
        assert!((entry.fixed_ms - alone.fixed_ms).abs() < 1e-12);
        assert_eq!((&entry.resident_bytes, entry.context), (&alone.resident_bytes, Some(ContextKind::Ulysses)));
    }
    assert!(wide.linear_ms_per_token * 4.0 > two.linear_ms_per_token);
}

#[test]
fn every_kind_of_checkpointing_has_every_scheme() {
    let on = device("H100").unwrap();
    let efficiency = Efficiency::shipped(&on).unwrap();
    let profile = CostProfile::analytic(&llama_32b(), &cluster(), &on, &CheckpointingKind::ALL, &efficiency).unwrap();
    let of = |kind: CheckpointingKind| -> Vec<Scheme> {
        let schemes = profile.schemes.iter().map(|entry| entry.scheme);
        schemes
            .filter(|scheme| scheme.layer_plan().kind() == Some(kind))
            .map(|scheme| scheme.with_checkpointing(CheckpointingKind::None))
            .collect()
    };
    let every = CheckpointingKind::ALL.map(of);
    assert!(every.iter().all(|schemes| *schemes == every[0]));
    assert_eq!(every[0].len() * every.len(), profile.schemes.len());
    let share = |text: &str| profile.scheme(text.parse().unwrap()).unwrap().forward_share;
    assert!(share("<tp2,full>") < share("<tp2,selective>"));
}

#[test]
fn schemes_divide_the_model_and_the_last_stage_has_the_head() {
    let profile = analytic("H100", CheckpointingKind::None);
    assert!(profile.schemes.len() >= 15);
    let model = llama_32b();
    for entry in &profile.schemes {
        assert!(model.fields().num_hidden_layers.is_multiple_of(entry.scheme.pp().into()), "{}", entry.scheme);
        assert!(entry.scheme.ranks() <= 64, "{}", entry.scheme);
        if let Some(multipliers) = &entry.stage_multipliers {
            let stages = entry.scheme.stages();
            assert!(multipliers[stages - 1] > multipliers[0]);
            assert!((multipliers.iter().sum::<f64>() / f64::from(entry.scheme.pp()) - 1.0).abs() < 1e-12);
        }
    }
}

/// 32B over two stages of tp 8: 30 layers each, and an embedding or a head of 32,000 x 6,656; the last stage holds the
/// head's gradient too.
#[test]
fn each_stage_has_its_own_memory() {
    let profile = analytic("H100", CheckpointingKind::None);
    let of = |text: &str| profile.scheme(text.parse().unwrap()).unwrap().clone();
    let (single, pipeline) = (of("<tp8>"), of("<tp8,pp2>"));
    let head = llama_32b().vocabulary_parameters() * 4 / 8;
    assert_eq!(pipeline.resident_bytes.of(1) - pipeline.resident_bytes.of(0), head);
    let activations = |entry: &SchemeProfile, stage| entry.activation_bytes_per_token.of(stage);
    // The first stage has two micro-batches of half the layers in flight, and its sent output of each; the last stage
    // has one of them, and the tensors of the last norm and the loss.
    let layers = activations(&pipeline, 0) - 2.0 * 6_656.0 * 2.0 / 8.0;
    let last = activations(&single, 0) - layers;
    assert!(last > 0.0 && (activations(&pipeline, 1) - layers / 2.0 - last).abs() < 1e-6 * last);
    assert!(!single.resident_bytes.is_known() && pipeline.resident_bytes.is_known());
}

#[test]
fn a_profile_of_an_unknown_model_or_device_is_not_fitted() {
    let mut profile = preset("llama-32b-a800").unwrap();
    profile.hardware.device = "V100".into();
    assert_eq!(Efficiency::learnt(std::slice::from_ref(&profile)).unwrap_err().code(), "profile_unknown");
    profile.model = None;
    assert_eq!(Efficiency::learnt(&[profile]).unwrap_err().code(), "profile_invalid");
}

/// The model frozen, with an adapter of rank 16 on the inputs of its queries.
fn adapted(model: &ModelShape) -> ModelShape {
    let mut fields = model.fields().clone();
    for row in &mut fields.parameters {
        row.trained = false;
    }
    let query = fields.parameters.iter().find(|row| row.name.ends_with("q_proj.weight")).unwrap().clone();
    let (a, b) = ("layers.*.self_attn.q_proj.lora_A.weight", "layers.*.self_attn.q_proj.lora_B.weight");
    let a = ParameterRow { name: a.into(), rows: 16, units: 1, trained: true, ..query.clone() };
    let b = ParameterRow { name: b.into(), row_elements: 16, trained: true, ..query };
    fields.parameters.extend([a, b]);
    ModelShape::try_from(fields).unwrap()
}

/// 60 layers of 2 x 16 x 6,656 trained parameters in 4 bytes with 3 numbers more each, and frozen ones in 2 bytes; the
/// gradient of a frozen head, and those of frozen matrices, are neither computed nor kept.
#[test]
fn adapters_take_the_memory_and_the_operations_of_what_is_trained() {
    let (plain, model) = (llama_32b(), adapted(&llama_32b()));
    let device = device("H100").unwrap();
    let efficiency = Efficiency::shipped(&device).unwrap();
    let of = |model: &ModelShape| {
        CostProfile::analytic(model, &cluster(), &device, &[CheckpointingKind::None], &efficiency).unwrap()
    };
    let (full, lora) = (of(&plain), of(&model));
    let adapters = 60 * 2 * 16 * 6_656;
    assert_eq!(lora.memory.optimizer_bytes, 2 * plain.parameters() + 4 * 4 * adapters);
    let entry = |profile: &CostProfile| profile.scheme("<tp8>".parse().unwrap()).unwrap().clone();
    let (full, lora) = (entry(&full), entry(&lora));
    // Two bytes a parameter, four a gradient, on eight ranks; and in transfer a frozen layer, of which a rail of a node
    // sends and relays an eighth, beyond the gradient buffer.
    let layer = plain.layer_parameters();
    let in_transfer = 2 * (layer + 2 * layer / 8) - 4 * adapters / 8;
    assert_eq!(lora.resident_bytes.of(0), (2 * (plain.parameters() + adapters) + 4 * adapters) / 8 + in_transfer);
    assert!(lora.resident_bytes.of(0) < full.resident_bytes.of(0) / 2);
    assert!((lora.forward_share - 0.5).abs() < 1e-2 && (full.forward_share - 1.0 / 3.0).abs() < 1e-12);
    assert!(lora.linear_ms_per_token < full.linear_ms_per_token);
}

/// The optimizer state of all stages is that of the whole model: a tied embedding, resident on two stages, counts once.
#[test]
fn the_shards_of_all_stages_are_those_of_the_model() {
    let untied = llama_32b();
    let mut fields = untied.fields().clone();
    fields.parameters.retain(|row| row.name != "lm_head.weight");
    fields.parameters[0].parts.push(ModelPart::Head);
    let tied = ModelShape::try_from(fields).unwrap();
    assert!(tied.parameters() < untied.parameters());
    for model in [adapted(&untied), untied, tied] {
        let device = device("H100").unwrap();
        let efficiency = Efficiency::shipped(&device).unwrap();
        let kinds = [CheckpointingKind::None];
        let profile = CostProfile::analytic(&model, &cluster(), &device, &kinds, &efficiency).unwrap();
        for SchemeProfile { scheme, stage_optimizer_bytes, .. } in &profile.schemes {
            let optimizer = stage_optimizer_bytes.as_deref();
            assert_eq!(optimizer.map(<[u64]>::len), (scheme.pp() > 1).then_some(scheme.stages()));
            let sum = optimizer.map(|optimizer| optimizer.iter().sum::<u64>());
            assert!(sum.is_none_or(|sum| sum == profile.memory.optimizer_bytes), "{scheme}: {sum:?}");
        }
    }
}
