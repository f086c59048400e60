"""What the project asks of a language model, the sections that say which model, and how each opens its own.

``config_lm`` has the table of the sections. It imports this module with the configuration, so torch, transformers and
httpx are imported only where something is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from kgqa_core.config_base import FilePath, Section
from kgqa_core.errors import ConfigError, shorten

Problem = Literal["", "budget", "too_long", "timeout", "rate_limit", "bad_response", "unreachable", "refused"]
"""Why a call gave nothing; empty where it went well."""

Searches = Literal["bound", "beams", "samples"]
"""How a model finds several texts: by beams that a constraint binds, by beams that know none, or by drawing samples."""


class Constraint(Protocol):
    """Which texts may be generated, piece by piece: an automaton over texts, so that any tokenizer can follow it.

    A text is allowed if it is the concatenation of pieces p1 p2 ... pn, each in ``next_pieces`` of those before it, and
    ``may_end`` after the last. Pieces that may follow each other must not be ambiguous: none is a prefix of another.
    """

    @property
    def key(self) -> str:
        """What tells this constraint from others, for the call store: equal keys allow equal texts."""

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return the pieces that may follow ``pieces``, in a fixed order; empty where the text must end."""

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether the text may end after ``pieces``."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One call: what is asked, of whom it is told in the accounts, and what may be answered."""

    text: str  # the user's turn
    system: str = ""  # the system's turn; empty: none
    constraint: Constraint | None = None
    question_id: str = ""  # whose budget it is
    instruction: str = ""  # of kgqa_core.instructions, by name
    call: tuple[Any, Any] | None = field(default=None, compare=False, repr=False)  # instruction and case; for players


@dataclass(frozen=True, slots=True)
class Decoding:
    """How texts are drawn. Greedy is beam search of one beam."""

    max_new_tokens: int = 256
    method: Literal["greedy", "sample", "beam"] = "greedy"
    num_returns: int = 1  # texts per prompt: the best beams, or that many samples
    num_beams: int = 1  # of beam search; at least num_returns
    temperature: float = 1.0  # of sampling
    stop: tuple[str, ...] = ()  # a text ends before the first of these
    seed: int = 0  # of sampling


GREEDY = Decoding()


@dataclass(frozen=True, slots=True)
class Generation:
    """One text that a model gave."""

    text: str  # without prompt, special tokens of the end, and stop string
    log_prob: float | None = None  # natural log, summed over the tokens given, end included; None: not told
    num_tokens: int = 0
    finished: bool = True  # False: cut at max_new_tokens
    problem: Problem = ""  # then text is empty


class LanguageModel(Protocol):
    """A model that continues prompts and weighs options.

    What one prompt cannot get (it is too long, its server times out) is told in ``Generation.problem``; only what no
    prompt can get raises.
    """

    @property
    def name(self) -> str:
        """Its content (hashes of weights and tokenizer; endpoint and served id): equal names and calls, equal texts."""

    @property
    def context(self) -> int:
        """How many tokens prompt and answer may have together."""

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it, chat template included."""

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, best first (of samples: in order of drawing)."""

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options, whole answers, summed over their tokens.

        Raises KgqaError where the model cannot tell (an endpoint without log-probabilities of given texts).
        """


@dataclass(frozen=True, slots=True)
class Answer:
    """What one prompt of a batch got."""

    index: int  # of the prompt in its batch
    generations: list[Generation]  # num_returns of them
    num_prompt_tokens: int  # that were read for it, over all requests
    seconds: float  # from asking to having it, waits between attempts included


@runtime_checkable
class StreamingModel(Protocol):
    """A model whose answers come one by one, so that each can be kept before the next is there."""

    def stream(self, prompts: Sequence[Prompt], decoding: Decoding) -> Iterator[Answer]:
        """Yield one answer per prompt, in the order in which they come."""

    def stream_scores(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> Iterator[Answer]:
        """Yield one answer per prompt: a generation without text per option, with its log-likelihood."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The files of a model that is on this machine."""

    folder: Path  # as transformers saves it
    adapter: Path | None = None  # in peft's format


@dataclass(frozen=True, slots=True)
class Machine:
    """What opening a model may ask of the machine."""

    device: Callable[[], str]  # "cpu" or "cuda"; loads torch
    hash_file: Callable[[Path], str]  # from memory where a file did not change


