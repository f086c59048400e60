"""A local model: as a ``LanguageModel``, and open for tuning, with what is trained of it."""

from __future__ import annotations

import ctypes
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kgqa_core.artifacts import hash_file, written_whole
from kgqa_core.errors import ConfigError, InputError, shorten
from kgqa_core.lm import folders
from kgqa_core.lm.constraints import start_state
from kgqa_core.lm.folders import ABOUT, Dtype, Ending, HashFile, Loaded, Quantise, load, load_tokenizer
from kgqa_core.lm.generate import Batcher, generate_batch, score_batch
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt

if TYPE_CHECKING:  # whoever only asks a model does not load what trains one
    from kgqa_core.config_lm import ReasonerSection
    from kgqa_core.lm.tune_data import TuneJob

SMALL = 10**8  # parameters; below, a batch of 64 does not fill even one core
VERSION = 5  # of how texts are made from weights; part of a model's name
BATCH_SIZE = 64
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
CPU_CELLS = 16_384  # prompts x longest of a batch, whose short ones are padded to it; they write together


class LocalModel:
    """A causal language model in memory. Implements ``LanguageModel``."""

    def __init__(
        self, loaded: Loaded, name: str, *, batch_size: int | None = None, activate: Callable[[], None] = lambda: None
    ) -> None:
        """Take what ``load`` gave; ``batch_size`` as of ``open_adapters``.

        ``activate`` is called before each batch: it puts this model's adapter on a base that several share.
        """
        self.name, self.context, self._activate = name, loaded.context, activate
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        told = getattr(loaded.model.generation_config, "eos_token_id", None) or []
        told, known = [told] if isinstance(told, int) else told, range(self.model.get_input_embeddings().num_embeddings)
        # Tokens that end an answer: the tokenizer's end, which tuning teaches, and those that a chat may end with.
        self.ends: list[int] = list(dict.fromkeys([loaded.tokenizer.eos_token_id, *filter(known.__contains__, told)]))
        is_small = sum(weight.numel() for weight in loaded.model.parameters()) < SMALL
        size = batch_size or (4 * BATCH_SIZE if is_small else BATCH_SIZE)
        cells = None if is_small or loaded.model.device.type != "cpu" else CPU_CELLS
        self._batcher, self._option_batcher = Batcher(size, cells), Batcher(size, cells)

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it, chat template included."""
        return [len(tokens) for tokens in folders.encode_prompts(self.tokenizer, prompts)]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, best first; samples in order of drawing.

        The texts of a beam are distinct. Where a constraint allows fewer, the rest are empty and unfinished; beams at
        least as many as the allowed texts (up to ``constraints.LISTED``) find them all, in order of their score.
        A prompt that leaves no room for ``max_new_tokens`` in the context is ``too_long``. ``log_prob`` is the model's
        own: neither constraint nor temperature changes it, and it equals ``score`` of a finished text.
        Raises KgqaError where memory does not hold a single prompt.
        """
        rows = folders.encode_prompts(self.tokenizer, prompts)
        ending = Ending(self.tokenizer, frozenset(self.ends), decoding.stop)

        def run(batch: list[int]) -> list[list[Generation]]:
            starts = [start_state(self.tokenizer, prompts[number].constraint, self.ends) for number in batch]
            tokens = [rows[number] for number in batch]
            self._activate()
            return generate_batch(self.model, tokens, decoding, ending=ending, starts=starts)

        results = [[Generation("", problem="too_long")] * decoding.num_returns for _ in prompts]
        fitting = [number for number, row in enumerate(rows) if len(row) + decoding.max_new_tokens <= self.context]
        lengths = [len(rows[number]) for number in fitting]  # most texts end long before their limit
        width = decoding.num_returns if decoding.method == "sample" else decoding.num_beams
        for number, texts in zip(fitting, self._batcher.map(fitting, lengths, run, width=width), strict=True):
            results[number] = texts
        return results

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options as whole answers: summed over tokens, end included.

        The end is whichever the model finds most probable. An option that does not fit the context with its prompt gets
        minus infinity. Raises as ``generate``.
        """
        rows = folders.encode_prompts(self.tokenizer, prompts)
        flat = iter(folders.encode_answers(self.tokenizer, [text for own in options for text in own]))
        answers = [[[*next(flat), self.ends[0]] for _ in own] for own in options]
        fitting = [
            [place for place, answer in enumerate(own) if len(row) + len(answer) <= self.context]
            for row, own in zip(rows, answers, strict=True)
        ]
        asked = [number for number, places in enumerate(fitting) if places]

        def run(batch: list[int]) -> list[list[float]]:
            own = [[answers[number][place] for place in fitting[number]] for number in batch]
            self._activate()
            read = [rows[number] for number in batch]
            return score_batch(self.model, read, own, self._option_batcher, ends=self.ends)

        lengths = [len(rows[number]) + max(map(len, answers[number])) for number in asked]
        scores = [[float("-inf")] * len(own) for own in options]
        for number, found in zip(asked, self._batcher.map(asked, lengths, run), strict=True):
            for place, score in zip(fitting[number], found, strict=True):
                scores[number][place] = score
        return scores


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the tensors that come next, up to 2 GiB; other C libraries do as they do.

    By its defaults large blocks go back to the kernel, which clears them when they are asked for again. That took a
    seventh of the CPU time of weighing options, and a third with the settings that Dask gives its workers.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def open_local(folder: Path, *, adapter: Path | None = None, **how: Any) -> LocalModel:
    """Open a transformers folder as a language model, as ``open_adapters`` does."""
    return open_adapters(folder, [adapter], **how)[0]


def open_adapters(
    folder: Path,
    adapters: Sequence[Path | None],
    *,
    dtype: Dtype = "auto",
    quantise: Quantise = "none",
    device: str = "cpu",
    batch_size: int | None = None,
    hash_file: HashFile = hash_file,
) -> list[LocalModel]:
    """Open a folder as a language model per adapter (None: without any), all on one base in memory.

    A single adapter is added into float32 weights. Of several each is switched on for its own batches; one that cannot
    be, because it enlarges the vocabulary or is no LoRA, gets a base of its own. Arguments and errors beside these are
    those of ``load``. ``batch_size`` texts (beams and samples count) grow at a time; None: 64, and 256 of a small one.
    """
    keep_freed_memory()
    folders.read_config(folder)
    base = folders.hash_model(folder, hash_file)
    for adapter in adapters:
        if adapter is not None:
            folders.check_adapter(adapter, folder, base)
    how: Any = {"dtype": dtype, "quantise": quantise, "device": device}

    def opened(loaded: Loaded, adapter: Path | None, activate: Callable[[], None] = lambda: None) -> LocalModel:
        name = f"local-v{VERSION}-{loaded.dtype}-{quantise}-{base}"
        if adapter is not None:
            name += f"+{folders.hash_model(adapter, hash_file, is_adapter=True)}"
        return LocalModel(loaded, name, batch_size=batch_size, activate=activate)

    if len(adapters) == 1:
        return _usable([opened(load(folder, adapter=adapters[0], **how), adapters[0])], folder, adapters)
    plain = load(folder, **how)
    num_rows = plain.model.get_input_embeddings().weight.shape[0]
    tokenizers = [load_tokenizer(folder, adapter) for adapter in adapters]
    switch, found = _Switch(plain.model), list[LocalModel]()
    for number, (adapter, tokenizer) in enumerate(zip(adapters, tokenizers, strict=True)):
        is_lora = adapter is None or folders.read_json(adapter / "adapter_config.json").get("peft_type") == "LORA"
        if not is_lora or len(tokenizer) > num_rows:
            found.append(opened(load(folder, adapter=adapter, **how), adapter))
            continue
        if adapter is not None:
            switch.model = folders.add_adapter(switch.model, adapter, f"adapter{number}of").eval()
        on = partial(switch.to, None if adapter is None else f"adapter{number}of")  # peft knows parts of names by it
        found.append(opened(replace(plain, tokenizer=tokenizer), adapter, on))
    for model in found:
        model.model = switch.model if model.model is plain.model else model.model
    return _usable(found, folder, adapters)


def _usable(models: list[LocalModel], folder: Path, adapters: Sequence[Path | None]) -> list[LocalModel]:
    """Return the models; InputError where one finds nothing probable: its texts would be empty, its scores no order."""
    for model, adapter in zip(models, adapters, strict=True):
        if math.isnan(model.score([Prompt("a")], [["a"]])[0][0]):
            raise InputError(f"the figures that {adapter or folder} gives are not numbers: weights are infinite or no "
                             "numbers, as after a training that diverged, or lm.dtype cannot hold them")  # fmt: skip
    return models


class _Switch:
    """Which adapter of a model is on."""

    def __init__(self, model: Any) -> None:
        self.model = model  # a transformers model, in a peft model once an adapter is on it
        self._on: str | None = ""  # not known yet

    def to(self, name: str | None) -> None:
        """Put an adapter on; None: none."""
        if name != self._on and hasattr(self.model, "peft_config"):
            if name is None:
                self.model.base_model.disable_adapter_layers()
            else:
                self.model.base_model.enable_adapter_layers()
                self.model.set_adapter(name, inference_mode=True)
            self._on = name


@dataclass(frozen=True, slots=True)
class Tunable:
    """A model in training, with what it is made of."""

    model: Any  # a transformers model, in a peft model where LoRA is tuned
    tokenizer: Any
    base_sha256: str
    start_sha256: str  # of the adapter that it goes on from; empty: from the base itself
    max_length: int  # tokens of an example
    precision: torch.dtype  # of matrix products

    @property
    def weights(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by name."""
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}

    @property
    def pad(self) -> int:
        """The token beyond a row's end; nothing ever sees it."""
        own = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if own is None else own)


