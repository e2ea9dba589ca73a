"""The command `offramp`: quiet on Ctrl-C from the first moment on.

Outside of the package on purpose. Importing anything of `offramp` imports torch first, which takes
seconds; an interrupt in that time would end in a traceback.
"""

import os
import signal


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _leave)
    # Only now: see above.
    from offramp.cli.app import main as run

    run()


def _leave(*_: object) -> None:
    os.write(2, b"\nofframp: interrupted before anything was done\n")
    # No exception: whatever is being imported might catch it, and there is nothing to clean up.
    os._exit(130)
