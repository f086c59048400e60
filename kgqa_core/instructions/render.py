"""What prompts are made of: text files with placeholders, and paths, triples and evidence of a graph as text.

Labels and names may hold anything: what would break a line or a marker is written as ``\\u{HEX}`` and read back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kgqa_core.config_base import CONF
from kgqa_core.errors import ConfigError, did_you_mean, shorten
from kgqa_core.graph.csr import Ints
from kgqa_core.graph.kg import KnowledgeGraph, write_step
from kgqa_core.graph.search_graph import SearchGraph, ends_of
from kgqa_core.types import ReasoningPath

BREAKS = (
    r"^\s+|\s+\Z"  # blanks at the ends: parsing strips them
    r"|[\x00-\x1f\x7f\x85\u2028\u2029]+"  # line breaks and control characters
    r"|\\(?=u\{)"  # what looks like one of our escapes
)
_ONE_LINE = re.compile(BREAKS)
_ESCAPE = re.compile(r"\\u\{([0-9a-fA-F]{1,6})\}")


def escape(text: str, unsafe: re.Pattern[str] = _ONE_LINE) -> str:
    """Return ``text`` on one line and without blanks at its ends; most texts are unchanged."""
    return unsafe.sub(lambda found: escape_all(found[0]), text)


def escape_all(text: str) -> str:
    """Return every character of ``text`` escaped."""
    return "".join(f"\\u{{{ord(char):x}}}" for char in text)


def unescape(text: str) -> str:
    """Return what ``escape`` was given; what is no escape of a character stays as it is."""

    def character(found: re.Match[str]) -> str:
        code = int(found[1], 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else found[0]

    return _ESCAPE.sub(character, text)


# ------ Prompt files, one per instruction, checked when they are read.


DEFAULT_FOLDER = CONF / "prompts"
SUFFIX, SYSTEM_SUFFIX = ".txt", ".system.txt"

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VERSION = re.compile(r"# version[: ]+(\S+)[ \t]*(?:\r?\n|\Z)")


PLACEHOLDERS: Mapping[str, tuple[str, str]] = {
    "plan": ("question", ""),
    "score_relations": ("question relations", "topics path budget"),
    "score_entities": ("question candidates", "plan topics"),
    "reason": ("question groups|paths", ""),  # paths by the relations that they go along, or a line for each
    "reason_scored": ("question groups|paths", ""),  # of reason, where paths carry scores (EPERM)
    "choose": ("question candidates", ""),
    "choose_unlabelled": ("question candidates", ""),  # of choose, where candidates have no letters (EtD Table 14)
    "explain": ("question groups|paths", ""),
    "extract_clues": ("question", ""),
    "map_relations": ("question clues relations", "entity"),
    "map_entities": ("question clues entities", "entity relation"),
    "enough_information": ("question groups|paths", "topics"),
    "direct": ("question", ""),
    "chain_of_thought": ("question", ""),
}
"""Placeholders that a prompt file must have (one of those with | between), and others that it may have, by its name."""


@dataclass(frozen=True, slots=True)
class Template:
    """One instruction's prompt."""

    text: str  # the user's turn, with placeholders
    system: str  # the system's turn; empty: none
    version: str  # of the file's first line; empty where it has none
    sha256: str  # of the user's and the system's text, hexadecimal
    in_blocks: bool  # are paths shown as blocks, each with its first names, and not one by one?


Prompts = Mapping[str, Template]
"""All prompts of a run, by the name of the prompt file."""


def read_prompts(folder: Path | None = None) -> Prompts:
    """Read all prompts: those of ``folder``, and the project's own where it has none.

    Raises ConfigError for what cannot be read, a file of no instruction, and a placeholder that is wrong or missing.
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
        required, optional = (names.split() for names in PLACEHOLDERS[name])
        legal = frozenset("|".join([*required, *optional]).split("|"))
        text, version = _content(source, required, legal)
        turn = _content(system, (), legal)[0] if system is not None else ""
        digest = hashlib.sha256(f"{len(text)}:{text}{turn}".encode()).hexdigest()
        templates[name] = Template(text, turn, version, digest, in_blocks="{groups}" in text)
    return templates


def _files(folder: Path) -> dict[str, Path]:
    try:
        found = {path.name: path for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIX)}
    except OSError as error:
        raise ConfigError(f"prompts: the folder {folder} cannot be read ({error.strerror or error})") from None
    legal = [name + suffix for name in PLACEHOLDERS for suffix in (SUFFIX, SYSTEM_SUFFIX)]
    for name, path in found.items():
        if name not in legal:
            hint = did_you_mean(name, legal)
            raise ConfigError(f"{path} belongs to no instruction{hint}. Legal: {', '.join(legal[::2])}")
    return found


def _content(path: Path, required: Sequence[str], legal: frozenset[str]) -> tuple[str, str]:
    """Return (text, version) of a checked file; the end of the last line is the file's, not the prompt's."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text ({error})") from None
    found = _VERSION.match(text)
    body = (text[found.end() :] if found else text).replace("\r\n", "\n").removesuffix("\n")
    used = set(PLACEHOLDER.findall(body))
    shown, unknown = ", ".join(f"{{{name}}}" for name in sorted(legal)), sorted(used - legal)
    if wrong := unknown or [names for names in required if used.isdisjoint(names.split("|"))]:
        hint, problem = (did_you_mean(wrong[0], sorted(legal)), "unknown") if unknown else ("", "missing")
        raise ConfigError(f"{path}: {problem} placeholder {shorten(f'{{{wrong[0]}}}')}{hint}. Legal: {shown}")
    return body, found[1] if found else ""


