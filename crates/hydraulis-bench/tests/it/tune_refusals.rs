//! Tuning problems that are wrong or infeasible: each is refused by its name, and the others are solved.

use hydraulis_bench::tune::{Record, instances};
use serde_json::{Value, json};

use crate::tune::{objectives, slow_ranks, solved, whole_searches};

/// The message of the only record that is wrong itself; all others have an objective.
fn only_refusal(records: &[Record], code: &str) -> String {
    let (wrong, solved): (Vec<&Record>, Vec<&Record>) = records.iter().partition(|record| record.message.is_some());
    assert!(solved.iter().all(|record| record.objective.is_some()), "{records:?}");
    let [one] = wrong.as_slice() else { panic!("{records:?}") };
    assert_eq!((one.error.as_deref(), one.feasible), (Some(code), false), "{one:?}");
    one.message.clone().unwrap()
}

/// Checks that a change of the first of two equal instances refuses it by a field and leaves the other.
fn refuses(document: &Value, list: &str, change: (&str, &Value), words: &str) {
    let mut document = document.clone();
    let entries = document.pointer_mut(list).unwrap().as_array_mut().unwrap();
    let mut wrong = entries[0].clone();
    *wrong.pointer_mut(change.0).unwrap() = change.1.clone();
    entries.insert(0, wrong);
    let code = if words.starts_with("it cannot be read") { "data_file_invalid" } else { "argument_invalid" };
    let message = only_refusal(&solved(&document), code);
    assert!(message.contains(words), "{change:?}: {message}");
}

#[test]
fn wrong_layers_are_refused_and_the_others_solved() {
    let document = json!({"instances": [{
        "name": "a", "layers": 2, "budget": 16, "other_mem": 2.0, "other_time": 0.5, "mem_per_layer": [9.2, 4.0],
        "time_per_layer": [1.0, 3.0], "transition": [[0.0, 1.0], [0.0, 0.0]],
    }]});
    for (field, value, words) in [
        ("/transition", json!([]), "the length of transition is 0: it must be 2"),
        ("/transition/1", json!([0.0]), "the length of transition[1] is 1: it must be 2"),
        ("/mem_per_layer", json!([9.2, 4.0, 1.0]), "the length of time_per_layer is 2: it must be 3"),
        ("/mem_per_layer", json!([]), "the length of mem_per_layer is 0: it must be at least 1"),
        ("/mem_per_layer/0", json!(-1), "mem_per_layer[0] is -1: it must be from 0"),
        ("/layers", json!(1_000_000_000), "layers is 1000000000: it must be at most 100000"),
        ("/time_per_layer/0", json!(-2.0), "time_per_layer[0] is -2: it must be from 0"),
        ("/other_time", json!(-2.0), "other_time is -2: it must be from 0"),
        ("/transition/0/1", json!(-0.1), "transition[0][1] is -0.1: it must be from 0"),
        ("/budget", json!(null), "it cannot be read (budget: invalid type: null"),
    ] {
        refuses(&document, "/instances", (field, &value), words);
    }
    let many = json!({"instances": [{
        "name": "a", "layers": 100_000, "budget": 150_000, "other_mem": 0, "other_time": 0, "mem_per_layer": vec![1; 10],
        "time_per_layer": vec![1; 10], "transition": vec![vec![0; 10]; 10],
    }]});
    let message = only_refusal(&solved(&many), "argument_invalid");
    assert!(message.contains("layers is 100000: it must be fewer, or have fewer options"), "{message}");
    refuses(&document, "/instances", ("/budget", &json!("x")), "it cannot be read (budget");
}

