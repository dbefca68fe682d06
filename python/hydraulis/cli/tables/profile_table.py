"""A cost profile as a table."""

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.errors import InfeasibleError
from hydraulis.planner.profile_document import fitted_times, measured_links

_HEAD = (
    ("", "per squared", "per", "per micro-", "at least", "error of", "error,", "longest", "limit of"),
    ("scheme", "token (ns)", "token (us)", "batch (ms)", "(ms)", "the fit", "held out", "(tokens)", "tokens"),
)
_LEGEND = (
    "A micro-batch takes the sum of the first three columns, each times its squared lengths, its tokens or "
    "1; `longest` was measured, and the limit is that of a micro-batch in the ranks' memory.\n"
)


def profile_table(profile: CostProfile, cluster: Cluster) -> str:
    """Return a profile's schemes, with their token caps on the cluster, and its links."""
    row = "{:<16} {:>11} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}\n"
    text = "".join(row.format(*line).rstrip() + "\n" for line in _HEAD)
    for times in fitted_times(profile):
        text += row.format(
            str(times.scheme),
            f"{1e6 * times.quadratic_ms_per_token2:.3f}",
            f"{1e3 * times.linear_ms_per_token:.3f}",
            f"{times.fixed_ms:.3f}",
            f"{times.least_ms:.3f}" if times.least_ms else "-",
            _percent(times.relative_error),
            _percent(times.held_out_error),
            "-" if times.longest_tokens is None else f"{times.longest_tokens:,}",
            _cap(profile, times.scheme, cluster),
        )
    text += _LEGEND
    for link in measured_links(profile):
        text += (
            f"{link.operation} among {link.ranks} ranks: {link.latency_ms:.3f} ms and "
            f"{link.gigabytes_per_s:.2f} GB/s\n"
        )
    return text


def _cap(profile: CostProfile, scheme: Scheme, cluster: Cluster) -> str:
    try:
        return f"{profile.cap_tokens(scheme, cluster):,}"
    except InfeasibleError:
        return "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
