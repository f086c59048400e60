"""The program that makes the work pools and deployments of a server, run by the keeper: ``FILE POOL...``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml


def main(file: Path, pools: list[str]) -> None:
    """Make the pools that a file names, and ``pools``, one of GPUs with one slot, and all deployments of the file."""
    from prefect import get_client
    from prefect.cli import app
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    named = [(one.get("work_pool") or {}).get("name") for one in found.get("deployments") or ()]
    with get_client(sync_client=True) as client:
        for pool in dict.fromkeys(filter(None, [*named, *pools])):
            slots = 1 if pool.endswith("-gpu") else None  # two trainings never share a card
            try:
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", concurrency_limit=slots))
            except ObjectAlreadyExists:
                continue
    os.chdir(file.parent)
    sys.argv = ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file.name]
    app()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
