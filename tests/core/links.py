"""Links for the planner's tests."""

from hydraulis import LayerSplit, Link, Parameter, ParameterTable

LAYERS = 60
ELEMENTS = 6_656**2


def table(layers: int = LAYERS) -> ParameterTable:
    """One square matrix in each layer."""
    parameters = [
        Parameter("matrix", rows=6_656, row_elements=6_656, units=6_656, layer_groups=[layer_group])
        for layer_group in range(1, layers + 1)
    ]
    return ParameterTable(parameters, LayerSplit(layers))


def link(gigabytes_per_s: float = 200) -> Link:
    """Links between nodes of this rate, and messages that take no time."""
    return Link(table(), gigabytes_per_s=gigabytes_per_s, message_us=0)
