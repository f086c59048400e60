"""The program ``kgqa``. What is imported takes a while: Ctrl-C then ends it without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    usual = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flows.cli import app

    signal.signal(signal.SIGINT, usual)
    app()


if __name__ == "__main__":
    main()
