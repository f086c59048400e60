"""What is wrong with a run configuration, in words: the key, the value, what is legal, the nearest match."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from kgqa_core.config import RunConfig
from kgqa_core.config_base import CONF, Section
from kgqa_core.errors import ConfigError, nearest, shorten

MAX_PROBLEMS = 5
PLAINER = {"tuple_type": "must be a list", "path_type": "must be a path", "dict_type": "must be a mapping"}


def explain(problem: ValidationError, source: str, root: type[BaseModel] = RunConfig) -> str:
    """Return what is wrong with a configuration from ``source``, a line for each of the first few problems.

    ``root`` is the model that was read: a run configuration, or another file that follows the same rules.
    """
    errors = problem.errors(include_url=False)
    lines = [f"  {_explain_one(dict(error), root)}" for error in errors[:MAX_PROBLEMS]]
    if len(errors) > MAX_PROBLEMS:
        lines.append(f"  … and {len(errors) - MAX_PROBLEMS} more")
    return f"{source} is not usable:\n" + "\n".join(lines)


def _explain_one(error: dict[str, Any], root: type[BaseModel]) -> str:
    given, context = error["input"], error.get("ctx", {})
    location, models = _walk(error["loc"], root)
    key = ".".join(map(str, location))
    match error["type"]:
        case "extra_forbidden":
            _, models = _walk(error["loc"][:-1], root)
            legal = sorted(name for model in models for name in keys_of(model))
            hint = guess(location[-1], legal) or guess_elsewhere(location[-1], root)
            return f"unknown key {key!r} (value {shorten(given)}); legal keys: {', '.join(legal)}{hint}"
        case "missing":
            return f"missing key {key!r}"
        case "union_tag_not_found" | "union_tag_invalid":
            tag = context["discriminator"].strip("'")
            legal = [str(value) for model in models for value in get_args(model.model_fields[tag].annotation)]
            if error["type"] == "union_tag_not_found":
                return f"missing key '{key}.{tag}'; legal are {', '.join(legal)}"
            return (
                f"{key}.{tag} = {shorten(context['tag'])}: legal are {', '.join(legal)}{guess(context['tag'], legal)}"
            )
        case "literal_error":
            legal = re.findall(r"'([^']*)'", context["expected"])
            return f"{key} = {shorten(given)}: legal are {', '.join(legal)}{guess(given, legal)}"
        case "model_type" | "model_attributes_type":
            names = dict.fromkeys(name for model in models for name in keys_of(model))
            return f"{key} = {shorten(given)}: must be a section; its keys are {', '.join(names)}"
    said = PLAINER.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    return f"{key} = {shorten(given)}: {said}" if key else said


def _walk(location: Iterable[Any], root: type[BaseModel]) -> tuple[list[Any], list[type[BaseModel]]]:
    """Return a problem's key in the file, and the sections that may stand there.

    pydantic's location also names the variant of a section (by its tag) and whether a mapping's key is meant.
    """
    shown: list[Any] = []
    models: list[type[BaseModel]] = [root]
    for part in location:
        kind = next((found for model in models if (found := type_of(model, part)) is not None), None)
        tagged = [
            model for model in models if any(part in leaves_of(f.annotation) for f in model.model_fields.values())
        ]
        if kind is None and len(models) > 1 and tagged:
            models = tagged
        elif part != "[key]":
            shown.append(part)
            models = variants_of(kind) if kind is not None else models  # a place in a list or a mapping
    return shown, models


def guess(given: object, legal: Iterable[str]) -> str:
    """Return a hint at the legal value nearest to ``given``, empty where none is near."""
    near = nearest(str(given), legal)
    return f"; did you mean {near[0]!r}?" if near else ""


def guess_elsewhere(given: object, root: type[BaseModel]) -> str:
    """Return a hint at the setting of another section whose name is nearest to ``given``: settings move."""
    places: dict[str, str] = {}
    for section, field in root.model_fields.items():
        for model in variants_of(field.annotation):
            for name in model.model_fields:
                places.setdefault(name, f"{section}.{name}")
    near = nearest(str(given), places)
    return f"; did you mean {places[near[0]]!r}?" if near else ""


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return the legal keys of a model."""
    return model.legal_keys() if issubclass(model, Section) else list(model.model_fields)


