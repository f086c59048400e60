"""Tells a webhook of every decision about a champion, once at most; a webhook that fails stops nothing.

Its address may hold a secret. So it comes from ``KGQA_WEBHOOK``, or from the secret block ``kgqa-webhook`` of the
Prefect server that runs use, and is neither stored nor shown.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tasks.leftovers import running_server
from tasks.release import Move, Releases

VARIABLE, BLOCK = "KGQA_WEBHOOK", "kgqa-webhook"
SECONDS = 5.0  # that it may take, look-up of its name included
_log = logging.getLogger(__name__)


def announce(releases: Releases) -> None:
    """Tell the webhook of the decisions that nobody was told of. They are noted as told before: never twice."""
    try:
        if all(move.announced for move in releases.moves()):
            return
        url = address(releases.home)  # where Prefect, who knows it, is away, they are told later
        moves = releases.take_unannounced()
    except Exception as problem:  # a full disk, a Prefect that is away: the decision stands
        _log.warning("no webhook was told of %s: %s", releases.model, type(problem).__name__)
        return
    for move in moves if url else ():
        sending = threading.Thread(target=_send, args=(url, message(releases.model, move)), daemon=True)
        sending.start()
        sending.join(SECONDS)
        if sending.is_alive():
            _log.warning("the webhook did not answer within %g s", SECONDS)


def message(model: str, move: Move) -> dict[str, Any]:
    """Return what is sent: ``text`` is what a chat shows."""
    before = f" (before: {move.from_release})" if move.from_release and move.kind != "refused" else ""
    to = " to" * (move.kind == "rolled back")  # what is named is who is champion now
    text = f"{model}: {move.kind}{to} {move.to_release}{before}: {move.why}"
    named = {"kind": move.kind, "when": move.when, "why": move.why}
    return {"text": text, "model": model, **named, "from": move.from_release, "to": move.to_release}


def address(home: Path) -> str:
    """Return the webhook's address; empty where there is none."""
    if given := os.environ.get(VARIABLE):
        return given
    api = os.environ.get("PREFECT_API_URL") or running_server(home, "prefect")
    if not api:
        return ""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.settings import (
        PREFECT_API_REQUEST_TIMEOUT,
        PREFECT_API_URL,
        PREFECT_CLIENT_MAX_RETRIES,
        temporary_settings,
    )

    # A Prefect that hangs kept kgqa rollback for seven minutes.
    once = {PREFECT_API_URL: api, PREFECT_API_REQUEST_TIMEOUT: 2 * SECONDS, PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(once), get_client(sync_client=True) as client:
        try:
            block = client.read_block_document_by_name(BLOCK, "secret", include_secrets=True)
        except ObjectNotFound:
            return ""
    return str(block.data["value"])


def _send(url: str, content: dict[str, Any]) -> None:
    """POST it; what goes wrong is named without the address, parts of which errors repeat."""
    try:
        if not url.startswith(("http://", "https://")):
            raise ValueError("no web address")
        data = json.dumps(content).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - checked above
        with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310 - checked above
            _log.info("the webhook was told: %s", content["text"])
    except Exception as problem:
        code = f" {problem.code}" if isinstance(problem, urllib.error.HTTPError) else ""
        reason = getattr(problem, "reason", None)  # of an URLError: it timed out, was refused, has no such name
        said = type(reason if isinstance(reason, Exception) else problem).__name__
        _log.warning("the webhook was not told: %s%s", said, code)
