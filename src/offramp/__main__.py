"""`python -m offramp`."""

from offramp.cli.app import main

if __name__ == "__main__":  # the processes of a server import this file again
    main()
