"""Prefect's server with its garbage collection in a thread of its own: on SQLite it stands still for minutes otherwise.

A cursor in a cycle is reset when it is collected, which waits for its connection's mutex. The connection's thread may
hold that for a minute (Prefect's busy_timeout), waiting for the lock that a coroutine of the event loop has. Python
collects in whichever thread makes an object. Where that is the event loop's, the coroutine cannot go on, no request is
answered, and workers give up their runs. A thread that does nothing but collect may wait as long as it likes.
"""

from __future__ import annotations

import gc
import sys
import threading
import time

LOOK_SECONDS = 0.5


def collect_apart() -> None:
    """Let no other thread of this process collect garbage from now on."""
    gc.disable()
    threading.Thread(target=_collect, daemon=True).start()


def _collect() -> None:
    while True:
        time.sleep(LOOK_SECONDS)
        counts = zip(gc.get_count(), gc.get_threshold(), strict=True)
        due = [generation for generation, (count, limit) in enumerate(counts) if count > limit]
        if due:
            gc.collect(due[-1])


if __name__ == "__main__":  # python -m tasks.collecting server start ...
    collect_apart()
    from prefect.cli import app

    sys.exit(app())
