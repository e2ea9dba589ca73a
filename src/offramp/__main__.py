"""`python -m offramp`."""

from offramp.cli import main

main()
