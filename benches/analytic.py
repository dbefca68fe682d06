"""How well each shipped table of times is predicted from the others, and what the efficiencies then are.

    python benches/analytic.py

For each preset the efficiencies are learnt from the other three, and the profile of its model on its device
is predicted by arithmetic. Errors are of the time of one sequence, over all schemes and over the lengths 512,
1,024 and so on up to each scheme's cap on 64 GPUs.
"""

import statistics
import sys

from hydraulis import Cluster, CostProfile, InfeasibleError, Scheme

CLUSTER = Cluster(gpus=64, gpus_per_node=8)
LENGTHS = [512 << doublings for doublings in range(7)]
ROW = "{:<20} {:>7} {:>8} {:>9} {:>8} {:>8}  {}\n"


def cap(profile: CostProfile, scheme: Scheme) -> int:
    """Most tokens under a scheme; 0 where its weights do not fit."""
    try:
        return profile.cap_tokens(scheme, CLUSTER)
    except InfeasibleError:
        return 0


def errors(target: CostProfile, predicted: CostProfile) -> dict[str, float]:
    """Give predicted over measured time, less 1, by scheme and length."""
    found = {}
    for text in target.schemes:
        scheme = Scheme(text)
        for tokens in [tokens for tokens in LENGTHS if tokens <= cap(target, scheme)]:
            ratio = predicted.micro_batch_ms(scheme, [tokens]) / target.micro_batch_ms(scheme, [tokens])
            found[f"{text} at {tokens:,}"] = ratio - 1
    return found


def main() -> None:
    """Print a row for each table."""
    profiles = [CostProfile.preset(name) for name in CostProfile.presets()]
    sys.stdout.write(ROW.format("table", "schemes", "times", "median", "p90", "worst", "of"))
    for target in profiles:
        others = [profile for profile in profiles if profile != target]
        assert target.model is not None
        predicted = CostProfile.analytic(target.model, CLUSTER, target.device, learnt_from=others)
        found = errors(target, predicted)
        sizes = sorted(abs(error) for error in found.values())
        worst = max(found, key=lambda place: abs(found[place]))
        row = (statistics.median(sizes), sizes[len(sizes) * 9 // 10], abs(found[worst]))
        shares = (f"{size:.1%}" for size in row)
        sys.stdout.write(ROW.format(target.name, len(target.schemes), len(sizes), *shares, worst))


if __name__ == "__main__":
    main()
