"""`hydraulis config`: the effective configuration of a run, with the origin of each value."""

import argparse
import json
import sys

from hydraulis.cli.options import add_json, add_run_config, overrides_of
from hydraulis.config.layered.toml import origins_by_section, to_toml
from hydraulis.config.run import load_with_origins, to_dict

_EXAMPLES = """\
examples:
  hydraulis config examples/demo.toml
  hydraulis config examples/demo.toml --set train.steps=100 --set output.directory=runs/longer
  hydraulis config examples/demo.toml --preset laptop > effective.toml
  hydraulis config examples/demo.toml --json

The output is a complete configuration, defaults included. A comment after each value names its origin:
`default`, `preset NAME`, the path of the file or of a model's config.json, or `--set`. A value that follows
from the model's family has the origin `left out of` a config.json; one from the files of model.path has
`model.path of` the configuration.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "config",
        help="print a run's effective configuration",
        description="Print the effective configuration of a run, with the origin of each value.",
        epilog=_EXAMPLES,
    )
    add_run_config(parser)
    add_json(parser, "values and origins")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the configuration and print it.

    Returns:
        0.
    """
    loaded = load_with_origins(arguments.config, overrides_of(arguments), arguments.preset)
    if arguments.json:
        document = {"config": to_dict(loaded.config), "origins": origins_by_section(loaded)}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(to_toml(loaded))
    return 0