class ModelSection(Section):
    """Base of the sections about one kind of language model, each with its settings and how it is opened."""

    is_tunable: ClassVar[bool] = False  # can adapters be trained on it?
    kind: str

    @property
    def gguf(self) -> Path | None:
        """The GGUF file that stage ``lm`` makes a transformers folder of."""
        return None

    def recipe(self) -> dict[str, Any]:
        """Return the settings that may change what it says, its files apart; empty where a stage makes it."""
        return self.model_dump(mode="json")

    def weights(self, made: Path | None) -> Weights | None:
        """Return its files: those of the configuration, or ``made`` by the run; None where it is elsewhere."""
        return None

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.kind

    def open(self, weights: Weights | None, machine: Machine) -> LanguageModel:
        """Open it on ``weights``, which may have been tuned since. Raises InputError where it cannot be used."""
        raise NotImplementedError

    def open_each(self, weights: Sequence[Weights | None], machine: Machine) -> list[LanguageModel]:
        """Open it on each of several weights, whose adapters share one base in memory where it can."""
        return [self.open(one, machine) for one in weights]

    def facts(self, weights: Weights | None, machine: Machine) -> dict[str, Any]:
        """Return what ``kgqa lm-info`` prints of one whose files are elsewhere. Raises as ``open``."""
        raise NotImplementedError

    @property
    def searches(self) -> Searches:
        """How it finds several texts."""
        return "bound"

    def price_name(self) -> str:
        """Return what the list of prices calls it; empty where asking it costs no money."""
        return ""


class FolderLmSection(ModelSection):
    """Base of the sections about a model that is a transformers folder on this machine."""

    is_tunable = True

    def open_each(self, weights: Sequence[Weights | None], machine: Machine) -> list[LanguageModel]:
        """Load each base once, and its adapters."""
        from kgqa_core.lm.local import open_adapters

        how, opened = self.how(machine), dict[Weights | None, LanguageModel]()
        for folder in dict.fromkeys(one.folder for one in weights if one):
            own = [one for one in dict.fromkeys(weights) if one and one.folder == folder]
            opened |= dict(zip(own, open_adapters(folder, [one.adapter for one in own], **how), strict=True))
        return [opened[one] for one in weights]

    def how(self, machine: Machine) -> Any:
        """Return how it is loaded, as ``open_adapters`` takes it."""
        own = self.model_dump(include={"dtype", "quantise"})  # of ``local``
        return {"device": machine.device(), "hash_file": machine.hash_file, **own}


class LocalLmSection(FolderLmSection):
    """A local transformers folder, or GGUF file, of any causal language model."""

    kind: Literal["local"]
    path: FilePath
    adapter: FilePath | None = None  # a folder in peft's format
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: as config.json says
    quantise: Literal["none", "int8", "int4"] = "none"  # needs bitsandbytes

    def recipe(self) -> dict[str, Any]:
        """Return how its weights are read; the hashes of its files say the rest."""
        return self.model_dump(mode="json", exclude={"path", "adapter"})

    @property
    def gguf(self) -> Path | None:
        """Its file, where it is one."""
        return self.path if self.path.suffix == ".gguf" else None

    def weights(self, made: Path | None) -> Weights | None:
        """Return the folders that the section names; of a GGUF file, the folder made of it."""
        folder = made if self.gguf else self.path
        return Weights(folder, self.adapter) if folder else None

    @property
    def label(self) -> str:
        """The name of its folder or file."""
        return self.path.stem if self.gguf else self.path.name


SECRET_NAME = re.compile(r"(?i)(^|[_-])(api[_-]?key|access[_-]?key|token|authorization|secret|password|credentials?)$")
SECRET_VALUE = re.compile(r"(?i)(bearer |basic |sk-|hf_|ghp_)\S")


def _address(url: str) -> str:
    """Return a server's address without a slash at its end; ConfigError, as pydantic's own would repeat a secret."""
    if any(sign in url for sign in "@?#"):
        raise ConfigError(
            "lm.url holds a user, a password, a query or a fragment. Put the key into an environment variable and its "
            "name into lm.key_variable"
        )
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url.rstrip("/")
    raise ConfigError(f"lm.url = {shorten(url)} is no address such as http://127.0.0.1:8000/v1")


def _variable(name: str) -> str:
    if not re.fullmatch(r"\w*", name, re.ASCII):
        raise ConfigError("lm.key_variable names no environment variable. The key itself belongs into one")
    return name


