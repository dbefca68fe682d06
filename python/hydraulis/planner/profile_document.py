"""The JSON document of a cost profile: the only Python module that reads or writes its fields.

The core validates every document: an invalid field raises `InvalidInputError` (code `profile_invalid`).
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple, Self

from hydraulis._core import CostFit, CostProfile, LayerSplit, ModelShape, Scheme
from hydraulis.config.kinds import ContextKind, ShardingKind

# A token cap is a multiple of the ranks that split tokens, so that padding never exceeds it, and of 64, so
# that it is a round number.
CAP_MULTIPLE = 64

_FORMAT = "hydraulis.cost-profile/2"
_COEFFICIENTS = ("quadratic_ms_per_token2", "linear_ms_per_token", "fixed_ms", "least_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeMemory:
    """Bytes of one scheme's ranks.

    Attributes:
        resident_bytes: Parameters, gradients and fixed backward memory of a rank, by stage.
        activation_bytes_per_token: Bytes saved for backward at a rank's peak, per token, by stage.
        stage_optimizer_bytes: Optimizer state of the stage's parameters, of all ranks together, by stage.
        host_bytes_per_token: Bytes of host memory of a rank, per token, by stage; None if no layer offloads.
    """

    resident_bytes: Sequence[int]
    activation_bytes_per_token: Sequence[float]
    stage_optimizer_bytes: Sequence[int]
    host_bytes_per_token: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeTimes:
    """Fitted coefficients of one scheme.

    Attributes:
        quadratic_ms_per_token2: Coefficient `a` of the cost model.
        linear_ms_per_token: Coefficient `b` of the cost model.
        fixed_ms: Coefficient `c` of the cost model.
        least_ms: Least time `d` of the cost model; 0 if there is none.
        stage_multipliers: Time of each stage over the mean of all stages.
        forward_share: Share of the forward pass; None in `with_times` to keep the profile's share.
        quality: Accuracy of the fit, as the profile's `fit`; None if it is unknown.
    """

    quadratic_ms_per_token2: float
    linear_ms_per_token: float
    fixed_ms: float
    stage_multipliers: Sequence[float]
    forward_share: float | None
    least_ms: float = 0.0
    quality: Mapping[str, object] | None = None

    @classmethod
    def from_fit(
        cls, fit: CostFit, stage_multipliers: Sequence[float], forward_share: float | None = None
    ) -> Self:
        """Take the coefficients and the accuracy of a fit."""
        return cls(
            quadratic_ms_per_token2=fit.quadratic_ms_per_token2,
            linear_ms_per_token=fit.linear_ms_per_token,
            fixed_ms=fit.fixed_ms,
            least_ms=fit.least_ms,
            stage_multipliers=stage_multipliers,
            forward_share=forward_share,
            quality=json.loads(fit.quality_json()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The conditions of a measurement that all schemes share.

    Attributes:
        model: Shape of the model.
        split: Split of its layers over stages.
        dtype: Dtype of parameters and activations.
        context: Kind of context parallelism of all schemes with context ranks.
        gpus_per_node: Ranks of a node.
        attention: Name of the attention kernel.
        compiled: Whether the layers' and the loss's elementwise operations were compiled.
        float8: Whether the layers' linear maps multiplied in float8.
        symmetric_memory: Whether tensor parallelism exchanged through symmetric memory.
        sharding: Tensors that ranks hold in parts.
        device: Name of a rank's device.
        clock: Clock of the times, in words.
        torch: Version of torch.
    """

    model: ModelShape
    split: LayerSplit
    dtype: str
    context: ContextKind
    gpus_per_node: int
    attention: str
    compiled: bool
    float8: bool
    symmetric_memory: bool
    sharding: ShardingKind
    device: str
    clock: str
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Bytes that do not depend on the scheme.

    Attributes:
        memory_bytes: Memory of a rank.
        reserved_bytes: Transfer buffers of a rank; on CUDA also context, communicators, workspaces and
            fragmentation.
        optimizer_bytes: Master parameters, their gradients and moments, of the whole model.
        host_memory_bytes: Host memory of a rank for activations; None if no scheme offloads.
        host_gigabytes_per_s: Rate of a rank's copies to host memory and at the same time back, each way; None
            if no scheme offloads, and on the CPU, where copies are a part of computation.
    """

    memory_bytes: int
    reserved_bytes: int
    optimizer_bytes: int
    host_memory_bytes: int | None = None
    host_gigabytes_per_s: float | None = None


class LinkMeasurement(NamedTuple):
    """Latency and rate of one kind of communication among a number of ranks.

    Attributes:
        operation: `send` (each rank of the first half sends to its peer in the second half, like pipeline
            stages) or `all_to_all` (like transfers of parameters and gradients).
        ranks: Number of participating ranks, the first ranks of the run.
        latency_ms: Time of the smallest message.
        gigabytes_per_s: Rate of one rank's buffer, in 1e9 bytes per second.
    """

    operation: str
    ranks: int
    latency_ms: float
    gigabytes_per_s: float


class FittedTimes(NamedTuple):
    """The coefficients of a scheme in a profile, with the accuracy of their fit if it is known.

    Attributes:
        scheme: The scheme.
        quadratic_ms_per_token2: Coefficient `a` of the cost model.
        linear_ms_per_token: Coefficient `b` of the cost model.
        fixed_ms: Coefficient `c` of the cost model.
        least_ms: Least time `d` of the cost model; 0 if there is none.
        relative_error: Root mean square of the relative errors of the fitted micro-batches.
        held_out_error: Median relative error of micro-batches left out of the fit.
        longest_tokens: Longest sequence of the fitted micro-batches.
    """

    scheme: Scheme
    quadratic_ms_per_token2: float
    linear_ms_per_token: float
    fixed_ms: float
    least_ms: float
    relative_error: float | None
    held_out_error: float | None
    longest_tokens: int | None


def measured_document(
    model: ModelMemory,
    memory: Mapping[Scheme, SchemeMemory],
    times: Mapping[Scheme, SchemeTimes],
    workload: Workload,
) -> CostProfile:
    """Build a profile from measurements.

    Args:
        model: Bytes that do not depend on the scheme.
        memory: Bytes of each scheme.
        times: Coefficients of each scheme, with forward shares.
        workload: Conditions of the measurement.

    Raises:
        InvalidInputError: A measurement is outside its range (code `profile_invalid`).
    """
    shape = json.loads(workload.model.to_json())
    name = f"measured-{shape['num_hidden_layers']}x{shape['hidden_size']}-{workload.device}"
    entries = [
        {"scheme": str(scheme)}
        | _memory_fields(memory[scheme])
        | _time_fields(times[scheme])
        | ({"context": workload.context} if scheme.cp > 1 else {})
        | ({"stage_layers": workload.split.stage_layers(scheme)} if scheme.pp > 1 else {})
        for scheme in times
    ]
    document = {
        "format": _FORMAT,
        "name": name.replace(" ", "-"),
        "source": f"measured by this run: {workload.clock} of one rank, torch {workload.torch}",
        "hardware": {
            "device": workload.device,
            "gpus_per_node": workload.gpus_per_node,
            "memory_bytes": model.memory_bytes,
        }
        | _host_fields(model),
        "model": shape,
        "dtype": workload.dtype,
        "attention": workload.attention,
        "compiled": workload.compiled,
        "float8": workload.float8,
        "symmetric_memory": workload.symmetric_memory,
        "sharding": workload.sharding,
        "memory": {
            "reserved_bytes": model.reserved_bytes,
            "optimizer_bytes": model.optimizer_bytes,
            "token_multiple": math.lcm(CAP_MULTIPLE, *(scheme.tp * scheme.cp for scheme in times)),
        },
        "schemes": entries,
    }
    return CostProfile.from_json(json.dumps(document))


def stated_optimizer_bytes(profile: CostProfile) -> int:
    """Return the bytes of master parameters, gradients and moments of the whole model in a profile."""
    return int(json.loads(profile.to_json())["memory"]["optimizer_bytes"])


def with_name(profile: CostProfile, name: str) -> CostProfile:
    """Return the profile under another name."""
    return _edited(profile, lambda document: document.update(name=name))


def with_links(profile: CostProfile, links: Sequence[LinkMeasurement]) -> CostProfile:
    """Return the profile with measured links in place of its own."""
    entries = [link._asdict() for link in links]
    return _edited(profile, lambda document: document["hardware"].update(links=entries))


def with_host_memory(profile: CostProfile, nbytes: int) -> CostProfile:
    """Return the profile with another host memory of a rank."""
    return _edited(profile, lambda document: document["hardware"].update(host_memory_bytes=nbytes))


def with_schemes(profile: CostProfile, schemes: Collection[Scheme]) -> CostProfile:
    """Return the profile with only these of its schemes, and without stated strategies."""
    names = {str(scheme) for scheme in schemes}

    def edit(document: dict[str, Any]) -> None:
        for of_device in _of_each_device(document):
            of_device["schemes"] = [entry for entry in of_device["schemes"] if entry["scheme"] in names]
            of_device["strategies"] = []

    return profile if names == set(profile.schemes) else _edited(profile, edit)


def with_times(
    profile: CostProfile, times: Mapping[Scheme, SchemeTimes], note: str, device: int = 0
) -> CostProfile:
    """Return the profile with new times of some schemes on one device.

    Args:
        profile: Profile with all these schemes.
        times: New times of each scheme.
        note: Origin of the times, appended to the source of the device's profile.
        device: Number of the device.
    """
    fields = {str(scheme): _time_fields(scheme_times) for scheme, scheme_times in times.items()}

    def edit(document: dict[str, Any]) -> None:
        of_device = list(_of_each_device(document))[device]
        for entry in of_device["schemes"]:
            entry.update(fields.get(entry["scheme"], {}))
        of_device["source"] += f"; {note}"

    return _edited(profile, edit)


def with_scaled_times(profile: CostProfile, factor_of: Callable[[str], float]) -> CostProfile:
    """Return the profile with the coefficients of each scheme multiplied by `factor_of(scheme)`."""

    def edit(document: dict[str, Any]) -> None:
        for entry in chain.from_iterable(of_device["schemes"] for of_device in _of_each_device(document)):
            factor = factor_of(entry["scheme"])
            entry.update((name, factor * entry[name]) for name in _COEFFICIENTS if name in entry)

    return _edited(profile, edit)


def fitted_times(profile: CostProfile) -> list[FittedTimes]:
    """Return the coefficients of every scheme, in the order of the profile."""
    rows = []
    for entry in json.loads(profile.to_json())["schemes"]:
        fit = entry.get("fit") or {}
        rows.append(
            FittedTimes(
                scheme=Scheme(entry["scheme"]),
                quadratic_ms_per_token2=entry["quadratic_ms_per_token2"],
                linear_ms_per_token=entry["linear_ms_per_token"],
                fixed_ms=entry["fixed_ms"],
                least_ms=entry.get("least_ms", 0.0),
                relative_error=fit.get("relative_error"),
                held_out_error=fit.get("held_out_error"),
                longest_tokens=fit["range"]["longest_tokens"] if fit else None,
            )
        )
    return rows


def measured_links(profile: CostProfile) -> list[LinkMeasurement]:
    """Return the measured links of a profile; empty if it has none."""
    links = json.loads(profile.to_json())["hardware"].get("links", [])
    return [LinkMeasurement(**link) for link in links]


def _of_each_device(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the document of a profile and those of its other devices."""
    yield document
    for other in document.get("other_devices", []):
        yield other["profile"]


