"""`offramp` and `python -m offramp`: quiet on Ctrl-C from the first moment on."""

import os
import signal


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _leave)
    # Only now: an interrupt while this is imported would end in a traceback.
    from offramp.cli.app import main as run

    run()


def _leave(*_: object) -> None:
    os.write(2, b"\nofframp: interrupted before anything was done\n")
    # No exception: whatever is being imported might catch it, and there is nothing to clean up.
    os._exit(130)


if __name__ == "__main__":  # the processes of a server import this file again
    main()
