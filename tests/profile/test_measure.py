"""A measured profile: valid, equal on every rank, and usable for plans."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hydraulis import Cluster, CostProfile, Planner, Scheme
from hydraulis.planner.profile_document import with_links
from hydraulis.profile.links import exchanges_to_measure
from hydraulis.profile.measure import NUM_MIXES_ON, replica_observations
from hydraulis.profile.observations import Observation, Observations, Timing
from ranks import run_ranks
from runtime.measure_workers import (
    MEMORY,
    SCHEMES,
    Report,
    forwards_counted,
    measure,
    measure_frozen_stage,
    stop_measuring,
)
from small_model import build_decoder, small_config

# Not a multiple of the tensor group, so one rank is outside all replicas of <tp2>.
NUM_RANKS = 3
NUM_MIXES = NUM_MIXES_ON["cpu"]
CLUSTER = Cluster(gpus=NUM_RANKS, gpus_per_node=NUM_RANKS)
FLOAT32 = 4


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured") / "measurements.jsonl"


@pytest.fixture(scope="module")
def reports(file: Path) -> list[Report]:
    result: list[Report] = run_ranks(NUM_RANKS, measure, file, timeout_seconds=300)
    return result


@pytest.fixture(scope="module")
def document(reports: list[Report]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(reports[0].profile)
    return parsed


@pytest.fixture(scope="module")
def entries(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["scheme"]: entry for entry in document["schemes"]}


def test_every_rank_has_the_same_profile(reports: list[Report]) -> None:
    assert reports[0].profile == reports[1].profile == reports[2].profile


def test_every_scheme_is_measured(entries: dict[str, dict[str, Any]]) -> None:
    assert set(entries) == set(SCHEMES)
    for entry in entries.values():
        assert min(entry["quadratic_ms_per_token2"], entry["linear_ms_per_token"], entry["fixed_ms"]) >= 0
        assert entry["linear_ms_per_token"] + entry["fixed_ms"] > 0


def test_stage_multipliers_are_around_one(entries: dict[str, dict[str, Any]]) -> None:
    assert [entries[text]["stage_multipliers"] for text in ("<1>", "<1,full>", "<tp2>", "<cp2>")] == [
        [1.0]
    ] * 4
    for scheme, stages in (("<pp2>", 2), ("<pp3>", 3)):
        multipliers = entries[scheme]["stage_multipliers"]
        assert len(multipliers) == stages
        assert sum(multipliers) == pytest.approx(stages)
        # The slowest stage depends on timing and is not asserted.
        assert min(multipliers) > 0


def test_memory_is_counted_exactly(document: dict[str, Any], entries: dict[str, dict[str, Any]]) -> None:
    config = small_config(vocab_size=256)
    sizes = {name: parameter.numel() for name, parameter in build_decoder(config).named_parameters()}
    total = sum(sizes.values())
    # Parameters and gradients; master parameters, gradients and two moments.
    assert document["memory"]["optimizer_bytes"] == 4 * FLOAT32 * total
    layer = sum(size for name, size in sizes.items() if name.startswith("layers.0."))
    # A rank's buffers have the size of its scheme's largest stage; a last stage saves the head's gradient for
    # the loss. Tensor ranks halve everything but norms.
    head, embedding = sizes["lm_head.weight"], sizes["embed_tokens.weight"]
    norms = sum(size for name, size in sizes.items() if "norm" in name)
    held = dict.fromkeys(("<1>", "<1,full>", "<cp2>"), (total, head))
    held["<tp2>"] = ((total - norms) // 2 + norms, head // 2)
    expected: dict[str, Any] = {
        text: FLOAT32 * (2 * elements + share + 1) for text, (elements, share) in held.items()
    }
    end = max(embedding, head + sizes["norm.weight"])
    expected["<pp2>"] = [FLOAT32 * (2 * (2 * layer + embedding) + more) for more in (0, head + 1)]
    expected["<pp3>"] = [FLOAT32 * (2 * (layer + end) + more) for more in (0, 0, head + 1)]
    assert {text: entry["resident_bytes"] for text, entry in entries.items()} == expected
    # The optimizer state of each stage's parameters; a single stage has that of all parameters.
    first, middle, last = entries["<pp3>"]["stage_optimizer_bytes"]
    assert first == 4 * FLOAT32 * (sizes["embed_tokens.weight"] + layer)
    assert middle == 4 * FLOAT32 * layer
    assert first + middle + last == document["memory"]["optimizer_bytes"]
    assert [text for text, entry in entries.items() if "stage_optimizer_bytes" in entry] == ["<pp2>", "<pp3>"]
    assert document["memory"]["reserved_bytes"] >= 2 * FLOAT32 * layer
    assert document["hardware"]["memory_bytes"] == MEMORY


@pytest.mark.parametrize("wider", ["<tp2>", "<cp2>"])
def test_a_wider_stage_saves_less_and_has_a_larger_cap(
    reports: list[Report], entries: dict[str, dict[str, Any]], wider: str
) -> None:
    profile = CostProfile.from_json(reports[0].profile)
    caps = [profile.cap_tokens(Scheme(text), CLUSTER) for text in ("<1>", wider)]
    assert 64 <= caps[0] < caps[1]
    activations = [entries[text]["activation_bytes_per_token"] for text in ("<1>", wider)]
    assert 0.4 < activations[1] / activations[0] < 0.8


def test_the_kind_of_context_parallelism_is_recorded(reports: list[Report]) -> None:
    profile = CostProfile.from_json(reports[0].profile)
    assert [profile.context(Scheme(text)) for text in SCHEMES] == [None, None, None, "ring", None, None]


def test_each_kind_of_checkpointing_is_measured(
    reports: list[Report], entries: dict[str, dict[str, Any]]
) -> None:
    none, selective, full, offload, inputs_offload = reports[0].kept
    assert reports[1].kept == reports[0].kept
    assert none > selective > full > 0
    # Two of three layers are on the device.
    assert none * 0.6 < offload < none * 0.8
    # The inputs of two of three layers are on the device; of <tp2> in float64 a rank has half of each.
    assert full - inputs_offload == pytest.approx(8 / 2 * small_config().hidden_size, rel=1e-6)
    plain, recomputed = (entries[text]["activation_bytes_per_token"] for text in ("<1>", "<1,full>"))
    # Backward recomputes one layer completely; the saved bytes are a third of that.
    assert plain / small_config().num_hidden_layers < recomputed < 0.6 * plain


def test_no_forward_is_counted_twice() -> None:
    # Two sizes; with checkpointing, the same stage without checkpointing as well; with copies of inputs, also
    # the one that recomputes without copies.
    assert run_ranks(1, forwards_counted) == [
        {"none": 2, "selective": 4, "full": 4, "offload": 2, "full-offload": 6}
    ]


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("3x<1>", 3), ("1x<tp2>", 2), ("1x<pp2>", 2), ("1x<pp3>", 3), ("1x<cp2>", 2)]
)
def test_predicted_memory_is_near_the_memory_of_every_rank(
    reports: list[Report], strategy: str, ranks: int
) -> None:
    pairs = reports[0].memory[strategy]
    assert len(pairs) == ranks
    assert [planned for planned, _ in pairs] == pytest.approx([held for _, held in pairs], rel=0.02)
    assert not reports[1].memory[strategy]


def test_predicted_memory_is_near_if_a_micro_batch_uses_the_memory_of_several(reports: list[Report]) -> None:
    long = reports[0].long
    assert long.longest == pytest.approx(2.0)
    assert long.measured == pytest.approx(1.0)
    assert long.num_empty == 2
    assert len(long.memory) == 2
    assert [planned for planned, _ in long.memory] == pytest.approx(
        [held for _, held in long.memory], rel=0.02
    )


def test_predicted_memory_is_near_if_both_ends_of_a_pipeline_share_parameters(reports: list[Report]) -> None:
    pairs = reports[0].tied_memory["1x<pp2>"]
    assert len(pairs) == 2
    assert [planned for planned, _ in pairs] == pytest.approx([held for _, held in pairs], rel=0.05)


def test_predicted_memory_is_near_where_layers_offload(reports: list[Report]) -> None:
    for strategy, pairs in reports[0].offloaded_memory.items():
        assert [planned for planned, _ in pairs] == pytest.approx([held for _, held in pairs], rel=0.05), (
            strategy
        )
    assert [len(pairs) for pairs in reports[0].offloaded_memory.values()] == [3, 2, 2, 2, 3]


def test_on_several_nodes_ranks_use_hardly_more_than_predicted(reports: list[Report]) -> None:
    for strategy, pairs in reports[0].nodes_memory.items():
        for planned, held in pairs:
            # The prediction includes send buffers for the fullest rank of any plan.
            assert 0.98 * held <= planned < 1.35 * held, (strategy, pairs)
    assert len(reports[0].nodes_memory) == 2


def test_the_number_of_sequences_does_not_change_the_bytes(reports: list[Report]) -> None:
    for of_context in reports[0].split:
        assert of_context[0] > 0
        assert len(set(of_context)) == 1, of_context


def test_the_first_stage_of_a_pipeline_has_several_micro_batches(
    entries: dict[str, dict[str, Any]],
) -> None:
    # Three micro-batches of one layer on the first stage, against one of three layers and the head.
    first, second, last = entries["<pp3>"]["activation_bytes_per_token"]
    assert 0.5 < first / entries["<1>"]["activation_bytes_per_token"] < 1.1
    # The second stage has two micro-batches, and the last has one and the head.
    assert second < first
    assert last > second / 2


def test_forward_and_backward_have_their_shares(entries: dict[str, dict[str, Any]]) -> None:
    # Recomputation in backward makes the share of forward smaller.
    least = dict.fromkeys(entries, 0.15) | {"<1,full>": 0.1}
    for text, entry in entries.items():
        assert least[text] < entry["forward_share"] < 0.6, text


def test_a_measured_profile_gives_plans(reports: list[Report]) -> None:
    planner = Planner(
        CostProfile.from_json(reports[0].profile),
        CLUSTER,
        strategies=["3x<1>", "1x<tp2>+1x<1>", "1x<cp2>", "1x<pp3>"],
    )
    lengths = [60, 50, 40, 9, 9, 3, 1]
    plan = planner.plan(lengths)
    assert planner.check(plan, lengths) == []
    assert plan.iteration_ms > 0


def test_progress_rises_from_none_to_all(reports: list[Report]) -> None:
    for report in reports:
        assert report.shares[0] == 0.0
        assert report.shares[-1] == 1.0
        assert all(0.0 <= share < 1.0 for share in report.shares[:-1])
    # The shown progress is that of rank 0.
    assert reports[0].shares == sorted(reports[0].shares)
    # Reports at the start, after each micro-batch of an imprecise scheme, and after each pass. Three replicas
    # of <1> and of <1,full> are timed in one pass; the other schemes need three passes.
    assert len(reports[0].shares) == 1 + (6 * NUM_MIXES + 1) + 2 * (4 * NUM_MIXES + 1)


# A stop is checked before the first micro-batch of each scheme, and then before each micro-batch of <1>, on
# three replicas, and of <tp2>, on one. The file has the observations of an incomplete pass too.
@pytest.mark.parametrize(
    ("times", "recorded"),
    [(1, 0), (2, 0), (2 + 5, 5 * NUM_RANKS), (2 + NUM_MIXES + 3, NUM_MIXES * NUM_RANKS + 3)],
)
def test_a_stop_ends_a_long_measurement_on_every_rank(tmp_path: Path, times: int, recorded: int) -> None:
    results = run_ranks(NUM_RANKS, stop_measuring, tmp_path / "file", times, ("<1>", "<tp2>"))
    assert results == [(True, recorded)] * NUM_RANKS


def test_measurements_use_initialized_parameters(reports: list[Report]) -> None:
    assert all(report.filled for report in reports)


@pytest.mark.parametrize("text", ["<tp2,pp2>", "<cp2,pp2>"])
def test_a_stage_takes_as_long_as_its_slowest_rank_in_the_median_pass(text: str) -> None:
    """Two replicas, two passes; the total time decides which of the two ranks of a stage is slower."""
    first = [(1, 10), (2, 5), (7, 7), (1, 1), (1, 10), (2, 5), (9, 9), (99, 99)]
    second = [(3, 30), (4, 40), (7, 7), (1, 1), (3, 30), (4, 40), (9, 9), (1, 1)]
    bench: Any = SimpleNamespace(scheme=Scheme(text), replicas=[[0, 1, 2, 3], [4, 5, 6, 7]])
    observations = Observations()
    for timings in (first, second):
        gathered = [{(text, 5): Timing(*timing)} for timing in timings]
        for observation in replica_observations(gathered, bench, [40, 2], 5):
            observations.add(observation)
    # Slowest first: (1, 10), (4, 40) twice; then (7, 7), (7, 7), (99, 99), (9, 9).
    assert observations.stage_times(text, [40, 2]) == [Timing(2.5, 25.0), Timing(8.0, 8.0)]


def test_a_later_measurement_continues_from_the_file(reports: list[Report], file: Path) -> None:
    header, *lines = file.read_text().splitlines()
    assert json.loads(header)["ranks"] == NUM_RANKS
    observations = [Observation.from_json(line) for line in lines]
    # Three replicas of <1> and of <1,full>, one of each other scheme with two more passes.
    assert len(observations) == NUM_MIXES * (3 + 3 + 3 * 4)
    assert {observation.scheme for observation in observations} == set(SCHEMES)
    # All times are precise, so the resumed measurement uses the file alone.
    first, resumed = (json.loads(text) for text in (reports[0].profile, reports[0].resumed))
    assert resumed == first


def test_a_refused_fit_is_repeated_twice(reports: list[Report]) -> None:
    assert reports[0].fits == [3, -3]
    assert all(report.fits == [0, 0] for report in reports[1:])


def test_links_are_measured_for_every_number_of_ranks(reports: list[Report]) -> None:
    links = reports[0].links
    assert [(link.operation, link.ranks) for link in links] == [
        ("send", 2),
        ("all_to_all", 2),
        ("all_to_all", 3),
    ]
    assert all(link.latency_ms > 0 and link.gigabytes_per_s > 0 for link in links)
    assert reports[1].links == links
    # On CUDA their connections would keep memory that no profile counts.
    assert [report.kept_groups for report in reports] == [0] * len(reports)
    written = with_links(CostProfile.from_json(reports[0].profile), links)
    assert json.loads(written.to_json())["hardware"]["links"][0]["operation"] == "send"


@pytest.mark.parametrize(
    ("world", "node", "sends", "exchanges"),
    [
        (1, 1, [], []),
        (2, 2, [2], [2]),
        (6, 3, [2, 4, 6], [2, 4, 6]),
        (16, 8, [2, 4, 8, 16], [2, 4, 8, 16]),
        # Of 12 ranks the first six send partly inside their node; of 10 ranks all sends cross.
        (12, 5, [2, 4, 8, 10, 12], [2, 4, 8, 12]),
        (5, 1, [2, 4], [2, 4, 5]),
    ],
)
def test_messages_inside_a_node_and_between_nodes_are_measured(
    world: int, node: int, sends: list[int], exchanges: list[int]
) -> None:
    found = exchanges_to_measure(world, node)
    assert [ranks for operation, ranks in found if operation == "send"] == sends
    assert [ranks for operation, ranks in found if operation == "all_to_all"] == exchanges


def test_a_profile_states_the_accuracy_of_its_fit(entries: dict[str, dict[str, Any]]) -> None:
    for entry in entries.values():
        assert entry["fit"]["points"] == NUM_MIXES
        assert 0 <= entry["fit"]["relative_error"] < 0.5
        assert entry["fit"]["range"]["longest_tokens"] >= 64


def test_too_little_memory_for_a_token_is_refused_on_every_rank(reports: list[Report]) -> None:
    assert len({report.refused for report in reports}) == 1
    kind, code, message = reports[0].refused
    assert (kind, code) == ("InfeasibleError", "scheme_too_large")
    assert "<1>" in message


def test_a_frozen_first_stage_holds_its_output() -> None:
    first, last = run_ranks(2, measure_frozen_stage)[0]
    assert first == small_config().hidden_size * FLOAT32
    assert last > first
