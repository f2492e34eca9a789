"""``python -m ragen_lab`` is ``ragen-lab``."""

from ragen_lab.cli import program

if __name__ == "__main__":
    program()