#[test]
fn wrong_tables_of_shards_are_refused() {
    let document = json!({
        "hidden_sizes": [8, 9], "time_s": [[[1.0, 2.0]], [[1.0, 2.0]]], "mem_mb": [[[9.0, 4.0]], [[9.0, 4.0]]],
        "extra_overhead_mb": 3, "cases": [
            {"hidden": 9, "layers": 2, "limit_mb": 23}, {"hidden": 8, "layers": 2, "limit_mb": 23},
        ],
    });
    let cases: [(&str, &[Value], &str, &str); 6] = [
        ("time_s", &[json!([[1.0, 2.0]])], "argument_invalid", "the length of time_s is 1"),
        ("mem_mb", &[json!([[9.0, 4.0]])], "argument_invalid", "the length of mem_mb is 1"),
        ("mem_mb", &[json!([[9.0, 4.0]]), json!([[9.0]])], "argument_invalid", "the length of mem_mb of a batch is 1"),
        ("time_s", &[json!([[1.0, 2.0]]), json!([])], "argument_invalid", "the length of time_s[1] is 0"),
        ("time_s", &[json!([[1.0, 2.0]]), json!([[-1.0, 2.0]])], "argument_invalid", "time_s of a batch[0] is -1"),
        ("time_s", &[json!([[1.0, 2.0]]), json!([[null, 2.0]])], "data_file_invalid", "time_s[1]"),
    ];
    for (field, tables, code, words) in cases {
        let mut document = document.clone();
        document[field] = json!(tables);
        let message = only_refusal(&solved(&document), code);
        assert!(message.contains(words), "{message}");
    }
    let mut negative = document.clone();
    negative["extra_overhead_mb"] = json!(-3);
    let refused = instances("a file", &negative.to_string(), &[]).unwrap_err().to_string();
    assert!(refused.contains("extra_overhead_mb is -3: it must be from 0"), "{refused}");
    refuses(&document, "/cases", ("/hidden", &json!(7)), "hidden is 7: it must be one of hidden_sizes [8, 9]");
}

#[test]
fn wrong_chains_are_refused_and_large_budgets_end() {
    let document = json!({"chains": [{
        "n": 2, "ftime": [4.0, 4.0], "btime": [8.0, 8.0, 0.0], "x": [1, 1, 1], "xbar": [1, 6, 6], "ftmp": [1, 1],
        "btmp": [2, 2, 0], "cost_by_budget_slots": {"18446744073709551615": 24.0},
    }]});
    assert_eq!(objectives(&solved(&document)), [Some(24.0)]);
    for (field, value, words) in [
        ("/xbar/1", json!(u64::MAX), "the greatest entry of xbar is 18446744073709551615"),
        ("/n", json!(7), "the length of ftime is 2: it must be 7"),
        ("/ftime/0", json!(-1.0), "ftime[0] is -1: it must be from 0"),
        ("/btime", json!([8.0, 8.0]), "the length of btime is 2: it must be 3"),
        ("/cost_by_budget_slots", json!({}), "the length of cost_by_budget_slots is 0"),
        ("/cost_by_budget_slots", json!({"1.5": null}), "budget is 1.5: it must be a whole number"),
    ] {
        refuses(&document, "/chains", (field, &value), words);
    }
}

