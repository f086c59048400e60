"""A transformers folder on this machine as a language model: safetensors only, no network, no code of theirs.

``load`` reads weights and tokenizer and puts an adapter on them; tuning starts from it too. ``LocalModel`` asks what
was loaded. Another format (GGUF) is a change of three places: what ``folders.read_config`` accepts, what
``folders.hash_model`` hashes, and the arguments of ``from_pretrained`` in ``load``.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import transformers
from safetensors import SafetensorError, safe_open

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.lm.chat import Ending, encode_answers, encode_prompts, end_tokens
from kgqa_core.lm.constraints import start_state
from kgqa_core.lm.folders import (
    VOCABULARIES,
    HashFile,
    check_adapter,
    check_same_base,
    has_tokenizer,
    hash_adapter,
    hash_model,
    read_config,
)
from kgqa_core.lm.generate import Batcher, generate_batch, score_batch
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantise = Literal["none", "int8", "int4"]
SMALL = 10**8  # parameters; below, a batch of 64 does not fill even one core
VERSION = 2  # of how texts are made from weights; part of a model's name
_FAILURES = (OSError, ValueError, KeyError, ImportError, TypeError, RuntimeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can be asked."""

    model: Any  # a transformers causal language model in eval mode, or peft's around it
    tokenizer: Any
    context: int  # tokens of prompt and answer together
    dtype: str


def load(
    folder: Path,
    *,
    adapter: Path | None = None,
    dtype: Dtype = "auto",
    quantise: Quantise = "none",
    device: str = "cpu",
) -> Loaded:
    """Load a causal language model.

    Args:
        folder: config.json, a tokenizer and *.safetensors.
        adapter: in peft's own format; one that brings a tokenizer is asked through that one.
        dtype: of the weights; "auto" is float32 on a CPU and elsewhere as they were saved.
        quantise: weights in 8 or 4 bits; needs bitsandbytes and a GPU.
        device: as torch names it.

    Raises:
        InputError: something of it cannot be used; the message says what and what to do.
    """
    for name, value, legal in (("dtype", dtype, get_args(Dtype)), ("quantise", quantise, get_args(Quantise))):
        if value not in legal:
            hint = "".join(f"; did you mean {near!r}?" for near in nearest(str(value), legal)[:1])
            raise InputError(f"{name} is {shorten(value)}; legal: {', '.join(legal)}{hint}")
    read_config(folder)
    if adapter is not None:
        check_adapter(adapter)
    tokenizer = load_tokenizer(adapter if adapter is not None and has_tokenizer(adapter) else folder)
    model = _load_weights(folder, dtype, quantise, device)
    num_rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > num_rows and adapter is None:
        raise InputError(f"{folder} has a tokenizer of {len(tokenizer)} tokens, but a model of {num_rows}: they are "
                         "not from the same model. Copy the model whole")  # fmt: skip
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise InputError(f"{folder} holds {model.config.model_type}, which keeps no keys and values of what it read: "
                         "it cannot be asked in batches. Use a model with attention")  # fmt: skip
    loaded_as = str(model.dtype).removeprefix("torch.")
    if adapter is not None:
        model = _add_adapter(model, adapter, num_tokens=len(tokenizer), merge=loaded_as == "float32")
    text = model.config.get_text_config(decoder=True)
    context = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    return Loaded(model.eval(), tokenizer, int(context or min(tokenizer.model_max_length, 1 << 20)), loaded_as)


