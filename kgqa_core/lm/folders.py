"""Transformers folders and adapters: what they must be, what they are called, their loading, and text to tokens.

Safetensors only, no network, no code of theirs. A name is a hash of all content that decides a model's texts, wherever
it lies. Training, generating and scoring all encode with ``encode_prompts`` and ``encode_answers``, so that a model is
asked as it was trained.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import safe_open
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

from kgqa_core.errors import ConfigError, InputError, KgqaError, did_you_mean, is_out_of_memory, nearest_beside, shorten
from kgqa_core.lm.patterns import try_patterns
from kgqa_core.lm.types import Prompt
from kgqa_core.text.transformer import PICKLED, require_safe_index

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantise = Literal["none", "int8", "int4"]
HashFile = Callable[[Path], str]  # SHA-256, hexadecimal; ``FileHashes.hash`` remembers those of large files
ABOUT = "kgqa.json"  # beside an adapter that was trained here: which base it is for
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
# Templates that tell the day tell this one, which is Llama's own where it knows none: calls are kept for other days.
ONE_DAY = "{%- macro strftime_now(form) %}26 Jul 2024{% endmacro -%}"
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")  # what trainers leave beside them
_TOKENIZER = {*VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
              "chat_template.jinja", "chat_template.json"}  # fmt: skip


@contextmanager
def _refused(message: str) -> Iterator[None]:
    """Turn what a library raises into an InputError, what it says in place of SAID; full memory is no file's fault."""
    try:
        yield
    except Exception as error:  # libraries raise what they like at what they cannot read
        if isinstance(error, KgqaError) or is_out_of_memory(error):
            raise
        raise InputError(message.replace("SAID", shorten(str(error)))) from error


def hash_model(folder: Path, hash_file: HashFile, *, is_adapter: bool = False) -> str:
    """Return the hash of a model's weights, or an adapter's, with configuration, tokenizer and chat template.

    Some adapters lie beside a model's ``config.json``, so the folder does not tell which of the two is meant.
    """
    own = {"adapter_config.json", "adapter_model.safetensors"}
    if not is_adapter:
        weights = {file.name for file in folder.glob("*.safetensors")}
        own = {"config.json", "generation_config.json", *(name for name in weights if not name.startswith("adapter_"))}
    digest = hashlib.sha256()
    for name in sorted(own | _TOKENIZER):
        if (folder / name).is_file():
            digest.update(f"{name}\0{hash_file(folder / name)}\n".encode())
    return digest.hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object. Raises InputError where there is none."""
    with _refused(f"{file} is not readable JSON: SAID. Copy the model again"):
        value = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise InputError(f"{file} holds {shorten(value)}, not a JSON object. Copy the model again")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a folder that holds a causal language model in safetensors. Raises InputError."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder{nearest_beside(folder)}. A local model is a transformers folder: "
                         "config.json, a tokenizer and *.safetensors")  # fmt: skip
    other = ""
    if any(folder.glob("*.gguf")):
        other = " but GGUF files: give one of them itself, not its folder"
    elif any(folder.glob("consolidated*")):
        other = " but weights in their maker's own format: convert them with transformers first"
    if not (folder / "config.json").is_file():
        if not (folder / "adapter_config.json").is_file():
            raise InputError(f"{folder} is no model folder: it has no config.json{other}")
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        raise InputError(f"{folder} is an adapter, no model. Give its base model ({shorten(base)} when it was trained) "
                         "as the folder and this one as the adapter")  # fmt: skip
    config = read_json(folder / "config.json")
    with _refused(f"{folder} has a spoiled config.json, or index of its weights: SAID. Copy the model again"):
        check_causal(folder, config)
        require_safe_index(folder)
    if any(folder.glob("*.safetensors")):
        return config
    names = [file.name for file in folder.iterdir() if file.suffix in PICKLED]
    if pickled := [name for name in names if not name.startswith(_NO_WEIGHTS)]:
        raise InputError(
            f"{folder} has its weights in {min(pickled)}, which is pickled: reading it would run a program that is in "
            "it. Take the model's safetensors; or, if you trust who made it, convert it once on a machine you can "
            "spare: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), and copy the tokenizer's "
            "files"
        )
    raise InputError(f"{folder} has no *.safetensors{other}. Copy the model whole")


def check_causal(folder: Path, config: dict[str, Any]) -> None:
    """Raise InputError where a folder's config.json is of no causal language model that transformers has itself."""
    kind = config.get("model_type")
    if kind not in CAUSAL:
        raise InputError(
            f"{folder / 'config.json'} has model_type {shorten(kind)}, which is no causal language model of this "
            f"transformers (code inside model folders is never run){did_you_mean(kind, CAUSAL)}"
        )
    architectures = config.get("architectures") or []
    causal = {name for names in CAUSAL.values() for name in ([names] if isinstance(names, str) else names)}
    if architectures and not causal & set(architectures):
        raise InputError(
            f"{folder} holds {shorten(architectures[0])}, which cannot generate: {kind} is saved here without a "
            "language-model head. Use a causal language model, or this folder as a text encoder"
        )
    if config.get("is_encoder_decoder"):
        raise InputError(f"{folder} holds an encoder-decoder model ({kind}). Use a causal language model")