#[test]
fn wrong_layouts_are_refused() {
    let halves = json!({"states": {"0": 2}, "order": [0], "devices": [0, 1]});
    let one = json!({"name": "a", "gpus_per_node": 8, "param_numel": [8], "src": [halves], "dst": [halves]});
    for (field, value, words) in [
        ("/param_numel", json!([8, 8, 8]), "the length of src is 1: it must be 3"),
        ("/dst", json!([]), "the length of dst is 0: it must be 1"),
        ("/param_numel", json!([1_u64 << 63]), "param_numel[0] is 9223372036854775808: it must be so small"),
        ("/src/0/states/0", json!(1_000_000_000), "the product of src[0].states is 1000000000: it must be 2"),
        ("/src/0/devices", json!([0, 1, 2]), "the product of src[0].states is 2: it must be 3"),
        ("/dst/0/devices", json!([0, 0]), "the number of different dst[0].devices is 1: it must be 2"),
        ("/dst/0/order", json!([]), "dst[0].states of dimension 0 is 2: it must be 1, or the dimension"),
        ("/src/0/states", json!({"0": 2, "x": 1}), "a dimension of src[0] is x: it must be -2 for summands"),
        ("/dst/0/order", json!([0, -3]), "a dimension of dst[0] is -3: it must be -2 for summands"),
        ("/dst/0/order", json!([0, 0]), "dst[0].order is [0, 0]: it must be without repetition"),
    ] {
        let mut wrong = one.clone();
        *wrong.pointer_mut(field).unwrap() = value;
        let records = solved(&json!({"switch_cases": [wrong, one]}));
        assert_eq!(objectives(&records), [None, None, Some(0.0), Some(0.0)], "{field}");
        let message = only_refusal(&records[1..], "argument_invalid");
        assert!(message.contains("'a: busiest sender'") && message.contains(words), "{message}");
    }
}

#[test]
fn wrong_rates_and_degrees_of_slow_ranks_are_refused() {
    let document = slow_ranks(&json!({"0": 1, "1": 1, "2": 1, "3": 1}), 1e3);
    for (field, value, words) in [
        ("/inputs/hetero_tp_alpha/0", json!(0.0), "hetero_tp_alpha[0] is 0: it must be above 0"),
        ("/inputs/hetero_tp_alpha/1", json!(-2.0), "hetero_tp_alpha[1] is -2: it must be above 0"),
        ("/inputs/tp", json!(3), "tp is 3: it must be a power of two"),
        ("/inputs/tp", json!(0), "tp is 0: it must be a power of two"),
        ("/inputs/used_devices_sr/0", json!(1.7e308), "the rate of device 0 is"),
        ("/inputs/used_devices_sr/0", json!(0), "the rate of device 0 is 0: it must be above 0"),
        ("/inputs/used_devices_sr/3", json!(-1.5), "the rate of device 3 is -1.5: it must be above 0"),
        ("/inputs/memory_embedding", json!(-3), "memory_embedding is -3: it must be at least 0"),
        ("/inputs/memory_extra", json!(-4), "memory_extra is -4: it must be at least 0"),
        ("/inputs/memory_safe_gap", json!(-5), "memory_safe_gap is -5: it must be at least 0"),
        ("/inputs/straggler_threshold", json!(-6), "straggler_threshold is -6: it must be at least 0"),
        ("/inputs/memory_k/2", json!(0), "memory_k[2] is 0: it must be above 0"),
        ("/inputs/mbn", json!(null), "it cannot be read (inputs.mbn: invalid type"),
    ] {
        refuses(&document, "/runs", (field, &value), words);
    }
}

/// A device has one rate, whichever list states it and however its number is written.
#[test]
fn a_device_of_two_rates_is_refused() {
    let even = json!({"0": 1, "1": 1, "2": 1, "3": 1});
    for (field, rates) in [
        ("suspended_devices_sr", json!({"0": 2})),
        ("used_devices_sr", json!({"0": 1, "00": 1, "1": 1})),
        ("used_devices_sr", json!({"0": 1, "+0": 1, "1": 1})),
    ] {
        let mut document = slow_ranks(&even, 1e3);
        document["runs"][0]["inputs"][field] = rates;
        let message = only_refusal(&solved(&document), "argument_invalid");
        assert!(message.contains("the number of rates of device 0 is 2: it must be 1"), "{message}");
    }
}

#[test]
fn empty_lists_are_refused() {
    let empty = [
        json!({"instances": []}),
        json!({"chains": []}),
        json!({"runs": []}),
        json!({"switch_cases": []}),
        json!({"hidden_sizes": [], "time_s": [], "mem_mb": [], "extra_overhead_mb": 0, "cases": []}),
        json!({"exact_planner_instances": {"instances": []}, "homogeneous_bfd_baseline": {"runs": []}}),
        whole_searches(&json!({})),
    ];
    for document in empty {
        assert!(instances("a file", &document.to_string(), &[]).is_err(), "{document}");
    }
}