def _edited(profile: CostProfile, edit: Callable[[dict[str, Any]], None]) -> CostProfile:
    document = json.loads(profile.to_json())
    edit(document)
    return CostProfile.from_json(json.dumps(document))


def _host_fields(model: ModelMemory) -> dict[str, object]:
    fields: dict[str, object] = {
        "host_memory_bytes": model.host_memory_bytes,
        "host_gigabytes_per_s": model.host_gigabytes_per_s,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _memory_fields(memory: SchemeMemory) -> dict[str, object]:
    """Return the memory fields of a scheme's entry: numbers for a single stage, lists for several."""
    host: dict[str, object] = {}
    if memory.host_bytes_per_token is not None:
        figures = list(memory.host_bytes_per_token)
        host["host_bytes_per_token"] = figures if len(figures) > 1 else figures[0]
    if len(memory.resident_bytes) == 1:
        return host | {
            "resident_bytes": memory.resident_bytes[0],
            "activation_bytes_per_token": memory.activation_bytes_per_token[0],
        }
    return host | {
        "resident_bytes": list(memory.resident_bytes),
        "activation_bytes_per_token": list(memory.activation_bytes_per_token),
        "stage_optimizer_bytes": list(memory.stage_optimizer_bytes),
    }


def _time_fields(times: SchemeTimes) -> dict[str, object]:
    fields: dict[str, object] = asdict(times) | {"stage_multipliers": list(times.stage_multipliers)}
    quality = fields.pop("quality")
    if times.forward_share is None:
        del fields["forward_share"]
    return fields if quality is None else fields | {"fit": quality}