def check_adapter(folder: Path, base: Path, base_sha256: str = "") -> None:
    """Raise InputError where a folder holds no peft adapter in safetensors, or one for another base.

    An adapter that was trained here says for which content it is: ``base_sha256`` of ``base`` (empty: not asked).
    Others are only held against the shapes of the model.
    """
    if not (folder / "adapter_config.json").is_file():
        inside = next(folder.glob("*/adapter_config.json"), None)  # of what the stage "reasoner" made, for example
        raise InputError(f"{folder} is no adapter: it has no adapter_config.json. " + (
            f"Did you mean {inside.parent}?" if inside else "An adapter is a folder in peft's own format: "
            "adapter_config.json and adapter_model.safetensors"))  # fmt: skip
    read_json(folder / "adapter_config.json")
    if not (folder / "adapter_model.safetensors").is_file():
        if not (folder / "adapter_model.bin").is_file():
            raise InputError(f"{folder} has no adapter_model.safetensors: it was not saved whole. Save it again")
        raise InputError(
            f"{folder} has adapter_model.bin, which is pickled: reading it would run whatever program is in it. "
            "If you trust who made it, convert it once: torch.load(..., weights_only=True), then "
            "safetensors.torch.save_file(..., 'adapter_model.safetensors')"
        )
    told = read_json(folder / ABOUT).get("base_sha256") if base_sha256 and (folder / ABOUT).is_file() else None
    if isinstance(told, str) and told != base_sha256:
        raise InputError(
            f"the adapter {folder} is for another base: it was trained on a model of content {told[:12]}…, {base} "
            f"is {base_sha256[:12]}… (weights, configuration, tokenizer and chat template count). Give the base model "
            "that it was trained for, or train it again"
        )


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
    shards: Any = None,
) -> Loaded:
    """Load a causal language model; raises InputError where something of it cannot be used.

    An ``adapter``, in peft's own format, that brings a tokenizer is asked through that one. ``dtype`` "auto" is float32
    on a CPU, and elsewhere what was saved. ``quantise`` needs bitsandbytes. ``device``: "cpu" or "cuda". With
    ``shards``, as of ``divide``, each process of torch reads its part of every weight.
    """
    read_config(folder)
    if adapter is not None:
        check_adapter(adapter, folder)
    tokenizer = load_tokenizer(folder, adapter)
    model = _load_weights(folder, dtype, quantise, device, shards)
    num_rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > num_rows and adapter is None:
        raise InputError(f"{folder} has a tokenizer of {len(tokenizer)} tokens, but a model of {num_rows}: they are "
                         "not from the same model. Copy the model whole")  # fmt: skip
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise InputError(f"{folder} holds {model.config.model_type}, which keeps no keys and values of what it read: "
                         "it cannot be asked in batches. Use a model with attention")  # fmt: skip
    loaded_as = str(model.dtype).removeprefix("torch.")
    if adapter is not None:
        if len(tokenizer) > num_rows:
            model.resize_token_embeddings(len(tokenizer))
        model = add_adapter(model, adapter)
        if loaded_as == "float32" and quantise == "none":  # faster, but it rounds
            model = model.merge_and_unload()
    text = model.config.get_text_config(decoder=True)
    context = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    return Loaded(model.eval(), tokenizer, int(context or min(tokenizer.model_max_length, 1 << 20)), loaded_as)