/// The longest length has a slow setting that fits, a fast one that does not, and a fast one that fits.
#[test]
fn the_longest_length_takes_its_fastest_setting_that_fits() {
    let row = |group: u64, sp: u64, mem: Option<f64>, iter_s: Option<f64>| json!({"group": group, "sp": sp, "gc": 1, "mem": mem, "iter_s": iter_s});
    let table = |rows: &[Value]| solved(&json!({"packing_group_profile": rows})).remove(0);
    let short = row(8, 2, Some(77.0), Some(2.5));
    let found = table(&[
        short.clone(),
        row(64, 8, Some(79.0), Some(3.0)),
        row(64, 16, Some(79.0), Some(9.0)),
        row(64, 4, Some(81.0), Some(1.0)),
        row(64, 2, None, None),
    ]);
    assert_eq!(found.solution.unwrap()["sp"], json!([1, 8]));
    let error = |rows: &[Value]| table(rows).error;
    assert_eq!(error(&[short.clone(), row(64, 4, None, None)]).as_deref(), Some("memory_too_small"));
    assert_eq!(error(&[short.clone(), row(64, 4, Some(70.0), None)]).as_deref(), Some("time_missing"));
    assert_eq!(error(&[row(8, 0, Some(7.0), Some(1.0))]).as_deref(), Some("argument_invalid"));
}

/// Rows of one length are one instance, whatever their order, and a wrong row refuses its length alone.
#[test]
fn lengths_of_a_profile_are_instances_of_their_own() {
    let row =
        |len: u64, sp: u64, time: f64| json!({"len": len, "sp": sp, "gc_layers": 1, "mem_gb": 70, "iter_s": time});
    let records = solved(&json!({"profile_x": [row(8, 1, 1.0), row(16, 1, 2.0), row(8, 2, 0.5)]}));
    assert_eq!(objectives(&records), [Some(0.5), Some(2.0)]);
    let records = solved(&json!({"profile_x": [row(8, 1, 1.0), row(16, 1, 2.0), row(8, 0, 0.5)]}));
    assert_eq!(objectives(&records), [None, Some(2.0)]);
}

/// A document of exact instances alone: lengths, ranks, tokens of a rank.
fn exact_groups(lengths: &[i64], ranks: u32, cap: i64, beta1: f64) -> Value {
    let degrees: Vec<u32> = [1, 2, 4, 8, 16, 32].into_iter().filter(|&degree| degree <= ranks).collect();
    json!({"exact_planner_instances": {"instances": [{
        "name": "a", "N": ranks, "cap_tokens_per_device": cap, "degrees": degrees, "lengths": lengths,
        "coeff": {"alpha1": 5.128e-6, "alpha2": 0.183_957_6, "beta1": beta1, "hidden": 4_096.0, "layers": 32.0,
            "bw_gbs": {"2": 119.54, "4": 104.07, "8": 96.5, "16": 10.33, "32": 5.94}},
    }]}})
}

/// A group has one micro-batch: 3000 tokens do not fit into two ranks of 1000, however many micro-batches would do.
#[test]
fn tokens_that_do_not_fit_one_micro_batch_are_infeasible() {
    let error = |lengths: &[i64]| solved(&exact_groups(lengths, 2, 1_000, 600.0)).remove(0).error;
    assert_eq!(error(&[1_500, 1_500]).as_deref(), Some("memory_too_small"));
    assert_eq!(error(&[1_000, 1_000]), None);
    // Two ranks have room for 2000 tokens together, but neither for two of 600.
    assert_eq!(error(&[600, 600, 600]), None);
    // More sequences than the enumeration takes.
    let many: Vec<i64> = (0..40).map(|place| 1_000 + place).collect();
    let found = |cap: i64| solved(&exact_groups(&many, 8, cap, 600.0)).remove(0);
    assert_eq!(found(1_000).error.as_deref(), Some("memory_too_small"));
    let plan = found(6_000);
    let groups = plan.solution.as_ref().unwrap()["groups"].as_array().unwrap().clone();
    assert!(groups.iter().all(|group| group[1].as_array().unwrap().len() == 1), "{plan:?}");
}

