"""`python -m hydraulis.train`: the entry that torchrun starts once per rank.

The command line belongs to `hydraulis.cli`; this module starts it by the name that torchrun has.
"""

from hydraulis.cli.start import start_training_rank

if __name__ == "__main__":
    start_training_rank()