def type_of(model: type[BaseModel], key: str) -> Any:
    """Return the annotation of a model's key; None where it has no such key."""
    if issubclass(model, Section):
        return model.type_of(key)
    return model.model_fields[key].annotation if key in model.model_fields else None


def variants_of(model: Any) -> list[type[BaseModel]]:
    """Return the section models that an annotation allows."""
    return [leaf for leaf in leaves_of(model) if isinstance(leaf, type) and issubclass(leaf, BaseModel)]


def leaves_of(annotation: Any) -> list[Any]:
    """Return the types and literals that an annotation is made of."""
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in leaves_of(part)] if inner else [annotation]


# ------ Reading a run configuration: YAML, overrides, machine paths, and errors that say what is legal.


LOCAL_FILE = "local.yaml"
LOCAL_KEYS = {"data": "KGQA_DATA", "home": "KGQA_HOME"}
DEFAULT_HOME = "~/.local/share/kgqa"
VARIABLE = re.compile(r"\$\{([^}]*)\}")


class _Loader(yaml.SafeLoader):
    """YAML as its users expect it: 1e-3 is a number, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key, which YAML would silently overwrite."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that is set over a run configuration's own."""

    key: str  # dotted: "explorer.epochs"
    value: Any  # as YAML gives it
    source: str  # where it was given, for errors
    folder: Path | None = None  # that its paths resolve against; None: the run configuration's own


def read_config(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run configuration.

    Args:
        path: the YAML file.
        overrides: ``section.key=value`` settings, values in YAML.

    Raises:
        ConfigError: a missing file, no YAML, an unknown key, a wrong type or a bad value; every problem is named with
            its key, the value, what is legal and the nearest match.
    """
    return configure(path, [parse_setting(override) for override in overrides])


def configure(path: Path, settings: Iterable[Setting], *, source: str | None = None) -> RunConfig:
    """Read a run configuration with ``settings`` over it, later ones over earlier ones.

    ``source`` says in errors what was read, by default ``path``. Raises as ``read_config``.
    """
    path = packaged(path)
    raw = read_yaml(path)
    raw.setdefault("name", path.stem)
    paths = machine_paths(path.parent)
    for setting in settings:
        _apply(raw, setting, paths)
    if isinstance(runtime := _section(raw, "runtime"), dict):
        runtime.setdefault("home", "${KGQA_HOME}")
    try:
        return RunConfig.model_validate(resolve_paths(raw, RunConfig, path.parent.resolve(), paths))
    except ValidationError as problem:
        raise ConfigError(explain(problem, source or str(path))) from None


def parse_setting(override: str, folder: Path | None = None) -> Setting:
    """Return the setting of a ``section.key=value`` text; raises ``ConfigError`` where it is none."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {shorten(override)} is not of the form section.key=value")
    try:
        return Setting(key.strip(), yaml.load(text, _Loader), f"--set {shorten(override)}", folder)
    except yaml.YAMLError as problem:
        raise ConfigError(f"--set {shorten(override)}: the value is no YAML: {problem}") from None


def machine_paths(folder: Path) -> dict[str, str]:
    """Return KGQA_DATA and KGQA_HOME, absolute; the home has a default, which is not the current folder.

    The environment comes first (relative paths: from the current folder), then ``local.yaml`` in ``folder`` (from
    there).
    """
    local = read_yaml(folder / LOCAL_FILE) if (folder / LOCAL_FILE).is_file() else {}
    found = {}
    for key, value in local.items():
        if key not in LOCAL_KEYS:
            raise ConfigError(
                f"{folder / LOCAL_FILE}: unknown key {shorten(key)} (value {shorten(value)}); "
                f"legal: {', '.join(LOCAL_KEYS)}{guess(key, LOCAL_KEYS)}"
            )
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{folder / LOCAL_FILE}: {key} = {shorten(value)} must be the path of a folder")
        found[LOCAL_KEYS[key]] = _absolute(value, folder)
    found.update({name: _absolute(os.environ[name], Path()) for name in LOCAL_KEYS.values() if os.environ.get(name)})
    return found if "KGQA_HOME" in found else {**found, "KGQA_HOME": str(home_folder())}