#[test]
fn wrong_sequence_groups_are_refused() {
    let document = exact_groups(&[3, 3], 2, 4, 1.0);
    for (field, value, words) in [
        ("/N", json!(0), "N is 0: it must be at least 1"),
        ("/degrees", json!([4]), "degrees is [4]: it must be some from 1 to N, 2"),
        ("/coeff/bw_gbs", json!({}), "the bandwidth of degree 2 is missing"),
        ("/coeff/alpha1", json!(-1.0), "alpha1 (a1) is -1: it must be from 0"),
        ("/lengths", json!([0]), "lengths[0] is 0: it must be at least 1"),
        ("/lengths", json!([]), "the number of lengths is 0"),
        ("/cap_tokens_per_device", json!(0), "cap_tokens_per_device is 0"),
        ("/coeff", json!(3), "it cannot be read (coeff"),
    ] {
        refuses(&document, "/exact_planner_instances/instances", (field, &value), words);
    }
    let run = json!({"model": "one", "N": 2, "seq_limit": 200, "gbs": 1, "token_capacity": 256,
        "rows": [{"iter": 0, "tokens": 128, "adaptive_time": null}]});
    let document = json!({
        "cost_model": {"models": {"one": {"a1": 0.0, "a2": 2.0, "beta1": 1.0, "hidden": 8.0, "layers": 1.0}},
            "bandwidth_gbs": {"2": 8.0}},
        "exact_planner_instances": {}, "homogeneous_bfd_baseline": {"runs": [run]},
        "bucketing_and_chunking": {"wiki_batch0_padded128": [128]},
    });
    for (field, value, words) in [
        ("/gbs", json!(0), "gbs is 0: it must be at least 1"),
        ("/N", json!(0), "N is 0: it must be at least 1"),
        ("/model", json!("two"), "model is two: it must be one of cost_model.models [\"one\"]"),
    ] {
        refuses(&document, "/homogeneous_bfd_baseline/runs", (field, &value), words);
    }
}

#[test]
fn wrong_whole_searches_are_refused_and_name_the_cause() {
    let tasks = |field: &str, value: u64| {
        let mut task =
            json!({"gbsz": 64, "chunks": 32, "pp": 1, "global_buffer_tp": 8, "mode": "tp_only", "throughput": 0});
        task[field] = json!(value);
        json!({"a": {"inputs": {"chunks": 32}, "tasks": [task]}})
    };
    let inputs = |field: &str, value: Value| json!({"a": {"inputs": {field: value}}, "b": {"inputs": {"chunks": 32}}});
    for (cases, words) in [
        (tasks("pp", 0), "pp is 0: it must be a power of two up to 8"),
        (tasks("pp", 3), "pp is 3: it must be a power of two up to 8"),
        (tasks("pp", 16), "pp is 16: it must be a power of two up to 8"),
        (tasks("global_buffer_tp", 0), "global_buffer_tp is 0: it must be a power of two up to 8"),
        (tasks("chunks", 0), "chunks is 0: it must be a divisor of gbsz 64"),
        (inputs("chunks", json!(7)), "chunks is 7: it must be a divisor of global_batch [64]"),
        (inputs("chunks", json!(0)), "chunks is 0: it must be a divisor of global_batch [64]"),
        (inputs("global_batch", json!([])), "the length of global_batch is 0: it must be at least 1"),
        (inputs("nodes", json!(0)), "nodes is 0: it must be from 1"),
        (inputs("world_size", json!(6)), "the number of ranks is 6: it must be a power of two"),
        (inputs("hidden_size", json!(0)), "hidden_size is 0: it must be from 1"),
        (inputs("dp_default", json!("zero9")), "dp_default is zero9: it must be ddp or zero2"),
        (inputs("pipeline", json!("x")), "pipeline is x: it must be gpipe or pipedream_flush"),
        (inputs("mixed_precision", json!("int3")), "mixed_precision is int3: it must be fp32 or fp16 or bf16"),
        (inputs("num_layers", json!(0)), "num_layers is 0: it must be from 1"),
    ] {
        let message = only_refusal(&solved(&whole_searches(&cases)), "argument_invalid");
        assert!(message.contains("instance 'a") && message.contains(words), "{message}");
    }
    let message = only_refusal(&solved(&whole_searches(&inputs("seq_len", json!("x")))), "data_file_invalid");
    assert!(message.contains("seq_len"), "{message}");
}