def open_tunable(job: TuneJob, *, device: str = "cpu") -> Tunable:
    """Open a local folder for tuning.

    With LoRA the base's own weights are frozen, and kept in the type of matrix products, or in four bits. Weights that
    are trained, and their optimiser's moments, are float32. With ``job.adapter`` LoRA goes on from its weights, and
    full tuning from the base with it added. Raises InputError where a folder is none that can be used, ConfigError
    where the section does not fit it.
    """
    from accelerate import PartialState

    torch.manual_seed(job.seed)
    section, base_sha256, start_sha256 = job.section, folders.hash_model(job.base, hash_file), ""
    if job.adapter is not None:
        folders.check_adapter(job.adapter, job.base, base_sha256)
        start_sha256 = folders.hash_model(job.adapter, hash_file, is_adapter=True)
    on_gpu = device.startswith("cuda") and torch.cuda.is_bf16_supported()
    half = section.precision == "bfloat16" or (section.precision == "auto" and on_gpu)
    is_lora, shards = section.tuning != "full", None
    if job.sharded:
        processes = PartialState().num_processes
        if is_lora or job.adapter is not None or processes == 1:
            raise ConfigError("runtime.sharded is for tuning: full, of a base without adapter, in several processes")
        shards = folders.divide(job.base, processes, half=half)
    dtype: Dtype = "bfloat16" if half and is_lora else "float32"
    added = None if is_lora else job.adapter
    bits: Quantise = "int4" if section.tuning == "qlora" else "none"
    loaded = load(job.base, adapter=added, dtype=dtype, quantise=bits, device=device, shards=shards)
    model = loaded.model
    if not is_lora:
        model.requires_grad_(True)  # peft froze what an adapter was added to
    else:
        model = with_lora(model, section, autocast=half)
        model.peft_config["default"].base_model_name_or_path = f"{job.base.name}-{base_sha256[:12]}"
        if job.adapter is not None:
            _go_on_from(model, job.adapter, section)
    tokenizer = load_tokenizer(job.base, job.adapter)
    limit = min(section.max_length, loaded.context)
    precision = torch.bfloat16 if half else torch.float32
    return Tunable(model, tokenizer, base_sha256, start_sha256, limit, precision)


