"""What is wrong with a run configuration, in words: the key, the value, what is legal, the nearest match."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from kgqa_core.config import RunConfig
from kgqa_core.errors import nearest, shorten

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
            legal = sorted(name for model in models for name in model.model_fields)
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
            names = dict.fromkeys(name for model in models for name in model.model_fields)
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
        field = next((model.model_fields[part] for model in models if part in model.model_fields), None)
        tagged = [
            model for model in models if any(part in leaves_of(f.annotation) for f in model.model_fields.values())
        ]
        if field is None and len(models) > 1 and tagged:
            models = tagged
        elif part != "[key]":
            shown.append(part)
            models = variants_of(field.annotation) if field else []
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


def variants_of(model: Any) -> list[type[BaseModel]]:
    """Return the section models that an annotation allows."""
    return [leaf for leaf in leaves_of(model) if isinstance(leaf, type) and issubclass(leaf, BaseModel)]


def leaves_of(annotation: Any) -> list[Any]:
    """Return the types and literals that an annotation is made of."""
    inner = get_args(annotation)
    return [leaf for part in inner for leaf in leaves_of(part)] if inner else [annotation]
