"""What a local worker does when it starts; named in ``cluster.SETTINGS``, called by Dask."""

from __future__ import annotations

import logging
import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C, which a terminal sends to workers as well, to the process that started them: it ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Where it ends them in the middle of a task, that is no news.
    logging.getLogger("distributed.worker.state_machine").setLevel(logging.ERROR)
