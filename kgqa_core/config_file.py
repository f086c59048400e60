"""Reading a run configuration: YAML, overrides, machine paths, and errors that say what is legal."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from kgqa_core.addresses import VARIABLES, Places, TextOf, address_path
from kgqa_core.config import RunConfig
from kgqa_core.config_base import CONF, FilePath, Section
from kgqa_core.errors import ConfigError, did_you_mean, nearest_beside, shorten, with_nearest

LOCAL_FILE = "local.yaml"
DEFAULT_HOME = "~/.local/share/kgqa"
MAX_PROBLEMS = 2
MAX_DEPTH = 30  # of values in a configuration
MAX_BYTES = 2**18  # of a configuration file
PLAINER = {"tuple_type": "must be a list", "path_type": "must be a path", "dict_type": "must be a mapping"}
# A tag such as !!bool before what is no bool raises one of the first three, so does a date such as 2026-13-45.
NO_YAML = (ValueError, LookupError, AttributeError, yaml.YAMLError)
S = TypeVar("S", bound=Section)


class LocalSection(Section):
    """Where things are on one machine: ``local.yaml`` beside the run files."""

    data: FilePath = Path()  # KGQA_DATA
    home: FilePath = Path()  # KGQA_HOME


class _Loader(yaml.SafeLoader):
    """YAML as its users expect it: 1e-3 is a number, a key given twice is an error, and nothing grows as it is read."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases, of which a few lines make a billion values, and what is nested too deep."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name): write its value out", problem_mark=mark)
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key, which YAML would silently overwrite."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that is set over a run configuration's own."""

    key: str  # dotted: "explorer.epochs"
    value: Any  # as YAML gives it
    source: str  # where it was given, for errors
    folder: Path | None = None  # that its paths start in; None: the run configuration's own


def parse_setting(override: str, folder: Path | None = None) -> Setting:
    """Return the setting of a ``section.key=value`` text; raises ``ConfigError`` where it is none."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {shorten(override)} is not of the form section.key=value")
    try:
        return Setting(key.strip(), yaml.load(text, _Loader), f"--set {shorten(override)}", folder)
    except NO_YAML as problem:
        raise ConfigError(
            f"--set {shorten(override)}: the value is no YAML: {' '.join(str(problem).split())}"
        ) from None


def read_config(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run configuration, with ``section.key=value`` settings (values in YAML) over it.

    Raises ConfigError for a missing file, no YAML, an unknown key, a wrong type or a bad value; every problem is named
    with its key, the value, what is legal and the nearest match.
    """
    return configure(path, [parse_setting(override) for override in overrides])


def configure(path: Path, settings: Iterable[Setting], *, source: str | None = None) -> RunConfig:
    """Read ``path`` with ``settings`` over it, as ``read_config`` does; ``source`` names it in errors."""
    path = packaged(path)
    raw = read_yaml(path)
    raw.setdefault("name", path.stem)
    for setting in settings:
        _apply(raw, setting)
    raw["runtime"] = runtime = {} if raw.get("runtime") is None else raw["runtime"]
    if isinstance(runtime, dict):
        runtime.setdefault("home", "${KGQA_HOME}")
    return validated(RunConfig, raw, path, machine_paths(path.parent), source=source)