def load_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer. Raises InputError where there is none, or none with an end token."""
    if not has_tokenizer(folder):  # for some architectures transformers would make an empty one
        raise InputError(f"{folder} has no tokenizer: none of {', '.join(VOCABULARIES)}. Copy the model whole")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except _FAILURES as error:
        raise InputError(
            f"{folder} has no tokenizer that transformers can read: {shorten(str(error))}. Copy tokenizer.json and "
            "tokenizer_config.json (or tokenizer.model) into it"
        ) from error
    if tokenizer.eos_token_id is None:
        raise InputError(f"the tokenizer of {folder} names no end token. Add eos_token to tokenizer_config.json")
    return tokenizer


def _load_weights(folder: Path, dtype: Dtype, quantise: Quantise, device: str) -> Any:
    """Return the transformers model on its device; missing weights are an error."""
    wanted: Any = getattr(torch, dtype) if dtype != "auto" else torch.float32 if device == "cpu" else "auto"
    options = {"dtype": wanted, **_quantisation(quantise, device)}
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        made: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    except (*_FAILURES, SafetensorError) as error:
        raise InputError(
            f"{folder} is not a model folder that transformers can read: {shorten(str(error))}. Copy the model whole; "
            "it must be of an architecture that transformers has itself"
        ) from error
    model, report = made
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise InputError(
            f"{folder} lacks {len(missing)} of its weights ({shorten(missing[0])} first). Copy the model whole: "
            "missing weights would be random numbers"
        )
    return model.to(device) if quantise == "none" else model


def _quantisation(quantise: Quantise, device: str) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that quantise."""
    if quantise == "none":
        return {}
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(f"quantise is {quantise!r}, but bitsandbytes is not installed. `pip install bitsandbytes`, or "
                         "set quantise to none")  # fmt: skip
    if device == "cpu":
        raise InputError(f"quantise is {quantise!r}, which needs a GPU; the device is cpu. Set device to cuda, or "
                         "quantise to none")  # fmt: skip
    int4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    settings = {"load_in_8bit": True} if quantise == "int8" else int4
    quantisation = transformers.BitsAndBytesConfig(**settings)  # type: ignore[no-untyped-call]
    return {"quantization_config": quantisation, "device_map": {"": device}}


def _add_adapter(model: Any, adapter: Path, *, num_tokens: int, merge: bool) -> Any:
    """Return the model with an adapter on it, which may bring a tokenizer of more tokens than the base has rows for.

    ``merge`` adds it into the weights, which is faster but rounds: only where weights are float32.
    """
    import peft

    if num_tokens > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(num_tokens)
    kind = model.config.model_type
    try:
        with safe_open(str(adapter / "adapter_model.safetensors"), framework="pt") as file:
            trained = set(file.keys())
        adapted = peft.PeftModel.from_pretrained(model, str(adapter), is_trainable=False)
    except (*_FAILURES, SafetensorError) as error:
        raise InputError(
            f"the adapter {adapter} cannot be put on this model ({kind}): {shorten(str(error))}. It is for another "
            "base, or damaged: give the base model that it was trained for, or save it again"
        ) from error
    unknown = sorted(trained - set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)))
    if wrong := [name for name in unknown if ".lora_" in name]:  # peft passes over them
        raise InputError(
            f"the adapter {adapter} is for another base: it changes {wrong[0].partition('.lora_')[0]}, which this "
            f"model ({kind}) has not. Give the base model that it was trained for"
        )
    return adapted.merge_and_unload() if merge else adapted


