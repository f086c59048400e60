"""Reading a run configuration: YAML, overrides, machine paths, and errors that say what is legal."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from kgqa_core.config import RunConfig
from kgqa_core.errors import ConfigError, nearest, shorten

LOCAL_FILE = "local.yaml"
LOCAL_KEYS = {"data": "KGQA_DATA", "home": "KGQA_HOME"}
DEFAULT_HOME = "~/.local/share/kgqa"
VARIABLE = re.compile(r"\$\{([A-Z_]+)\}")
MAX_PROBLEMS = 5


class _Loader(yaml.SafeLoader):
    """YAML as its users expect it: 1e-3 is a number, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key, which YAML would silently overwrite."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"line {node.start_mark.line + 1}: the key {shorten(key)} is given twice")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_config(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run configuration.

    Args:
        path: the YAML file.
        overrides: ``section.key=value`` settings, values in YAML.

    Raises:
        ConfigError: a missing file, no YAML, an unknown key, a wrong type or a bad value; every problem is named with
            its key, the value, what is legal and the nearest match.
    """
    raw = _read_yaml(path)
    raw.setdefault("name", path.stem)
    for override in overrides:
        _apply_override(raw, override)
    paths = machine_paths(path.parent)
    if isinstance(runtime := raw.setdefault("runtime", {}), dict):
        runtime.setdefault("home", "${KGQA_HOME}")
    try:
        return RunConfig.model_validate(_resolve(raw, RunConfig, path.parent.resolve(), paths))
    except ValidationError as problem:
        raise ConfigError(_explain(problem, path)) from None


def machine_paths(folder: Path) -> dict[str, str]:
    """Return KGQA_DATA and KGQA_HOME: from the environment, else ``local.yaml`` in ``folder``, else the default home."""
    local = _read_yaml(folder / LOCAL_FILE) if (folder / LOCAL_FILE).is_file() else {}
    for key in local:
        if key not in LOCAL_KEYS:
            raise ConfigError(f"{folder / LOCAL_FILE}: unknown key {shorten(key)}; legal: {', '.join(LOCAL_KEYS)}")
    found = {"KGQA_HOME": str(Path(DEFAULT_HOME).expanduser())}
    found.update({LOCAL_KEYS[key]: str(value) for key, value in local.items()})
    found.update({name: os.environ[name] for name in LOCAL_KEYS.values() if os.environ.get(name)})
    return found


def config_hash(config: RunConfig) -> str:
    """Return the SHA-256 of everything that shapes results (``runtime`` and ``tracking`` do not)."""
    content = config.model_dump(mode="json", exclude={"runtime", "tracking"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506  a SafeLoader
    except FileNotFoundError:
        siblings = sorted(str(file) for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; did you mean {nearest(str(path), siblings)[0]}?" if nearest(str(path), siblings) else ""
        raise ConfigError(f"no configuration file {shorten(str(path))}{hint}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise ConfigError(f"{path} is no readable YAML: {problem}") from None
    except ConfigError as problem:
        raise ConfigError(f"{path}, {problem}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must be a mapping of sections, not {shorten(raw)}")
    return raw


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {shorten(override)} is not of the form section.key=value")
    *parents, last = key.strip().split(".")
    section = raw
    for name in parents:
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            raise ConfigError(f"--set {shorten(override)}: {name!r} is a value, not a section")
    try:
        section[last] = yaml.load(text, _Loader)  # noqa: S506
    except yaml.YAMLError as problem:
        raise ConfigError(f"--set {shorten(override)}: the value is no YAML: {problem}") from None


def _resolve(value: Any, model: Any, folder: Path, paths: Mapping[str, str]) -> Any:
    """Fill in ``${...}`` and make the paths under keys of type Path absolute."""
    if isinstance(value, dict):
        kinds = _field_types(model)
        inner = {key: kinds.get(key, model if model is Path else None) for key in value}
        return {key: _resolve(item, inner[key], folder, paths) for key, item in value.items()}
    if not isinstance(value, str) or model is not Path:
        return value
    filled = VARIABLE.sub(lambda match: _variable(match.group(1), value, paths), value)
    return folder / Path(filled).expanduser()


def _variable(name: str, value: str, paths: Mapping[str, str]) -> str:
    if name not in paths:
        known = ", ".join(LOCAL_KEYS.values())
        raise ConfigError(
            f"{shorten(value)} needs {name}, which is not set. Legal: {known}. "
            f"Set it in the environment, or write {LOCAL_FILE} beside the configuration (keys: {', '.join(LOCAL_KEYS)})."
        )
    return paths[name]


def _field_types(model: Any) -> dict[str, Any]:
    """Return the section model, or Path, of each key of ``model`` (of all its variants where there are several)."""
    kinds: dict[str, Any] = {}
    for variant in _variants(model):
        for key, field in variant.model_fields.items():
            kinds[key] = Path if Path in _leaves(field.annotation) else field.annotation
    return kinds


def _variants(model: Any) -> list[type[BaseModel]]:
    return [leaf for leaf in _leaves(model) if isinstance(leaf, type) and issubclass(leaf, BaseModel)]


def _leaves(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in _leaves(part)] if inner else [annotation]


def _explain(problem: ValidationError, path: Path) -> str:
    errors = problem.errors(include_url=False)
    lines = [f"  {_explain_one(dict(error))}" for error in errors[:MAX_PROBLEMS]]
    if len(errors) > MAX_PROBLEMS:
        lines.append(f"  … and {len(errors) - MAX_PROBLEMS} more")
    return f"{path} is not usable:\n" + "\n".join(lines)


def _explain_one(error: dict[str, Any]) -> str:
    location = [part for part in error["loc"] if not (isinstance(part, str) and part in _TAGS)]
    key = ".".join(map(str, location))
    if error["type"] == "extra_forbidden":
        legal = sorted(_keys_at(location[:-1]))
        hint = nearest(str(location[-1]), legal)
        guess = f"; did you mean {hint[0]!r}?" if hint else ""
        return f"unknown key {key!r} (value {shorten(error['input'])}); legal keys here: {', '.join(legal)}{guess}"
    if error["type"] == "missing":
        return f"missing key {key!r}"
    if error["type"] in ("literal_error", "union_tag_invalid"):
        expected = error["ctx"].get("expected") or error["ctx"]["expected_tags"]
        hint = nearest(str(error["ctx"].get("tag", error["input"])), re.findall(r"'([^']*)'", expected))
        guess = f"; did you mean {hint[0]!r}?" if hint else ""
        given = error["ctx"].get("tag", error["input"])
        return f"{key} = {shorten(given)}: legal are {expected}{guess}"
    return f"{key} = {shorten(error['input'])}: {error['msg']}"


_TAGS = {"embedded", "files", "minilm", "local", "hash"}  # pydantic puts the variant's tag into the location


def _keys_at(location: Iterable[Any]) -> set[str]:
    model: Any = RunConfig
    for part in location:
        model = _field_annotation(model, part)
    return {key for variant in _variants(model) for key in variant.model_fields}


def _field_annotation(model: Any, key: Any) -> Any:
    for variant in _variants(model):
        if key in variant.model_fields:
            return variant.model_fields[key].annotation
    return None