# ------ Lists, paths and triples as text.


ARROW = " → "
NOTHING = "(none)"  # stands where a list is empty
NAMES_SHOWN = 10  # of one block of names


@dataclass(frozen=True, slots=True)
class ScoredPath:
    """A reasoning path as a prompt shows it; ``show_path`` makes one."""

    text: str
    score: float = 1.0  # its weight: EPERM's path score, else its plan's probability; the lowest is dropped first
    steps: tuple[str, ...] = field(default=(), compare=False)  # that the text shows; for players of a model
    end: str = field(default="", compare=False)  # name of the entity that it ends at
    start: str = field(default="", compare=False)  # as the text begins
    stations: tuple[str, ...] = field(default=(), compare=False)  # names of what lies between


Names = KnowledgeGraph | SearchGraph  # both know what entities and relations are called


def render_lines(items: Iterable[str]) -> str:
    """Return one item per line, or a word for none."""
    return "\n".join(items) or NOTHING


def group_paths(paths: Sequence[ScoredPath], *, stations: bool = False) -> dict[str, dict[str, float]]:
    """Return name -> sum of its paths' scores, for each way: a start and the relations from there, with a colon.

    What the same relations lead to from several starts stands under all of these together, and first: a question with
    several topics mostly means that. What stands between has no way of its own, unless ``stations`` may be meant, and
    it is no end.
    """
    met: dict[tuple[tuple[str, ...], str], tuple[dict[str, None], list[float]]] = {}
    last = {path.end for path in paths}
    for path in paths:
        between = [(length, name) for length, name in enumerate(path.stations, 1) if stations and name not in last]
        for length, name in (*between, (len(path.steps), path.end)):
            starts, scores = met.setdefault((path.steps[:length], name), ({}, []))
            starts[path.start] = None
            scores.append(path.score)
    groups: dict[str, dict[str, float]] = {}
    for (steps, name), (starts, scores) in sorted(met.items(), key=lambda item: -len(item[1][0])):
        groups.setdefault(ARROW.join([" and ".join(starts), *map(escape, steps)]) + ":", {})[name] = sum(scores)
    return groups


def render_paths(paths: Sequence[ScoredPath], *, scored: bool = False, stations: bool = False) -> dict[str, str]:
    """Return what stands for ``{paths}`` and ``{groups}`` in a prompt, with scores where ``scored`` (EPERM A.4).

    paths: one per line. groups (ours): a block for each way, with a line for each of its first names, and how many more
    there are; all of them where each has a score. So a prompt is short, with the ends of a plan together.
    """
    form = "{} (score {:.2f})" if scored else "{}"
    lines = [form.format(path.text, path.score) for path in paths]
    blocks = []
    for way, ends in group_paths(paths, stations=stations).items():
        names = [form.format(escape(name), score) for name, score in ends.items()]
        more = [] if scored or len(names) <= NAMES_SHOWN else [f"and {len(names) - NAMES_SHOWN} more"]
        blocks.append("\n".join([way, *(names[:NAMES_SHOWN] + more if more else names)]))
    return {"paths": "\n".join(lines) or NOTHING, "groups": "\n\n".join(blocks) or NOTHING}


def show_path(names: Names, path: ReasoningPath, score: float = 1.0) -> ScoredPath:
    """Return a path in walking order: ``Dad → written_by → William Wharton → ^written_by → Birdy``."""
    parts, steps, here = list[str](), list[str](), list[str]()
    for step in path:
        start, end = ends_of(step)
        steps.append(write_step(names.relation_names[step.relation], step.reverse))
        parts += [] if parts else [escape(names.name_of(start))]
        here.append(names.name_of(end))
        parts += [escape(steps[-1]), escape(here[-1])]
    *between, last = here or [""]
    return ScoredPath(ARROW.join(parts), score, tuple(steps), last, parts[0] if parts else "", tuple(between))


def render_triples(names: Names, path: ReasoningPath) -> str:
    """Return a path as its stored triples, in walking order (EtD's evidence chains)."""
    return ", ".join(
        f"({escape(names.name_of(step.head))}, {escape(names.relation_names[step.relation])}, "
        f"{escape(names.name_of(step.tail))})"
        for step in path
    )


def neighbour_triples(search: SearchGraph, entity: int, *, limit: int) -> tuple[str, ...]:
    """Return up to ``limit`` triples around an entity, one of each relation and direction before a second of any."""
    graph = search.graph
    first, last = int(graph.group_ptr[entity]), int(graph.group_ptr[entity + 1])
    groups = [
        (int(graph.group_relation[group]), graph.edge_tail[graph.edge_ptr[group] : graph.edge_ptr[group + 1]][:limit])
        for group in range(first, min(last, first + limit))
    ]
    found = [
        render_triples(search, (search.graph.step(entity, relation, int(tails[turn])),))
        for turn in range(limit)
        for relation, tails in groups
        if turn < len(tails)
    ]
    return tuple(found[:limit])


def say_where(search: SearchGraph, frontier: Ints, start: int, path: Iterable[str]) -> str:
    """Return the name of the entity where a search stands; of several the path to them."""
    is_one = len(frontier) == 1
    return search.name_of(int(frontier[0])) if is_one else ARROW.join([search.name_of(start), *path])
