"""`python -m hydraulis` runs the `hydraulis` command; torchrun starts ranks by this module name."""

from hydraulis.cli.start import command

if __name__ == "__main__":
    command()