def home_folder() -> Path:
    """Return KGQA_HOME where no run configuration is at hand: that of the environment, else the default."""
    return Path(_absolute(os.environ.get("KGQA_HOME") or DEFAULT_HOME, Path()))


def packaged(path: Path) -> Path:
    """Return ``path``; where nothing is there and it is called conf/..., the project's own file of that name."""
    folder, *rest = path.parts or ("",)
    ours = CONF.joinpath(*rest)
    return ours if folder == "conf" and not path.exists() and ours.is_file() else path


def config_hash(config: RunConfig) -> str:
    """Return the SHA-256 of everything that shapes results (``runtime``, ``cluster`` and ``tracking`` do not)."""
    content = config.model_dump(mode="json", exclude={"runtime", "cluster", "tracking"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises ``ConfigError`` where there is none."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        beside = [file.name for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise ConfigError(f"no configuration file {shorten(str(path))}{hint}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise ConfigError(f"{path} is no readable YAML: {problem}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must be a mapping of sections, not {shorten(raw)}")
    return raw


def _apply(raw: dict[str, Any], setting: Setting, paths: Mapping[str, str]) -> None:
    *parents, last = setting.key.split(".")
    section: Any = raw
    model: Any = RunConfig
    for name in parents:
        section, model = _section(section, name), _kind_of(model, name)
        if not isinstance(section, dict):
            raise ConfigError(f"{setting.source}: {name!r} is a value, not a section")
    value = deepcopy(setting.value)  # a section that is set as a whole may be changed by a later setting
    if setting.folder is not None:
        value = resolve_paths(value, _kind_of(model, last), setting.folder.resolve(), paths, setting.key)
    section[last] = value


def _section(raw: dict[str, Any], name: str) -> Any:
    """Return a section, made where it is missing or empty (all its keys commented out)."""
    if raw.get(name) is None:
        raw[name] = {}
    return raw[name]


def resolve_paths(value: Any, model: Any, folder: Path, paths: Mapping[str, str], key: str = "") -> Any:
    """Fill in ``${...}`` and make the paths under keys of type Path absolute; ``key`` is where ``value`` stands."""
    if isinstance(value, dict):
        within = Path if model is Path else None
        return {
            name: resolve_paths(item, _kind_of(model, str(name)) or within, folder, paths, f"{key}.{name}")
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [resolve_paths(item, model, folder, paths, key) for item in value]
    if not isinstance(value, str) or model is not Path:
        return value
    where = f"{key.removeprefix('.')} = {shorten(value)}"
    filled = VARIABLE.sub(lambda match: _variable(match.group(1), where, paths), value)
    try:
        return folder / Path(filled).expanduser()
    except RuntimeError as problem:  # "~name" of nobody here
        raise ConfigError(f"{where}: {problem}") from None


def _variable(name: str, where: str, paths: Mapping[str, str]) -> str:
    legal = list(LOCAL_KEYS.values())
    if name not in legal:
        raise ConfigError(f"{where}: unknown variable {shorten(name)}; legal: {', '.join(legal)}{guess(name, legal)}")
    if name not in paths:
        raise ConfigError(
            f"{where} needs {name}, which is not set. Set it in the environment, or write {LOCAL_FILE} beside the "
            f"configuration (keys: {', '.join(LOCAL_KEYS)})."
        )
    return paths[name]


def _absolute(path: str, folder: Path) -> str:
    try:
        return str((folder / Path(path).expanduser()).absolute())
    except RuntimeError as problem:  # "~name" of nobody here
        raise ConfigError(
            f"{shorten(path)}: {problem}; set {' and '.join(LOCAL_KEYS.values())} to full paths"
        ) from None


def _kind_of(model: Any, key: str) -> Any:
    """Return the section model, or Path, of one key of ``model``: of the variant that has it last."""
    found = None
    for variant in variants_of(model):
        annotation = type_of(variant, key)
        if annotation is not None:
            found = Path if Path in leaves_of(annotation) else annotation
    return found
