"""The program: ``autoresearchd …`` and ``python -m autoresearchd …``."""

from __future__ import annotations

import gc
import signal
import sys


def main() -> int:
    """Run the command line of the process and return its exit code."""
    gc.set_threshold(150_000)  # what is imported is no garbage: collecting amid it takes a tenth of `status`
    from autoresearchd.cli.main import run

    code = run()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what still hangs on a thread is left by Ctrl-C without a traceback
    return code


if __name__ == "__main__":
    sys.exit(main())
