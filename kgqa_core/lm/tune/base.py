"""The model that is tuned: opened, given new tokens and LoRA weights, and saved so that others load it as it is."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ConfigError, shorten
from kgqa_core.lm.local import Dtype, load
from kgqa_core.lm.tune.types import TuneSettings

ABOUT = "kgqa.json"  # beside an adapter: {"base_sha256": ..., "path_tokens": [...]}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tunable:
    """A model in training, with what it is made of."""

    model: Any  # a transformers model, in a peft model where LoRA is tuned
    tokenizer: Any
    base_sha256: str
    name: str  # the base's, for the adapter
    max_length: int  # tokens of an example
    new_tokens: tuple[str, ...]  # those that the base's tokenizer did not have

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}


def precision_of(settings: TuneSettings, device: str) -> torch.dtype:
    """Return the type of matrix products."""
    if settings.precision == "auto":
        return torch.bfloat16 if device.startswith("cuda") and torch.cuda.is_bf16_supported() else torch.float32
    return torch.float32 if settings.precision == "float32" else torch.bfloat16


def open_tunable(base: Path, settings: TuneSettings, *, base_sha256: str, device: str = "cpu") -> Tunable:
    """Open a local folder for tuning; with LoRA the base's own weights are frozen and kept in the type of products.

    Weights that are trained, and their optimiser's state, are float32.

    Raises:
        InputError: the folder is no model that can be used.
        ConfigError: the settings do not fit it.
    """
    torch.manual_seed(settings.seed)
    precision = precision_of(settings, device)
    dtype: Dtype = "bfloat16" if settings.tuning == "lora" and precision == torch.bfloat16 else "float32"
    loaded = load(base, dtype=dtype, device=device)
    model, tokenizer = loaded.model, loaded.tokenizer
    new = add_tokens(model, tokenizer, settings.path_tokens)
    if settings.tuning == "lora":
        model = with_lora(model, tokenizer, settings, precision)
        model.peft_config["default"].base_model_name_or_path = f"{base.name}-{base_sha256[:12]}"
    limit = min(settings.max_length, loaded.context)
    return Tunable(model, tokenizer, base_sha256, base.name, limit, new)


def add_tokens(model: Any, tokenizer: Any, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Make each text one token and return those that were none; a new row is the mean of its text's old tokens."""
    from tokenizers import AddedToken

    spelled = {text: tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts}
    new = tuple(text for text in texts if len(spelled[text]) != 1)
    if not new:
        return ()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in new])
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tables = {id(table): table for table in (model.get_input_embeddings(), model.get_output_embeddings()) if table}
    with torch.no_grad():
        for text in new:
            for table in tables.values():
                table.weight[tokenizer.convert_tokens_to_ids(text)] = table.weight[spelled[text]].mean(dim=0)
    return new


def with_lora(model: Any, tokenizer: Any, settings: TuneSettings, precision: torch.dtype) -> Any:
    """Return the model frozen, with float32 LoRA weights that do nothing yet.

    Raises:
        ConfigError: it has none of the targets.
    """
    from peft import LoraConfig, get_peft_model

    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type] # a float is as good
        lora_dropout=settings.dropout,
        target_modules=targets,
        trainable_token_indices=_trained_rows(model, tokenizer, settings.path_tokens),
    )
    try:
        with warnings.catch_warnings():  # peft still asks under a name that transformers gave up
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            adapted = get_peft_model(model, config)
    except ValueError as problem:
        raise ConfigError(f"no LoRA weights for targets {targets!r}: {shorten(str(problem))}") from problem
    if precision != torch.float32:  # autocast casts; peft's own cast to float32 before it would be for nothing
        module: Any
        for module in adapted.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                module.cast_input_dtype_enabled = False
    return adapted


def _trained_rows(model: Any, tokenizer: Any, texts: tuple[str, ...]) -> dict[str, list[int]] | None:
    """Return the rows of the tables that are trained: of the head too, where it is not the same table."""
    if not texts:
        return None
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    tied = tables[1] is None or tables[0].weight is tables[1].weight
    names = {id(module): name.rpartition(".")[2] for name, module in model.named_modules()}
    rows = sorted(int(tokenizer.convert_tokens_to_ids(text)) for text in set(texts))
    return {names[id(table)]: list(rows) for table in (tables[:1] if tied else tables)}


def save_tuned(tunable: Tunable, out: Path, settings: TuneSettings) -> Path:
    """Write ``out/adapter`` (peft) or ``out/model`` (transformers), whole or not there, and return its place."""
    folder = out / ("adapter" if settings.tuning == "lora" else "model")
    out.mkdir(parents=True, exist_ok=True)
    with written_whole(folder) as partial:
        partial.mkdir()
        if settings.tuning == "lora":
            _save_adapter(tunable, partial, settings)
        else:
            tunable.model.config.use_cache = True
            tunable.model.save_pretrained(partial)
            tunable.tokenizer.save_pretrained(partial)
    return folder


def _save_adapter(tunable: Tunable, folder: Path, settings: TuneSettings) -> None:
    """Write the adapter; the tokenizer too where tokens are new, by which peft's Auto classes resize the base."""
    tunable.model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # a form with nothing filled in
    config = folder / "adapter_config.json"
    told = json.loads(config.read_text(encoding="utf-8"))
    if isinstance(told["target_modules"], list):
        told["target_modules"].sort()  # a set, in the order of the day
    config.write_text(json.dumps(told, indent=2, sort_keys=True), encoding="utf-8")
    about = {"base_sha256": tunable.base_sha256, "path_tokens": list(settings.path_tokens)}
    (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
    if tunable.new_tokens:
        tunable.tokenizer.save_pretrained(folder)


def copy_weights(target: dict[str, nn.Parameter], source: dict[str, Tensor]) -> None:
    """Set the parameters to what was saved under their names."""
    if set(target) != set(source):
        raise KeyError(f"{len(set(target) ^ set(source))} names of weights differ")
    with torch.no_grad():
        for name, parameter in target.items():
            parameter.copy_(source[name])
