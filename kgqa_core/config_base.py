"""What all sections of a run configuration are made of: their base class and the types of their values."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from kgqa_core.errors import ConfigError, nearest, shorten

_PACKAGED, _BESIDE = Path(__file__).parent / "conf", Path(__file__).parents[1] / "conf"
CONF = _PACKAGED if _PACKAGED.is_dir() else _BESIDE
"""The project's configurations, prompts and prices: inside the installed package, or beside it in a clone."""

SIZE = r"(\d+(?:\.\d+)?)\s?([KMGT])(i?)B"


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    if not values or len(set(values)) < len(values):
        raise ValueError("must be one number or more, each given once")
    return values


def _usable_as_name(name: str) -> str:
    if not re.fullmatch(r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,99}", name):
        raise ValueError("must be 1 to 100 characters, no slash among them and no dot first: files are named by it")
    return name


def _size(text: str) -> str:
    if not re.fullmatch(SIZE, text):
        raise ValueError("must be a number with a unit, such as 2GB or 512MiB")
    return text


def size_in_bytes(size: str) -> int:
    """Return a size such as 2GB or 512MiB in bytes."""
    number, unit, binary = re.fullmatch(SIZE, size).groups()  # type: ignore[union-attr]  # checked when it was read
    return int(float(number) * (1024 if binary else 1000) ** (" KMGT".index(unit)))


def _edge_budget(given: Any) -> Any:
    if given != "all" and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise ValueError("must be a number of edges, 1 or more, or: all")
    return given


# A table maps the names of one kind of thing to what defines it, as "module:ATTRIBUTE". It stands beside the section
# that names the thing, and reading it imports none of the modules: a new thing is a file and a line.


def name_in(table: Mapping[str, str]) -> Callable[[str], str]:
    """Return a validator that lets only the names of a table pass."""

    def check(name: str) -> str:
        if name not in table:
            raise ValueError(f"legal are {with_nearest(name, table)}")
        return name

    return check


def open_entry(table: Mapping[str, str], name: str, *, what: str) -> Any:
    """Return what a table's entry names; ConfigError, with the nearest match, where the table lacks the name."""
    if name not in table:
        raise ConfigError(f"no {what} is called {shorten(name)}; legal are {with_nearest(name, table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def with_nearest(name: str, legal: Iterable[str]) -> str:
    """Return the legal names for an error, and the one that is nearest to what was given."""
    legal = list(legal)
    near = nearest(name, legal)
    return f"{', '.join(legal)}{f'; did you mean {near[0]!r}?' if near else ''}"


# strict=False where JSON and YAML have no such type: paths are text there, and tuples are lists.
FilePath = Annotated[Path, Field(strict=False)]
Hops = Annotated[tuple[Annotated[int, Field(ge=1, le=9)], ...], Field(strict=False), AfterValidator(_distinct)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False), AfterValidator(_distinct)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, AfterValidator(_usable_as_name)]
Size = Annotated[str, AfterValidator(_size)]
EdgeBudget = Annotated[int | Literal["all"], BeforeValidator(_edge_budget)]


class Section(BaseModel):
    """Base of all sections: unknown keys and coerced types are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def legal_keys(cls) -> list[str]:
        """Return the legal keys; a section whose keys a table says adds them."""
        return list(cls.model_fields)

    @classmethod
    def type_of(cls, key: str) -> Any:
        """Return the annotation of a key; None where there is no such key."""
        return cls.model_fields[key].annotation if key in cls.model_fields else None


class ModelSection(Section):
    """Base of the sections about one kind of language model."""

    kind: str
