"""The program that the temporary Prefect server's process runs; started by ``tasks.runtime``, by its file's path.

``python server_process.py SOCKET OWNER``: SOCKET is the number of an inherited, bound socket (so that no other program
can take the port in between), OWNER the id of the process that needs the server. When the owner is gone, however it
went, the server ends itself: a reparented process sees another parent.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time

OWNER_POLL_SECONDS = 0.5
STOP_SECONDS = 5  # for open connections; then they are cut


def end_with(owner: int) -> None:
    """End this process soon after its parent is no longer ``owner``."""
    while os.getppid() == owner:
        time.sleep(OWNER_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2 * STOP_SECONDS)
    os._exit(1)


def main(bound_socket: int, owner: int) -> None:
    """Serve Prefect's API on ``bound_socket`` until told to stop, or until ``owner`` is gone."""
    threading.Thread(target=end_with, args=(owner,), daemon=True).start()
    # A quarter of the start is garbage collection of modules that live to the end anyway.
    gc.disable()
    import uvicorn
    from prefect.server.api.server import create_app

    from tasks.collecting import collect_apart

    app = create_app(ephemeral=True, final=True)
    gc.freeze()
    collect_apart()
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=STOP_SECONDS
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=bound_socket)])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