SET_HERE = {"model", "messages", "prompt", "stream", "n", "temperature", "top_p", "seed", "stop", "logprobs"}
SET_HERE |= {"max_tokens", "max_completion_tokens"}  # ``lm.limit_field`` says which of the two


def _additions(extra: dict[str, Any]) -> dict[str, Any]:
    if own := SET_HERE.intersection(extra):
        raise ValueError(f"must be without {', '.join(sorted(own))}, which each request sets by itself")
    _refuse_secrets(extra)
    return extra


def _refuse_secrets(value: Any, key: str = "") -> None:
    """Raise ConfigError, without the value, where a field looks like a secret: a configuration is stored and shown."""
    if isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else ((key, one) for one in value):
            _refuse_secrets(one, str(name))
    elif SECRET_NAME.search(key) or (isinstance(value, str) and SECRET_VALUE.match(value)):
        raise ConfigError(
            f"lm.extra: {shorten(key, 60)} looks like a secret, and a configuration is stored. Put the key into an "
            "environment variable and its name into lm.key_variable"
        )


class EndpointLmSection(ModelSection):
    """An OpenAI-compatible HTTP endpoint: vLLM, llama.cpp, Ollama and others."""

    ANSWERS: ClassVar = {"kind", "model", "identity", "api", "choices", "beams", "context", "extra", "log_probs"}
    """Settings that may change what it says; the others are about how it is reached."""

    kind: Literal["endpoint"]
    url: Annotated[str, AfterValidator(_address)]  # with its /v1: http://127.0.0.1:8000/v1
    model: str = ""  # as the server calls it; empty: the only one that it serves
    identity: str = ""  # stands for the url in the call store, where a model moves between hosts; say its revision too
    # Environment variable that holds the key; empty: the server wants none.
    key_variable: Annotated[str, AfterValidator(_variable)] = ""
    api: Literal["chat", "completions"] = "chat"  # completions: no chat template
    choices: Literal["none", "structured_outputs", "guided_choice", "grammar"] = "none"  # how constraints are passed on
    beams: bool = False  # does the server search with beams (vLLM's use_beam_search)?
    log_probs: bool = True  # ask for them
    sampling: bool = True  # say temperature, top_p, seed and stop; OpenAI's models that reason take none of these
    context: Annotated[int, Field(ge=0)] = 0  # tokens of prompt and answer; 0: as the server tells
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: Annotated[dict[str, Any], AfterValidator(_additions)] = Field(default_factory=dict)
    # ^ added to each request: chat_template_kwargs, top_k
    concurrency: Annotated[int, Field(ge=1)] = 8  # requests at a time
    attempts: Annotated[int, Field(ge=1)] = 5  # per request, the first included
    first_wait: Annotated[float, Field(ge=0)] = 0.5  # seconds before the second attempt, doubled before each further
    longest_wait: Annotated[float, Field(ge=0)] = 60.0  # seconds; a server that asks for more is not waited for
    connect_timeout: Annotated[float, Field(gt=0)] = 10.0  # seconds
    read_timeout: Annotated[float, Field(gt=0)] = 120.0  # seconds of silence
    total_timeout: Annotated[float, Field(gt=0)] = 600.0  # seconds per attempt, however slowly the bytes come

    def recipe(self) -> dict[str, Any]:
        """Return what may change what it says; how it is reached does not, unless nothing else says who is asked."""
        unnamed = {"url"} if not self.model + self.identity else set()
        unsaid = set() if self.sampling else {"sampling"}  # not of the others: their kept calls stay theirs
        return self.model_dump(mode="json", include=self.ANSWERS | unnamed | unsaid)

    def open(self, weights: Weights | None, machine: Machine) -> LanguageModel:
        """Connect to it."""
        from kgqa_core.lm.endpoint import Endpoint

        return Endpoint(self)

    @property
    def label(self) -> str:
        """The model's name; without one, that it is an endpoint."""
        return self.model or self.kind

    def facts(self, weights: Weights | None, machine: Machine) -> dict[str, Any]:
        """Ask what it serves."""
        from kgqa_core.lm.endpoint import Endpoint

        model = Endpoint(self)
        return {"kind": self.kind, "url": self.url, "served": model.model, "context": model.context}

    @property
    def searches(self) -> Searches:
        """By beams where the server has them; it does not hold them to a constraint."""
        return "beams" if self.beams else "samples"

    def price_name(self) -> str:
        """Return the model's name."""
        return self.model
