"""Where inputs in object storage lie in a home. Nothing here fetches them: ``tasks.objects`` does.

``fetched/ID/SCHEME/BUCKET/KEY`` is an input, a file or a folder. ``fetched/ID/note.json`` says what is known of each
file: ETag (with gs:// the generation), size and time there; size and time here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgqa_core.addresses import STORES
from kgqa_core.artifacts import DIGITS, hash_json, read_note
from kgqa_core.config import RunConfig
from kgqa_core.config_base import Section

FETCHED, NOTE = "fetched", "note.json"
INPUTS = ("graph", "questions", "path", "names", "files", "dev_ids", "plan_files")  # what of a dataset is looked into


def local_inputs(config: RunConfig) -> tuple[RunConfig, list[Path]]:
    """Return a configuration with paths in the place of addresses, whether or not anything is there, and these paths.

    It may be what this returned.
    """
    found: dict[Path, None] = {}
    root = config.runtime.home / FETCHED

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: placed(one) for name, one in value.items()}
        if isinstance(value, Section):
            return value.model_copy(update={n: placed(one) for n in INPUTS if (one := getattr(value, n, None))})
        if isinstance(value, Path):
            if value.parts[0] in [f"{scheme}:" for scheme in STORES]:
                value = root.joinpath(hash_json(str(value))[:DIGITS], value.parts[0][:-1], *value.parts[1:])
            if value.is_relative_to(root):
                found[value] = None
        return value

    dataset = placed(config.dataset)
    return (config.model_copy(update={"dataset": dataset}) if found else config), [*found]


def origin_of(path: Path, home: Path) -> dict[str, str]:
    """Return address and ETag of what was fetched or is to be, the ETag empty then; of any other path nothing."""
    unit, *parts = path.relative_to(home / FETCHED).parts if path.is_relative_to(home / FETCHED) else ("",)
    address = "://".join((parts[0], "/".join(parts[1:]))) if parts else ""
    return {"address": address, "etag": str(known_files(home / FETCHED / unit).get(address, [""])[0])} if parts else {}


def known_files(unit: Path) -> dict[str, list[Any]]:
    """Return what is known of the files of a folder ``fetched/ID``, by address; nothing where there is no note."""
    found = read_note(unit / NOTE).get("files")
    return found if isinstance(found, dict) else {}