class LocalModel:
    """A causal language model in memory. Implements ``LanguageModel``."""

    def __init__(self, loaded: Loaded, name: str, *, batch_size: int = 64) -> None:
        """Take what ``load`` gave; ``batch_size`` is how many texts (beams and samples count) grow at a time."""
        self.name = name
        self.context = loaded.context
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.ends = end_tokens(loaded.tokenizer, loaded.model.generation_config)
        self._batcher = Batcher(batch_size)
        self._option_batcher = Batcher(batch_size)

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it, chat template included."""
        return [len(tokens) for tokens in encode_prompts(self.tokenizer, prompts)]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, best first; samples in order of drawing.

        The texts of a beam are distinct. Where a constraint allows fewer, the rest are empty and unfinished; beams at
        least as many as the allowed texts (up to ``constraints.LISTED``) find them all, in order of their score.
        A prompt that leaves no room for ``max_new_tokens`` in the context is ``too_long``. ``log_prob`` is the model's
        own: neither constraint nor temperature changes it, and it equals ``score`` of a finished text.

        Raises:
            InputError: the decoding makes no sense.
            KgqaError: memory does not hold a single prompt.
        """
        check_decoding(decoding)
        rows = encode_prompts(self.tokenizer, prompts)
        ending = Ending(self.tokenizer, frozenset(self.ends), decoding.stop)

        def run(batch: list[int]) -> list[list[Generation]]:
            starts = [start_state(self.tokenizer, prompts[number].constraint) for number in batch]
            tokens = [rows[number] for number in batch]
            return generate_batch(self.model, tokens, decoding, ending=ending, starts=starts)

        results = [[Generation("", problem="too_long")] * decoding.num_returns for _ in prompts]
        fitting = [number for number, row in enumerate(rows) if len(row) + decoding.max_new_tokens <= self.context]
        lengths = [len(rows[number]) + decoding.max_new_tokens for number in fitting]
        width = decoding.num_returns if decoding.method == "sample" else decoding.num_beams
        for number, texts in zip(fitting, self._batcher.map(fitting, lengths, run, width=width), strict=True):
            results[number] = texts
        return results

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options as whole answers: summed over tokens, end included.

        An option that does not fit the context with its prompt gets minus infinity.

        Raises:
            KgqaError: memory does not hold a single prompt.
        """
        rows = encode_prompts(self.tokenizer, prompts)
        flat = iter(encode_answers(self.tokenizer, [text for own in options for text in own]))
        answers = [[[*next(flat), self.ends[0]] for _ in own] for own in options]
        fitting = [
            [place for place, answer in enumerate(own) if len(row) + len(answer) <= self.context]
            for row, own in zip(rows, answers, strict=True)
        ]
        asked = [number for number, places in enumerate(fitting) if places]

        def run(batch: list[int]) -> list[list[float]]:
            own = [[answers[number][place] for place in fitting[number]] for number in batch]
            return score_batch(self.model, [rows[number] for number in batch], own, self._option_batcher)

        lengths = [len(rows[number]) + max(map(len, answers[number])) for number in asked]
        scores = [[float("-inf")] * len(own) for own in options]
        for number, found in zip(asked, self._batcher.map(asked, lengths, run), strict=True):
            for place, score in zip(fitting[number], found, strict=True):
                scores[number][place] = score
        return scores


def check_decoding(decoding: Decoding) -> None:
    """Raise InputError where a decoding makes no sense."""
    method, beams, returns = decoding.method, decoding.num_beams, decoding.num_returns
    checks = [
        (decoding.max_new_tokens >= 1, f"max_new_tokens is {decoding.max_new_tokens}; at least 1"),
        (returns >= 1, f"num_returns is {returns}; at least 1"),
        (method in ("greedy", "sample", "beam"), f"method is {shorten(method)}; legal: greedy, sample, beam"),
        (method != "greedy" or returns == 1,
         f"num_returns is {returns} with greedy decoding, which has one text; use beam or sample"),
        (method == "beam" or beams == 1, f"num_beams is {beams} with {method} decoding; legal: 1 (use method beam)"),
        (method != "beam" or beams >= returns, f"num_beams is {beams}, num_returns {returns}; at least as many beams"),
        (decoding.temperature > 0, f"temperature is {decoding.temperature}; above 0"),
        (0 < decoding.top_p <= 1, f"top_p is {decoding.top_p}; above 0 and at most 1"),
        (all(decoding.stop), "an empty stop string would end every text; leave it out"),
    ]  # fmt: skip
    for fine, problem in checks:
        if not fine:
            raise InputError(problem)


def open_local(
    folder: Path,
    *,
    adapter: Path | None = None,
    dtype: Dtype = "auto",
    quantise: Quantise = "none",
    device: str = "cpu",
    batch_size: int | None = None,
    hash_file: HashFile = hash_file,
) -> LocalModel:
    """Open a transformers folder as a language model; arguments and errors beside these are those of ``load``.

    Args:
        batch_size: texts (beams and samples count) that grow at a time, halved when memory runs out; None: 64, and 256
            of a small model.
        hash_file: ``FileHashes(...).hash`` spares a large model's hashing after the first time.
    """
    read_config(folder)
    base = hash_model(folder, hash_file)
    if adapter is not None:
        check_same_base(adapter, folder, base)
    loaded = load(folder, adapter=adapter, dtype=dtype, quantise=quantise, device=device)
    name = f"local-v{VERSION}-{loaded.dtype}-{quantise}-{base}"
    if adapter is not None:
        name += f"+{hash_adapter(adapter, hash_file)}"
    is_small = sum(weight.numel() for weight in loaded.model.parameters()) < SMALL
    return LocalModel(loaded, name, batch_size=batch_size or (256 if is_small else 64))