def with_lora(model: Any, section: ReasonerSection, *, autocast: bool) -> Any:
    """Return the model frozen, with float32 LoRA weights that do nothing yet.

    Where products are made under ``autocast``, peft's own casts before them would be for nothing. Raises ConfigError
    where the model has none of the targets, or an adapter of them could not be loaded again.
    """
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora.layer import ParamWrapper

    targets = section.targets if isinstance(section.targets, str) else list(section.targets)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=section.rank,
        lora_alpha=section.alpha,  # type: ignore[arg-type] # a float is as good
        lora_dropout=section.dropout,
        target_modules=targets,
    )
    try:
        with folders.quiet_peft():
            adapted = get_peft_model(model, config)
    except ValueError as problem:
        raise ConfigError(f"no LoRA weights for targets {targets!r}: {shorten(str(problem))}") from problem
    module: Any
    for name, module in adapted.named_modules():
        if isinstance(module, ParamWrapper):
            raise ConfigError(
                f"targets {targets!r} reach the fused experts of {model.config.model_type} ({name}): an adapter of "
                "them cannot be loaded again. Name modules, such as targets: [q_proj, k_proj, v_proj, o_proj]"
            )
        if autocast and hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False
    return adapted


def _go_on_from(model: Any, adapter: Path, section: ReasonerSection) -> None:
    """Put an adapter's weights into LoRA weights of the same form; ConfigError where the section has another one."""
    import peft
    from safetensors.torch import load_file

    told = folders.read_json(adapter / "adapter_config.json")
    own = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    same = folders.tensor_shapes(adapter, is_adapter=True) == {name: tuple(one.shape) for name, one in own.items()}
    scaled = [name for name in ("use_rslora", "rank_pattern", "alpha_pattern") if told.get(name)]
    if not same or scaled or told.get("lora_alpha") != section.alpha:
        targets = told.get("target_modules")
        said = [f"rank {told.get('r')}", f"alpha {told.get('lora_alpha')}", *scaled]
        said.append(f"targets {shorten(sorted(targets) if isinstance(targets, list) else targets)}")
        raise ConfigError(
            f"tuning goes on from the adapter {adapter} of {', '.join(said)}, and reasoner says rank {section.rank}, "
            f"alpha {section.alpha:g}, targets {section.targets!r}: make these equal, or leave the adapter out of lm"
        )
    peft.set_peft_model_state_dict(model, load_file(adapter / "adapter_model.safetensors"))


def save_tuned(tunable: Tunable, job: TuneJob) -> None:
    """Write the tuned model, whole or not there; an adapter says which base it is for."""
    job.out.mkdir(parents=True, exist_ok=True)
    with written_whole(job.tuned) as folder:
        folder.mkdir()
        if job.section.tuning == "full":
            tunable.model.config.use_cache = True
            tunable.model.save_pretrained(folder)
            tunable.tokenizer.save_pretrained(folder)
            return
        tunable.model.save_pretrained(folder, save_embedding_layers=False)
        if job.adapter and any((job.adapter / name).is_file() for name in folders.VOCABULARIES):
            tunable.tokenizer.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)  # a form with nothing filled in
        config = folder / "adapter_config.json"
        told = json.loads(config.read_text(encoding="utf-8"))
        if isinstance(told["target_modules"], list):
            told["target_modules"].sort()  # a set, in the order of the day
        config.write_text(json.dumps(told, indent=2, sort_keys=True), encoding="utf-8")
        about = {"base_sha256": tunable.base_sha256}
        about |= {"starts_from_sha256": tunable.start_sha256} if tunable.start_sha256 else {}
        (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
