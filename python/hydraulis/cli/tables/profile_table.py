"""A cost profile as a table."""

import json

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.errors import InfeasibleError


def describe(profile: CostProfile, cluster: Cluster) -> str:
    """Give a profile's schemes and links as a table, with the caps that they have on a cluster."""
    document = json.loads(profile.to_json())
    row = "{:<16} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9}\n"
    text = row.format("scheme", "a ns/token2", "b us/token", "c ms", "error", "held out", "longest", "cap")
    for entry in document["schemes"]:
        fit = entry.get("fit") or {}
        text += row.format(
            entry["scheme"],
            f"{1e6 * entry['quadratic_ms_per_token2']:.3f}",
            f"{1e3 * entry['linear_ms_per_token']:.3f}",
            f"{entry['fixed_ms']:.3f}",
            _percent(fit.get("relative_error")),
            _percent(fit.get("held_out_error")),
            f"{fit['range']['longest_tokens']:,}" if fit else "-",
            _cap(profile, Scheme(entry["scheme"]), cluster),
        )
    for link in document["hardware"].get("links", []):
        text += (
            f"{link['operation']} among {link['ranks']} ranks: {link['latency_ms']:.3f} ms and "
            f"{link['gigabytes_per_s']:.2f} GB/s\n"
        )
    return text


def _cap(profile: CostProfile, scheme: Scheme, cluster: Cluster) -> str:
    try:
        return f"{profile.cap_tokens(scheme, cluster):,}"
    except InfeasibleError:
        return "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
