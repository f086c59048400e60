"""Where files lie: addresses s3://BUCKET/KEY and gs://BUCKET/KEY of object storage, any other refused; and mounts."""

from __future__ import annotations

import re
from pathlib import Path

from kgqa_core.errors import ConfigError

ADDRESS = re.compile(r"(?!models:)([A-Za-z][A-Za-z0-9+.-]*)://(([^/]*)/?(.*))", re.DOTALL)
STORES = ("s3", "gs")
LEGAL_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]+")


def address_path(given: str, *, legal: bool = True) -> Path | None:
    """Return an address as the relative path "s3:/BUCKET/KEY", which no path of a file is like; None where it is none.

    Raises ValueError where it is not legal, here (not ``legal``) or at all; ConfigError, which does not repeat it,
    where it may hold a secret.
    """
    if not (found := ADDRESS.match(given)):
        return None
    if re.search("[@?#]", given):
        raise ConfigError(
            f"an address {found[1][:9]}://... has a user, a query or a fragment. These may be secret, and what is "
            "configured is stored: leave them out. Credentials are read from the environment alone"
        )
    if not legal or found[1] not in STORES:
        raise ValueError(
            "must be a path of this machine: copy or mount it. Only the files of a dataset (graph, names, questions, "
            "plans) and kgqa export --out may be addresses, s3://BUCKET/KEY or gs://BUCKET/KEY"
        )
    parts = {*found[2].removesuffix("/").split("/")}
    if not LEGAL_BUCKET.fullmatch(found[3]) or not found[4] or parts & {"", ".", ".."} or not given.isprintable():
        raise ValueError(f"must be like {found[1]}://BUCKET/KEY, the bucket in lower case, no part of the key empty")
    return Path(given)


def mount_of(path: Path) -> tuple[str, str, str]:
    """Return device, place and kind of the mount that a path lies on; empty where the system does not tell."""
    try:
        mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:  # no Linux
        return "", "", ""
    own = [(device, place, kind) for device, place, kind in mounts if path.resolve().is_relative_to(place)]
    return max(own, key=lambda mount: len(mount[1]), default=("", "", ""))
