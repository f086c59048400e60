"""Prompts: text files with ``{placeholders}``, one per instruction, checked when they are read.

``NAME.txt`` is the user's turn, ``NAME.system.txt`` the system's, where there is one. A first line ``# version X`` is
no part of the prompt. A folder of a user's own need hold only the files that differ: a published checkpoint's wording
is dropped in like this. Only what looks like ``{name}`` is a placeholder; other braces stand for themselves, and what
is filled in is never looked at again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kgqa_core.errors import ConfigError, nearest, shorten

DEFAULT_FOLDER = Path(__file__).parents[2] / "conf" / "prompts"
SUFFIX, SYSTEM_SUFFIX = ".txt", ".system.txt"

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VERSION = re.compile(r"# version[: ]+(\S+)[ \t]*(?:\r?\n|\Z)")


@dataclass(frozen=True, slots=True)
class Placeholders:
    """What a prompt file must and may say."""

    required: frozenset[str]
    optional: frozenset[str] = frozenset()


def _names(required: str, optional: str = "") -> Placeholders:
    return Placeholders(frozenset(required.split()), frozenset(optional.split()))


PLACEHOLDERS: Mapping[str, Placeholders] = {
    "plan": _names("question", "num_plans relations"),
    "score_relations": _names("question relations", "topics path budget"),
    "score_entities": _names("question candidates", "plan topics"),
    "reason": _names("question paths"),
    "reason_scored": _names("question paths"),  # of reason, where paths carry scores (EPERM)
    "choose": _names("question candidates"),
    "explain": _names("question paths"),
    "extract_clues": _names("question"),
    "map_relations": _names("question clues relations", "entity"),
    "map_entities": _names("question clues entities", "entity relation"),
    "enough_information": _names("question paths", "topics"),
    "direct": _names("question"),
    "chain_of_thought": _names("question"),
}
"""Legal placeholders by the name of the prompt file."""


@dataclass(frozen=True, slots=True)
class Template:
    """One instruction's prompt."""

    text: str  # the user's turn, with placeholders
    system: str  # the system's turn; empty: none
    version: str  # of the file's first line; empty where it has none
    sha256: str  # of the user's and the system's text, hexadecimal
    source: Path


@dataclass(frozen=True, slots=True)
class Prompts:
    """All prompts of a run."""

    templates: Mapping[str, Template]  # by the name of the prompt file

    @property
    def hashes(self) -> dict[str, str]:
        """Return the content hash of every prompt, for manifests."""
        return {name: self.templates[name].sha256 for name in sorted(self.templates)}

    @property
    def versions(self) -> dict[str, str]:
        """Return the version of every prompt, for manifests."""
        return {name: self.templates[name].version for name in sorted(self.templates)}

    def fill(self, name: str, values: Mapping[str, str]) -> tuple[str, str]:
        """Return (user's turn, system's turn) of one prompt; ``values`` holds every legal placeholder's."""
        template = self.templates[name]
        return _fill(template.text, values), _fill(template.system, values)


def split_placeholders(text: str) -> list[str]:
    """Return a prompt's text cut at its placeholders: literal text, name, literal text, name, ..., literal text."""
    return _PLACEHOLDER.split(text)


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def read_prompts(folder: Path | None = None) -> Prompts:
    """Read all prompts: those of ``folder``, and the project's own where it has none.

    Raises:
        ConfigError: a folder or file that cannot be read, a file of no known instruction, a placeholder that is not
            legal or is missing.
    """
    files = _files(DEFAULT_FOLDER)
    missing = sorted(name for name in PLACEHOLDERS if name + SUFFIX not in files)
    if missing:
        raise ConfigError(f"{DEFAULT_FOLDER} lacks {', '.join(name + SUFFIX for name in missing)}. Restore the files")
    own = _files(folder) if folder is not None else {}
    templates = {}
    for name in PLACEHOLDERS:
        source = own.get(name + SUFFIX, files[name + SUFFIX])
        # A system's turn belongs to the wording that it was written with.
        system = own.get(name + SYSTEM_SUFFIX) or (None if source in own.values() else files.get(name + SYSTEM_SUFFIX))
        templates[name] = _read(name, source, system)
    return Prompts(templates)


def _files(folder: Path) -> dict[str, Path]:
    """Return the prompt files of a folder by file name."""
    try:
        found = {path.name: path for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIX)}
    except OSError as error:
        raise ConfigError(f"prompts: the folder {folder} cannot be read ({error.strerror or error})") from None
    legal = [name + suffix for name in PLACEHOLDERS for suffix in (SUFFIX, SYSTEM_SUFFIX)]
    for name, path in found.items():
        if name not in legal:
            guess = nearest(name, legal)
            hint = f" Did you mean {guess[0]}?" if guess else ""
            raise ConfigError(f"{path} belongs to no instruction.{hint} Legal: {', '.join(legal[::2])}")
    return found


def _read(name: str, source: Path, system: Path | None) -> Template:
    text, version = _content(source)
    _check(name, text, source, required=PLACEHOLDERS[name].required)
    turn = ""
    if system is not None:
        turn, _ = _content(system)
        _check(name, turn, system, required=frozenset())
    digest = hashlib.sha256(f"{len(text)}:{text}{turn}".encode()).hexdigest()
    return Template(text=text, system=turn, version=version, sha256=digest, source=source)


def _content(path: Path) -> tuple[str, str]:
    """Return (text, version); the end of the last line is the file's, not the prompt's."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text ({error})") from None
    found = _VERSION.match(text)
    body = text[found.end() :] if found else text
    return body.replace("\r\n", "\n").removesuffix("\n"), found[1] if found else ""


def _check(name: str, text: str, path: Path, *, required: frozenset[str]) -> None:
    allowed = PLACEHOLDERS[name]
    legal = sorted(allowed.required | allowed.optional)
    shown = ", ".join(f"{{{one}}}" for one in legal)
    used = set(_PLACEHOLDER.findall(text))
    for unknown in sorted(used.difference(legal)):
        guess = nearest(unknown, legal)
        hint = f" Did you mean {{{guess[0]}}}?" if guess else ""
        raise ConfigError(f"{path}: unknown placeholder {shorten(f'{{{unknown}}}')}.{hint} Legal: {shown}")
    if absent := sorted(required - used):
        raise ConfigError(f"{path}: the placeholder {{{absent[0]}}} is missing. Legal: {shown}")