def load_tokenizer(folder: Path, adapter: Path | None = None) -> Any:
    """Return the tokenizer that an adapter brings, else the folder's; InputError where it has no end token."""
    holders = [one for one in (adapter, folder) if one and any((one / name).is_file() for name in VOCABULARIES)]
    if not holders:  # for some architectures transformers would make an empty one
        raise InputError(f"{folder} has no tokenizer: none of {', '.join(VOCABULARIES)}. Copy the model whole")
    with _refused(
        f"{holders[0]} has no tokenizer that transformers can read: SAID. Copy tokenizer.json and "
        "tokenizer_config.json (or tokenizer.model) into it"
    ):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(holders[0]), local_files_only=True, trust_remote_code=False
        )
    if tokenizer.eos_token_id is None:
        raise InputError(f"the tokenizer of {holders[0]} names no end token. Add eos_token to tokenizer_config.json")
    return tokenizer


def _load_weights(folder: Path, dtype: Dtype, quantise: Quantise, device: str, shards: Any) -> Any:
    wanted: Any = getattr(torch, dtype) if dtype != "auto" else torch.float32 if device == "cpu" else "auto"
    options: dict[str, Any] = {"dtype": wanted, **({"distributed_config": shards} if shards else {})}
    if quantise != "none":
        if importlib.util.find_spec("bitsandbytes") is None:
            raise InputError(f"weights of {quantise} need bitsandbytes: `pip install bitsandbytes`, or set lm.quantise "
                             "to none and reasoner.tuning to lora")  # fmt: skip
        int4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
        int4 |= {"bnb_4bit_use_double_quant": True}
        settings = {"load_in_8bit": True} if quantise == "int8" else int4
        quantisation = transformers.BitsAndBytesConfig(**settings)  # type: ignore[no-untyped-call]
        options |= {"quantization_config": quantisation, "device_map": {"": device}}
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with _refused(
        f"{folder} is not a model folder that transformers can read: SAID. Copy the model whole; it must be of an "
        "architecture that transformers has itself"
    ):
        safe: dict[str, Any] = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
        safe["adapter_kwargs"] = {"subfolder": "none"}  # else an adapter beside config.json is put on the model
        made: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), **safe, output_loading_info=True, **options
        )
    model, report = made
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise InputError(
            f"{folder} lacks {len(missing)} of its weights ({shorten(missing[0])} first). Copy the model whole: "
            "missing weights would be random numbers"
        )
    return model.to(device) if quantise == "none" and shards is None else model


def divide(folder: Path, processes: int, *, half: bool) -> Any:
    """Return how ``load`` divides a model over processes: by the plan of its architecture, and block by block.

    Where ``half``, a block is put together in bfloat16 for its products, and gradients are summed in float32. Raises
    ConfigError where transformers does not say what the blocks of the architecture are.
    """
    from transformers.distributed.configuration_utils import DistributedConfig

    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    kinds = model._no_split_modules or ()
    blocks = {name for name, module in model.named_modules() if type(module).__name__ in kinds}
    if not blocks:
        raise ConfigError(f"transformers names no blocks of {config.model_type}: it is not tuned with runtime.sharded")
    plan = dict.fromkeys((re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in blocks), "free_full_weight")
    return DistributedConfig(fsdp_size=processes, fsdp_plan=plan, fsdp_mixed_precision=half)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence peft's question for an attribute under a name that transformers gave up."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield


