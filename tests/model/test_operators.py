"""Operators of torch that are no public interface: their schemas in all supported versions.

A version of torch that changes an operator fails here, before it fails on a device.
"""

import ast
import inspect
import re

import pytest
import torch
from torch.distributed._symmetric_memory import get_symm_mem_workspace

from helpers import ROOT, at_least

_FLASH_BOUNDARIES = "SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, "
# Arguments by position, arguments by name, and results; torch may add named arguments that have a default.
SCHEMAS = {
    "_flash_attention_forward.default": (
        "Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, "
        f"{_FLASH_BOUNDARIES}bool return_debug_mask",
        "float? scale=None",
        "(Tensor output, Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)",
    ),
    "_flash_attention_backward.default": (
        "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
        f"Tensor cum_seq_q, Tensor cum_seq_k, {_FLASH_BOUNDARIES}Tensor rng_state, Tensor unused",
        "float? scale=None",
        "(Tensor, Tensor, Tensor)",
    ),
    "_scaled_dot_product_flash_attention_for_cpu.default": (
        "Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False",
        "Tensor? attn_mask=None, float? scale=None",
        "(Tensor output, Tensor logsumexp)",
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": (
        "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
        "float dropout_p, bool is_causal",
        "Tensor? attn_mask=None, float? scale=None",
        "(Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    ),
    "mm.dtype": ("Tensor self, Tensor mat2, ScalarType out_dtype", "", "Tensor"),
    "addmm.dtype_out": (
        "Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype",
        "Scalar beta=1, Scalar alpha=1, Tensor(a!) out",
        "Tensor(a!)",
    ),
    "_scaled_mm.default": (
        "Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
        "Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False",
        "",
        "Tensor",
    ),
    # Called by torch.optim.AdamW(fused=True), with the state that the optimizer shard lays out.
    "_fused_adamw_.default": (
        "Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, "
        "Tensor(e!)[] max_exp_avg_sqs, Tensor[] state_steps",
        "float lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad, bool maximize, "
        "Tensor? grad_scale=None, Tensor? found_inf=None",
        "()",
    ),
}


def parts(schema: str) -> tuple[list[str], list[str], str]:
    """Split a schema into arguments by position, arguments by name, and results."""
    match = re.fullmatch(r"[\w:.]+\((.*)\) -> (.*)", schema)
    assert match is not None, schema
    arguments = re.split(r", (?![^(]*\))", match[1])
    place = arguments.index("*") if "*" in arguments else len(arguments)
    return arguments[:place], arguments[place + 1 :], match[2]


def differences(schema: str, expected: tuple[str, str, str]) -> list[str]:
    positional, named, results = parts(schema)
    wanted_positional, wanted_named, wanted_results = parts(
        f"x({expected[0]}, *, {expected[1]}) -> {expected[2]}"
    )
    wanted_named = [one for one in wanted_named if one]
    found = [] if positional == wanted_positional else [f"by position: {positional}"]
    found += [f"lacks {one}" for one in wanted_named if one not in named]
    found += [f"requires {one}" for one in named if one not in wanted_named and "=" not in one]
    return found + ([] if results == wanted_results else [f"results: {results}"])


@pytest.mark.parametrize("name", SCHEMAS)
def test_torch_takes_what_is_passed(name: str) -> None:
    packet, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    assert differences(str(operator._schema), SCHEMAS[name]) == []


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("aten::f(Tensor a, int b, *, float c=1, float d=2) -> Tensor", []),
        ("aten::f(int b, Tensor a, *, float c=1) -> Tensor", ["by position: ['int b', 'Tensor a']"]),
        ("aten::f(Tensor a, int b) -> Tensor", ["lacks float c=1"]),
        ("aten::f(Tensor a, int b, *, float c=1, int e) -> Tensor", ["requires int e"]),
        ("aten::f(Tensor a, int b, *, float c=1) -> (Tensor, Tensor)", ["results: (Tensor, Tensor)"]),
    ],
)
def test_each_kind_of_change_is_noticed(schema: str, found: list[str]) -> None:
    assert differences(schema, ("Tensor a, int b", "float c=1", "Tensor")) == found


def test_every_private_operator_of_the_package_has_its_schema_here() -> None:
    """Find the operators below `torch.ops.aten` that are private, or a chosen overload, in the sources."""
    called = set()
    for path in at_least(50, (ROOT / "python").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            match = re.fullmatch(r"torch\.ops\.aten\.(\w+)(?:\.(\w+))?", dotted)
            if match is not None:
                called.add((match[1], match[2] or "default"))
    chosen = {name for name, overload in called if overload != "default"}
    listed = {tuple(name.split(".")) for name in SCHEMAS}
    private = {
        (name, overload)
        for name, overload in at_least(4, called)
        if name.startswith("_") or (name in chosen and overload != "default")
    }
    # Comparisons with operators, which selective recomputation makes, call nothing.
    assert sorted(private - listed) == []


def test_symmetric_memory_is_called_as_torch_defines_it() -> None:
    from torch._C._distributed_c10d import _SymmetricMemory

    assert list(inspect.signature(get_symm_mem_workspace).parameters) == ["group_name", "min_size"]
    # Bound functions have their signature in their text alone.
    found = {
        name: re.findall(r"(\w+): ", (getattr(_SymmetricMemory, name).__doc__ or "").split(" -> ")[0])
        for name in ("get_buffer", "barrier")
    }
    assert found["get_buffer"] == ["self", "rank", "sizes", "dtype", "storage_offset"]
    assert found["barrier"] == ["self", "channel", "timeout_ms"]
