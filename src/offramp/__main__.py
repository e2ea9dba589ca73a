"""`python -m offramp`."""

from offramp.cli.app import main

main()