def add_adapter(model: Any, adapter: Path, name: str = "default") -> Any:
    """Return the model with an adapter on it, called ``name`` beside those that it has."""
    import peft

    kind = model.config.model_type
    with _refused(
        f"the adapter {adapter} cannot be put on this model ({kind}): SAID. It is for another base, or damaged: give "
        "the base model that it was trained for, or save it again"
    ):
        trained = set(tensor_shapes(adapter, is_adapter=True))
        try_patterns(read_json(adapter / "adapter_config.json"), [name for name, _ in model.named_modules()], adapter)
        with quiet_peft():
            if isinstance(model, peft.PeftModel):
                model.load_adapter(str(adapter), name, is_trainable=False)
            else:
                model = peft.PeftModel.from_pretrained(model, str(adapter), name, is_trainable=False)
    there = peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    unknown = sorted(trained - set(there))
    if wrong := [name for name in unknown if ".lora_" in name]:  # peft passes over them
        raise InputError(
            f"the adapter {adapter} is for another base: it changes {wrong[0].partition('.lora_')[0]}, which this "
            f"model ({kind}) has not. Give the base model that it was trained for"
        )
    if lacking := sorted(name for name in set(there) - trained if ".lora_" in name):
        raise InputError(f"the adapter {adapter} lacks {len(lacking)} of its weights ({lacking[0]} first): they would "
                         "be random numbers. Save it again")  # fmt: skip
    return model


def tensor_shapes(folder: Path, *, is_adapter: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a model's safetensors, or an adapter's beside them, from the files' heads."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name.startswith("adapter_") != is_adapter:
            continue
        with _refused(f"{path} is damaged: SAID. Copy it again"), safe_open(str(path), framework="pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def render(tokenizer: Any, prompt: Prompt) -> str:
    """Return the whole text that the model continues.

    With a chat template: its turns, the system turn merged into the user's where the template knows none; InputError
    where it fails on a single user turn. Without one: the system text, an empty line, the user's text.
    """
    joined = "\n\n".join(part for part in (prompt.system, prompt.text) if part)
    if not tokenizer.chat_template:
        return joined
    turns = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.text}]
    problem: Exception | None = None
    for asked in (turns, [{"role": "user", "content": joined}]) if prompt.system else (turns[1:],):
        try:
            template = str(tokenizer.get_chat_template())
            dated = ONE_DAY + template if "strftime_now" in template else template
            how = {"chat_template": dated, "add_generation_prompt": True}
            text = str(tokenizer.apply_chat_template(asked, tokenize=False, **how))
        except Exception as error:  # a template is somebody's program
            problem = error
            continue
        if asked is not turns or prompt.system.strip() in text:  # some templates drop the system's turn without a word
            return text
    raise InputError(
        f"the chat template of {tokenizer.name_or_path} fails on a single user turn: {shorten(str(problem))}. "
        "Repair chat_template.jinja in the model's folder, or delete it to ask without a template"
    ) from problem


def encode_prompts(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return each prompt's tokens as the model reads them, with what the tokenizer puts before a text."""
    if not prompts:
        return []
    # A chat template writes its own special tokens.
    texts = [render(tokenizer, prompt) for prompt in prompts]
    rows = tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
    nothing = [end if begin is None else begin]  # a model must read something
    for row, text in zip(rows, texts, strict=True):
        if row[-1:] == [end] and not text.endswith(tokenizer.eos_token):
            row.pop()
    return [row or nothing for row in rows]


def encode_answers(tokenizer: Any, answers: Sequence[str]) -> list[list[int]]:
    """Return each answer's tokens, tokenised apart from any prompt, without special tokens and without the end."""
    return list(tokenizer(list(answers), add_special_tokens=False)["input_ids"]) if answers else []


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return the text of an answer's tokens, special tokens included: plans may be made of them."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a text ends."""

    tokenizer: Any
    tokens: frozenset[int]
    stop: tuple[str, ...] = ()

    def stopped(self, tokens: Sequence[int]) -> bool:
        """Say whether the text holds a stop string; before its last token it held none."""
        if not self.stop:
            return False
        longest = max(len(stop.encode()) for stop in self.stop)
        tail = decode(self.tokenizer, tokens[-longest - 4 :])  # a token is a byte of text at least
        return any(stop in tail for stop in self.stop) and self.answer(tokens) != decode(self.tokenizer, tokens)

    def answer(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer: before its end token, and before the first stop string."""
        ended = bool(tokens) and tokens[-1] in self.tokens
        text = decode(self.tokenizer, tokens[:-1] if ended else tokens)
        return text[: min((place for stop in self.stop if (place := text.find(stop)) >= 0), default=None)]