/// A number of the profile that is no time, no rate or no memory, and a table that lacks a degree.
#[test]
fn wrong_profiles_of_whole_searches_are_refused() {
    let layer = "/profiles/memory_sequence_sp/layertype_0_sp/8192/tp_activation_per_bsz_dict/1";
    for (field, value, words) in [
        ("/profiles/time_sequence/layertype_0_bsz1_seq4096", json!(-1.0), "layertype_0_bsz1_seq4096 is -1.0"),
        ("/profiles/time_sequence/layertype_0_bsz1_seq4096", json!("abc"), "layertype_0_bsz1_seq4096 is \"abc\""),
        ("/profiles/hardware/allreduce/allreduce_size_8_consec_1", json!(0), "allreduce_size_8_consec_1 is 0: it must"),
        ("/profiles/hardware/allreduce", json!({}), "allreduce_size_8_consec_1 is missing: it must be measured"),
        ("/profiles/hardware/p2p/pp_size_2", json!(-1), "pp_size_2 is -1: it must be a number above 0"),
        ("/profiles/hardware/sp", json!({}), "allreduce_size_2_1MB_time is missing: it must be measured"),
        ("/profiles/hardware/sp/all2all_size_8_1MB_time", json!(-1), "all2all_size_8_1MB_time is -1"),
        ("/profiles/hardware/overlap/overlap_coe", json!(0), "overlap_coe is 0: it must be a number above 0"),
        (layer, json!(-1e6), "layertype_0.8192.tp_activation_per_bsz_dict.1 is -1000000.0"),
        ("/derived_fit/other_ms_at_8192", json!(-1), "other_ms_at_8192 is -1: it must be a number from 0"),
    ] {
        let mut document = whole_searches(&json!({"a": {"inputs": {"chunks": 32}}}));
        *document.pointer_mut(field).unwrap_or_else(|| panic!("{field}")) = value;
        let message = only_refusal(&solved(&document), "argument_invalid");
        assert!(message.contains(words), "{field}: {message}");
    }
}

/// The fit of a profile of growing times is refused where it falls below 0.
#[test]
fn profiles_whose_fitted_time_is_negative_are_refused() {
    let mut document = whole_searches(&json!({"a": {"inputs": {"chunks": 32, "seq_len": 8192}}}));
    document.as_object_mut().unwrap().remove("derived_fit");
    let times = document["profiles"]["time_sequence"].as_object_mut().unwrap();
    times.retain(|key, _| key.starts_with("layertype_other"));
    for (length, ms) in [(8_192, 1e-3), (16_384, 1e-3), (24_576, 1e-3), (32_768, 1e3)] {
        times.insert(format!("layertype_0_bsz1_seq{length}"), json!(ms));
        times.insert(format!("layertype_other_bsz1_seq{length}"), json!(ms));
    }
    let message = only_refusal(&solved(&document), "argument_invalid");
    assert!(message.contains("the fitted time of layertype_"), "{message}");
}
