"""Determines the schemes that a run's replicas may use."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from hydraulis._core import Cluster, CostProfile, Scheme, Strategy
from hydraulis.config.planner import PlannerConfig
from hydraulis.config.run import RunConfig
from hydraulis.errors import InfeasibleError, InvalidInputError
from hydraulis.parallel.checkpointing import check_layer_plan
from hydraulis.parallel.context.context_parallel import check_context_degree
from hydraulis.parallel.tensor import check_tensor_degree
from hydraulis.planner.devices import device_profiles
from hydraulis.planner.model_shape import build_layer_split
from hydraulis.planner.strategies import listed_schemes, named_strategies
from hydraulis.runtime.memory.resident import resident_memory
from hydraulis.runtime.state.places import check_stages

# Maximum share of a rank's memory that a scheme's resident bytes may take, to be worth measuring.
_HELD_SHARE = 0.8


def run_schemes(
    config: RunConfig, cluster: Cluster, profile: CostProfile | None, origin: str = "planner.schemes"
) -> list[Scheme]:
    """List every scheme that a plan of the run may use, sorted.

    Args:
        config: The run's configuration.
        cluster: Cluster of the run's ranks.
        profile: Cost profile for planning; None if the run measures one.
        origin: Key or option that set `planner.schemes`, for error messages.

    Raises:
        InvalidInputError: A strategy or a scheme is malformed (code `strategy_invalid`), does not fit the
            cluster (`strategy_unplaceable`) or the model (`scheme_model_mismatch`), or is unknown to the
            profile (`scheme_unknown`).
        InfeasibleError: A search has no admitted scheme (code `no_strategies`).
    """
    named = {Scheme(text): origin for text in config.planner.schemes}
    for strategy in named_strategies(config.planner, cluster):
        named |= dict.fromkeys(strategy.schemes, f"'{strategy}' of planner.strategies")
    if profile is not None:
        profile = profile.with_derived(list(named))
    if named:
        return sorted(_named(scheme, where, config, cluster, profile) for scheme, where in named.items())
    candidates = _all_schemes(config, cluster) if profile is None else map(Scheme, profile.schemes)
    schemes = {scheme for scheme in candidates if _is_admitted(scheme, config, cluster, profile)}
    if profile is not None:
        # Without any, the planner's refusal names the scheme that lacks least.
        schemes = {scheme for scheme in schemes if _has_room(scheme, cluster, profile)} or schemes
    if not schemes:
        message = (
            f"planner.strategies = ['search'] finds no scheme for this model on {cluster.gpus} ranks; name "
            "some in planner.schemes, or raise planner.memory_mib"
        )
        raise InfeasibleError(message, code="no_strategies")
    return sorted(schemes)


def with_layer_splits(config: RunConfig, schemes: Sequence[Scheme]) -> list[Scheme]:
    """Add the splits of their layers that plans may choose once a rank is slow, sorted.

    Owners do not depend on the split.

    Raises:
        InvalidInputError: A scheme has more stages than the model has layers (code `scheme_model_mismatch`).
    """
    split = build_layer_split(config.model, config.train.stage_layers)
    number = config.planner.layer_splits
    splits = (other for scheme in schemes for other in split.splits_for_slow_stages(scheme, number))
    return sorted({*schemes, *splits})


def with_derived_schemes(profile: CostProfile, planner: PlannerConfig) -> CostProfile:
    """Add to the profile's schemes those that a run names, its layer plans and its splits of layers."""
    named = [*map(Scheme, planner.schemes), *listed_schemes(planner)]
    profile = profile.with_derived(named).with_layer_plans(planner.layer_plans)
    return profile.with_layer_splits(planner.layer_splits)


def _named(
    scheme: Scheme, where: str, config: RunConfig, cluster: Cluster, profile: CostProfile | None
) -> Scheme:
    """Check a scheme; an error names its key in the configuration, since a preset may have set it."""
    try:
        return _checked(scheme, config, cluster, profile)
    except InvalidInputError as error:
        message = f"{where}: {error}"
        raise InvalidInputError(message, code=error.code) from error


def _checked(scheme: Scheme, config: RunConfig, cluster: Cluster, profile: CostProfile | None) -> Scheme:
    Strategy(f"1x{scheme}").place(cluster)
    check_tensor_degree(config.model, scheme.tp)
    check_layer_plan(config.model, scheme)
    if scheme.split:
        build_layer_split(config.model).stage_layers(scheme)
    check_stages(config.train.sharding, [scheme])
    context = config.planner.context if scheme.cp > 1 else None
    if profile is not None:
        profile.micro_batch_ms(scheme, [1])
        context = profile.context(scheme)
    check_context_degree(config.model, scheme, context)
    return scheme


def _is_admitted(scheme: Scheme, config: RunConfig, cluster: Cluster, profile: CostProfile | None) -> bool:
    try:
        _checked(scheme, config, cluster, profile)
    except InvalidInputError:
        return False
    return scheme.pp <= config.model.num_hidden_layers


def _has_room(scheme: Scheme, cluster: Cluster, profile: CostProfile) -> bool:
    """Whether a scheme leaves memory for a token on some device of the profile."""
    for of_device in device_profiles(profile):
        with suppress(InfeasibleError):
            of_device.cap_tokens(scheme, cluster)
            return True
    return False


def _all_schemes(config: RunConfig, cluster: Cluster) -> Iterator[Scheme]:
    """Yield schemes with power-of-two degrees that leave memory for tokens, with each kind of checkpointing.

    Tensor and context ranks of a replica are on one node, and a scheme has either pipeline stages or context
    ranks. Without these limits there would be too many schemes to measure in a short time.
    """
    room = _HELD_SHARE * config.planner.memory_bytes
    node = min(cluster.gpus_per_node, cluster.gpus)
    for tp in _powers(node):
        degrees = [Scheme(f"<tp{tp},pp{pp}>") for pp in _powers(cluster.gpus // tp)]
        degrees += [Scheme(f"<tp{tp},cp{cp}>") for cp in _powers(node // tp) if cp > 1]
        for scheme in degrees:
            fits = scheme.pp <= config.model.num_hidden_layers
            if scheme.pp > 1 and config.train.sharding != "none":
                continue
            if fits and resident_memory(config, [scheme], cluster).bytes <= room:
                yield from (scheme.with_checkpointing(kind) for kind in config.planner.checkpointing)


def _powers(most: int) -> list[int]:
    """List the powers of two up to `most`."""
    return [1 << exponent for exponent in range(most.bit_length())]
