"""`python -m hydraulis`: the `hydraulis` command, for torchrun, which starts ranks by a module's name."""

from hydraulis.cli.start import command

if __name__ == "__main__":
    command()
