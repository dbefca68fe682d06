"""How well measured times are predicted by arithmetic, and how near to the peak devices come.

    python benches/analytic.py

For each preset the efficiencies are learnt from the other three, and the profile of its model on its device
is predicted by arithmetic. Errors are of the time of one sequence, over all schemes and over the lengths 512,
1,024 and so on up to each scheme's cap on 64 GPUs. The curves are of what all four teach: shares of the peak
of matrix products by the hidden units of a rank, of the 7B model on one A800 by the tokens of a micro-batch
of sequences of 128 tokens and by the length of one sequence, and of attention by itself.

On an H100 the times of micro-batches of 1.1 billion parameters are compared with the predicted profile. Its
efficiencies were set by a profile of the same model, so the errors are those of the formula.
"""

import statistics
import sys

from hydraulis import Cluster, CostProfile, InfeasibleError, Scheme
from hydraulis._core import Efficiency
from hydraulis.planner import load_profile

# Milliseconds of one H100 by the tokens of a micro-batch, in sequences of 64, 512 and 2,048 tokens and in a
# single one: benches/record/2026-11-26-gpu-attention.md.
ON_H100 = {
    2_048: (67, 75, 64),
    4_096: (64, 74, 78, 76),
    6_144: (82, 89, 100, 121),
    8_192: (109, 109, 123, 177),
    12_288: (154, 159, 178, 315),
    16_384: (211, 213, 239, 488),
}
CLUSTER = Cluster(gpus=64, gpus_per_node=8)
LENGTHS = [512 << doublings for doublings in range(7)]
WIDTHS = [256 << doublings for doublings in range(6)]
SHORT = 128
ROW = "{:<20} {:>7} {:>8} {:>9} {:>8} {:>8}  {}\n"
SHOWN = "llama-7b-a800"


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


def error_table(profiles: list[CostProfile]) -> str:
    """Give a row for each table, predicted from the others."""
    text = ROW.format("table", "schemes", "times", "median", "p90", "worst", "of")
    for target in profiles:
        efficiency = Efficiency.learnt([profile for profile in profiles if profile != target])
        assert target.model is not None
        predicted = CostProfile.analytic(target.model, CLUSTER, target.device, efficiency=efficiency)
        found = errors(target, predicted)
        sizes = sorted(abs(error) for error in found.values())
        worst = max(found, key=lambda place: abs(found[place]))
        row = (statistics.median(sizes), sizes[len(sizes) * 9 // 10], abs(found[worst]))
        shares = (f"{size:.1%}" for size in row)
        text += ROW.format(target.name, len(target.schemes), len(sizes), *shares, worst)
    return text


def errors_on_h100() -> dict[str, float]:
    """Give predicted over measured time, less 1, of each micro-batch measured on an H100."""
    profile, scheme = load_profile("analytic:tinyllama-1.1b:H100"), Scheme("<1>")
    found = {}
    for tokens, measured in ON_H100.items():
        for length, ms in zip((64, 512, 2_048, tokens)[: len(measured)], measured, strict=True):
            number = tokens // length
            predicted = profile.micro_batch_ms(scheme, [length] * number)
            found[f"<1> at {number:,} x {length:,}"] = predicted / ms - 1
    return found


def row_of_h100() -> str:
    """Give the row of the H100."""
    found = errors_on_h100()
    sizes = sorted(map(abs, found.values()))
    worst = max(found, key=lambda place: abs(found[place]))
    shares = (f"{size:.1%}" for size in (statistics.median(sizes), sizes[len(sizes) * 9 // 10], sizes[-1]))
    return ROW.format("1.1B on one H100", 1, len(sizes), *shares, worst)


def curves(efficiency: Efficiency) -> str:
    """Give how near to the peak the kinds of work come."""
    shown = CostProfile.preset(SHOWN)
    model, scheme = shown.model, Scheme("<1>")
    assert model is not None

    def of(lengths: list[int]) -> float:
        return efficiency.of_micro_batch(model, scheme, CLUSTER, shown.device, lengths)

    kinds = "".join(f"  {name:<24} {times:6.2f}\n" for name, times in efficiency.times_peak)
    widths = {width: efficiency.of_matrices(width) for width in WIDTHS}
    tokens = {total: of([SHORT] * (total // SHORT)) for total in LENGTHS}
    lengths = {length: of([length]) for length in LENGTHS}
    return (
        f"times as long as at peak (launches: ms a layer)\n{kinds}"
        f"matrices, by hidden units of a rank\n{curve(widths)}"
        f"a micro-batch of sequences of {SHORT} tokens, by its tokens\n{curve(tokens)}"
        f"one sequence, by its tokens\n{curve(lengths)}"
        f"attention by itself, of any length\n  {efficiency.of_attention:.1%}\n"
    )


def curve(shares: dict[int, float]) -> str:
    """Give a line of places, and one of the shares there."""
    places = "".join(f"{place:>9,}" for place in shares)
    return places + "\n" + "".join(f"{share:>9.1%}" for share in shares.values()) + "\n"


def main() -> None:
    """Print the errors and the curves."""
    profiles = [CostProfile.preset(name) for name in CostProfile.presets()]
    sys.stdout.write(f"{error_table(profiles)}{row_of_h100()}\n{curves(Efficiency.learnt(profiles))}")


if __name__ == "__main__":
    main()
