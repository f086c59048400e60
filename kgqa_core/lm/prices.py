"""What models cost: ``conf/prices.yaml``, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from kgqa_core.config_file import read_yaml
from kgqa_core.errors import ConfigError, nearest, shorten
from kgqa_core.lm.price import Price

KEYS = ("input", "output", "as_of", "source")


@dataclass(frozen=True, slots=True)
class Prices:
    """All prices of a file."""

    currency: str
    models: Mapping[str, Price]
    path: Path

    def of(self, model: str) -> Price | None:
        """Return the price of the model that a server calls ``model``; None: unknown, so its calls have no price."""
        return self.models.get(model)

    def why_none(self, model: str) -> str:
        """Say that ``model`` has no price, and what to do about it."""
        near = nearest(model, self.models)
        hint = f"; the nearest name there is {near[0]}" if near else ""
        return (
            f"{self.path} has no price for {shorten(model)}{hint}. Its calls are counted without money; add an entry "
            "for it if it has a price"
        )


def read_prices(path: Path) -> Prices:
    """Read a file of prices.

    Raises:
        ConfigError: an unknown or missing key, a price that is no number >= 0, a date that is none.
    """
    raw = read_yaml(path)
    _check_keys(raw, ("currency", "models"), ("currency", "models"), str(path))
    currency, models = raw["currency"], raw["models"]
    if not isinstance(currency, str) or not currency.strip():
        raise ConfigError(f"{path}: currency = {shorten(currency)} must be a text such as USD")
    if models is None:
        models = {}
    if not isinstance(models, dict):
        raise ConfigError(f"{path}: models = {shorten(models)} must be a mapping of model names to prices")
    return Prices(currency, {str(name): _read_price(entry, f"{path}: {name}") for name, entry in models.items()}, path)


def _read_price(entry: object, where: str) -> Price:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} = {shorten(entry)} must be a mapping with {', '.join(KEYS)}")
    _check_keys(entry, KEYS, KEYS[:3], where)
    for key in ("input", "output"):
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"{where}: {key} = {shorten(value)} must be a number >= 0 (per million tokens)")
    if type(entry["as_of"]) is not date:
        raise ConfigError(f"{where}: as_of = {shorten(entry['as_of'])} must be a date such as 2025-06-30")
    if not isinstance(entry.get("source", ""), str):
        raise ConfigError(f"{where}: source = {shorten(entry['source'])} must be a text")
    return Price(float(entry["input"]), float(entry["output"]), entry["as_of"], entry.get("source", ""))


def _check_keys(raw: dict[Any, Any], legal: tuple[str, ...], needed: tuple[str, ...], where: str) -> None:
    for key in raw:
        if key not in legal:
            near = nearest(str(key), legal)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where}: unknown key {shorten(key)}; legal: {', '.join(legal)}{hint}")
    for key in needed:
        if key not in raw:
            raise ConfigError(f"{where}: the key {key} is missing; needed: {', '.join(needed)}")
