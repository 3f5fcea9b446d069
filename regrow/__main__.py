"""`python -m regrow` is the command line."""

from regrow.cli import main

main()