def validated(
    model: type[S], raw: Mapping[str, Any], path: Path, variables: Mapping[str, str], *, source: str | None = None
) -> S:
    """Return what was read from the file ``path`` as a section, its paths absolute; ConfigError says what is wrong."""
    try:
        return model.model_validate(raw, context=Places(path.parent.resolve(), variables))
    except ValidationError as problem:
        raise ConfigError(explain(problem, source or str(path), model)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises ``ConfigError`` where there is none."""
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= MAX_BYTES):
            raise ConfigError(f"{path} is no readable YAML: a folder, a device, or more than {MAX_BYTES // 1024} KiB")
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {shorten(str(path))}{nearest_beside(path)}") from None
    except (OSError, *NO_YAML) as problem:  # ValueError: a null in a path, too
        raise ConfigError(f"{path} is no readable YAML: {' '.join(str(problem).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must be a mapping of sections, not {shorten(raw)}")
    return raw


def packaged(path: Path) -> Path:
    """Return ``path``; where nothing is there and it is called conf/..., the project's own file of that name."""
    folder, *rest = path.parts or ("",)
    ours = CONF.joinpath(*rest)
    return ours if folder == "conf" and not path.exists() and ours.is_file() else path


def machine_paths(folder: Path) -> dict[str, str]:
    """Return KGQA_DATA and KGQA_HOME, absolute: the environment's, else those of ``local.yaml``, else ours.

    Relative paths start in the current folder and in ``folder``; the default home is in neither.
    """
    found: dict[str, str] = {}
    if (folder / LOCAL_FILE).is_file():
        local = validated(LocalSection, read_yaml(folder / LOCAL_FILE), folder / LOCAL_FILE, {})
        found = {f"KGQA_{name.upper()}": str(getattr(local, name)) for name in local.model_fields_set}
    found |= {name: str(_from_here(path)) for name in VARIABLES if (path := os.environ.get(name))}
    return found if "KGQA_HOME" in found else {**found, "KGQA_HOME": str(home_folder())}


def home_here() -> Path:
    """Return the KGQA_HOME of a command without a run configuration: as those in ``conf/`` of this folder have it."""
    return Path(machine_paths(Path("conf"))["KGQA_HOME"])


def home_folder() -> Path:
    """Return KGQA_HOME of the environment, else the default: for code that no file of this folder may lead astray."""
    return _from_here(os.environ.get("KGQA_HOME") or DEFAULT_HOME)


def _from_here(path: str) -> Path:
    try:
        address_path(path, legal=False)
        return Path(path).expanduser().absolute()
    except ValueError as problem:
        raise ConfigError(f"{' and '.join(VARIABLES)}: {shorten(path)} {problem}") from None
    except RuntimeError as problem:  # "~name" of nobody here
        raise ConfigError(f"{shorten(path)}: {problem}; set {' and '.join(VARIABLES)} to full paths") from None


def config_hash(config: RunConfig) -> str:
    """Return the SHA-256 of everything that shapes results (runtime, cluster, tracking and gate do not)."""
    content = config.model_dump(mode="json", exclude={"runtime", "cluster", "tracking", "gate"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _apply(raw: dict[str, Any], setting: Setting) -> None:
    *parents, last = setting.key.split(".")
    section: Any = raw
    for name in parents:
        section[name] = section = {} if section.get(name) is None else section[name]  # empty: all its keys are comments
        if not isinstance(section, dict):
            raise ConfigError(f"{setting.source}: {name!r} is a value, not a section")
    section[last] = _copy(setting.value, setting.folder)


def _copy(value: Any, folder: Path | None) -> Any:
    """Return a setting's value, which later settings may change, its texts with the folder that they are from."""
    if isinstance(value, dict):
        return {name: _copy(item, folder) for name, item in value.items()}
    if isinstance(value, list):
        return [_copy(item, folder) for item in value]
    if folder is None or not isinstance(value, str):
        return value
    text = TextOf(value)
    text.folder = folder.resolve()
    return text


def explain(problem: ValidationError, source: str, root: type[Section] = RunConfig) -> str:
    """Return what is wrong with a file, a line for each of the first two; ``root`` is the model it was read as."""
    errors = problem.errors(include_url=False)
    lines = [f"  {_explain_one(dict(error), root)}" for error in errors[:MAX_PROBLEMS]]
    more = f"; … and {len(errors) - MAX_PROBLEMS} more" if len(errors) > MAX_PROBLEMS else ""
    return f"{source} is not usable:\n" + "\n".join(lines) + more


def _explain_one(error: dict[str, Any], root: type[Section]) -> str:
    given, context = error["input"], error.get("ctx", {})
    location, models = _walk(error["loc"], root)
    key = ".".join(map(str, location))
    match error["type"]:
        case "extra_forbidden":
            _, models = _walk(error["loc"][:-1], root)
            legal = sorted(name for model in models for name in model.legal_keys())
            hint = did_you_mean(location[-1], legal)
            if not hint:  # settings move: a name that is all but equal, in any section
                sections = [
                    (name, one) for name, field in root.model_fields.items() for one in variants_of(field.annotation)
                ]
                places = {key: f"{name}.{key}" for name, one in reversed(sections) for key in one.model_fields}
                hint = did_you_mean(location[-1], places, lambda name: repr(places[name]), cutoff=0.8)
                hint = "" if repr(key) in hint else hint  # legal in another kind of that section
            return f"unknown key {shorten(key)} (value {shorten(given)}); legal keys: {', '.join(legal)}{hint}"
        case "missing":
            return f"missing key {key!r}"
        case "union_tag_not_found" | "union_tag_invalid":
            tag = context["discriminator"].strip("'")
            legal = [str(value) for model in models for value in get_args(model.model_fields[tag].annotation)]
            if error["type"] == "union_tag_not_found":
                return f"missing key '{key}.{tag}'; legal are {', '.join(legal)}"
            return f"{key}.{tag} = {shorten(context['tag'])}: legal are {with_nearest(context['tag'], legal)}"
        case "literal_error":
            legal = re.findall(r"'([^']*)'", context["expected"])
            return f"{key} = {shorten(given)}: legal are {with_nearest(given, legal)}"
        case "model_type" | "model_attributes_type":
            names = dict.fromkeys(name for model in models for name in model.legal_keys())
            return f"{key} = {shorten(given)}: must be a section; its keys are {', '.join(names)}"
    said = PLAINER.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    return f"{key} = {shorten(given)}: {said}" if key else said


def _walk(location: Iterable[Any], root: type[Section]) -> tuple[list[Any], list[type[Section]]]:
    """Return a problem's key in the file, and the sections that may stand there.

    pydantic's location also names the variant of a section (by its tag), how a value of several types was read, and
    whether a mapping's key is meant.
    """
    shown: list[Any] = []
    models = [root]
    for part in location:
        kind = next((found for model in models if (found := model.type_of(str(part))) is not None), None)
        tagged = [one for one in models if any(part in _leaves(each.annotation) for each in one.model_fields.values())]
        if kind is None and len(models) > 1 and tagged:
            models = tagged
        elif part != "[key]" and not str(part).startswith(("literal[", "function-before[")):
            shown.append(part)
            models = variants_of(kind) if kind is not None else models  # a place in a list or a mapping
    return shown, models


def variants_of(annotation: Any) -> list[type[Section]]:
    """Return the sections that an annotation allows."""
    return [leaf for leaf in _leaves(annotation) if isinstance(leaf, type) and issubclass(leaf, Section)]


def _leaves(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in _leaves(part)] if inner else [annotation]
