from ragen_lab.cli import program

program()
