from ragen_lab.cli import main

main()
