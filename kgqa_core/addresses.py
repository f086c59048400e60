"""Where files lie: addresses s3://BUCKET/KEY and gs://BUCKET/KEY, any other refused; paths as written; mounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from kgqa_core.errors import ConfigError, shorten, with_nearest

ADDRESS = re.compile(r"(?!models:)([A-Za-z][A-Za-z0-9+.-]*)://(([^/]*)/?(.*))", re.DOTALL)
STORES = ("s3", "gs")
VARIABLES = ("KGQA_DATA", "KGQA_HOME")  # what paths may hold as ${...}
LOCAL = "a file beside the configuration, with the keys data and home"
MOUNTS, ESCAPED = Path("/proc/mounts"), re.compile(r"\\([0-7]{3})")  # blanks in it are written \040
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


@dataclass(frozen=True, slots=True)
class Places:
    """What the paths of a file mean: given to pydantic as the context in which the file is read."""

    folder: Path  # relative paths start here
    variables: Mapping[str, str]  # of VARIABLES, those that are set


class TextOf(str):
    """A text that another file than the one that is read gave: if it is a path, it starts in that file's folder."""

    folder: Path


def resolve_input(given: Any, info: ValidationInfo) -> Any:
    """Validate a path or an address of what a run reads, which stands as ``address_path`` returns it."""
    return (isinstance(given, str) and address_path(given)) or resolve_path(given, info)


def resolve_path(given: Any, info: ValidationInfo) -> Any:
    """Validate a path of a file that is read: fill in variables, and start in the folder of what gave it."""
    places = info.context
    if not isinstance(places, Places) or not isinstance(given, str):
        return given
    address_path(given, legal=False)
    if not given:  # else it would be the folder of the file
        raise ValueError("must be a path")
    if given.startswith("models:/"):  # a release, which is found when a run starts
        return Path(given)

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        if name not in VARIABLES:
            raise ValueError(f"unknown variable {shorten(name)}; legal: {with_nearest(name, VARIABLES)}")
        if name not in places.variables:
            raise ValueError(f"needs {name}, which is not set: set it in the environment, or in local.yaml ({LOCAL})")
        return places.variables[name]

    try:
        path = Path(re.sub(r"\$\{([^}]*)\}", fill, given)).expanduser()
    except RuntimeError as problem:  # "~name" of nobody here
        raise ValueError(f"{problem}; give a full path") from None
    return getattr(given, "folder", places.folder) / path


def mount_of(path: Path) -> tuple[str, str, str]:
    """Return device, place and kind of the mount that a path lies on; empty where the system does not tell."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return "", "", ""
    mounts = [
        [ESCAPED.sub(lambda found: chr(int(found[1], 8)), part) for part in line.split(" ")[:3]] for line in lines
    ]
    own = [(device, place, kind) for device, place, kind in mounts if path.resolve().is_relative_to(place)]
    return max(own, key=lambda mount: len(mount[1]), default=("", "", ""))
