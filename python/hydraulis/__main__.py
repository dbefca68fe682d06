"""`python -m hydraulis`: the `hydraulis` command, for torchrun, which starts ranks by a module's name."""

from hydraulis.cli.main import command

if __name__ == "__main__":
    command()
