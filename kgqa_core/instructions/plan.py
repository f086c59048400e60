"""Plans: relation paths asked of a language model, written ``<PATH>directed_by<SEP>^starred_actors</PATH>`` (RoG §4.3).

A step is a relation's label, walked forward; "^" before it means backward (``graph.kg``). What would break the frame (a
marker or a line break inside a label, blanks at its ends) is written as ``\\u{HEX}`` and read back, so that any label
survives. Files without directions (unsigned) hold plain labels.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar, Protocol

import numpy as np

from kgqa_core.artifacts import read_artifact
from kgqa_core.graph.csr import I64, Ints
from kgqa_core.graph.follow import LEADS, LEADS_ON, find_leading, leave
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.instructions.render import BREAKS, escape, unescape
from kgqa_core.instructions.types import Case, Instruction, ParseFailure
from kgqa_core.lm.calls import is_allowed
from kgqa_core.lm.types import Constraint, Decoding, Generation, LanguageModel, Searches
from kgqa_core.types import LabelPath, RelationPath

START, SEPARATOR, END = "<PATH>", "<SEP>", "</PATH>"
MAX_PIECES = 50_000  # sets of pieces that ``PathConstraints`` keeps
SAMPLES, TEMPERATURE = 4, 0.7  # samples per plan that is wanted, and how they are drawn
MAX_TOPICS = 1024  # sets of topics whose frontiers it keeps

_UNSAFE = re.compile(BREAKS + r"|<(?=(?:SEP|/?PATH)>)", re.IGNORECASE)
_PLAN = re.compile(r"<PATH>(.*?)(?:</PATH>|(?=<PATH>)|\Z)", re.IGNORECASE | re.DOTALL)
_MARKER = re.compile(r"</?(?:SEP|PATH)>", re.IGNORECASE)
_SEPARATOR = re.compile(SEPARATOR, re.IGNORECASE)
_END = re.compile(END, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A question as a planner sees it."""

    id: str
    text: str  # as it is read: with a placeholder where it names a topic, unless the run says otherwise
    topics: tuple[int, ...] = ()  # entity ids of the graph; empty without one
    paths: tuple[LabelPath, ...] = ()  # those that count as right; supervision in training, the target when scored


@dataclass(frozen=True, slots=True)
class Plan:
    """One relation path that a planner proposes."""

    path: LabelPath
    log_prob: float  # natural log of the planner's probability of this path given the question
    sure: float | None = None  # its probability among all paths, also those that the graph lacks; None: nobody told


class Planner(Protocol):
    """Proposes relation paths."""

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, best first."""


# ------ Plans as text.


def render_step(step: str) -> str:
    """Return one step as it stands in a plan text: itself, but for the characters that would break the frame."""
    return escape(step, _UNSAFE)


def render_plan(path: LabelPath) -> str:
    """Return the text of a plan of at least one step; ValueError for none, or for an empty step."""
    if not path or not all(path):
        raise ValueError(f"a plan is one or more non-empty steps, not {path!r}")
    return f"{START}{SEPARATOR.join(escape(step, _UNSAFE) for step in path)}{END}"


def parse_plans(text: str) -> tuple[LabelPath, ...] | ParseFailure:
    """Return the distinct plans of any text in their order, or why there is none; never raises.

    The end marker may be missing (generation stops there, and drops it). So may the start marker where the prompt
    ends with it: the text then begins with the plan. A plan with an empty step is none.
    """
    bodies = [found[1] for found in _PLAN.finditer(text)]
    if not bodies and _MARKER.search(text):
        bodies = [_END.split(text, maxsplit=1)[0]]
    if not bodies:
        return ParseFailure("no plan")
    plans = [tuple(unescape(piece.strip()) for piece in _SEPARATOR.split(body)) for body in bodies]
    return tuple(dict.fromkeys(filter(all, plans))) or ParseFailure("empty plan")


@dataclass(frozen=True, slots=True)
class PlanCase(Case):
    """A question to plan for, as ``PlanQuestion.text`` has it; the planner sees the question only (EPERM Eq. 6)."""

    path: LabelPath | None = None  # the one that is taught
    paths_allowed: Constraint | None = None  # those that exist around the topics, or a trie of relations


class PlanInstruction(Instruction[PlanCase, tuple[LabelPath, ...]]):
    """The instruction ``plan``."""

    name: ClassVar[str] = "plan"

    def target(self, case: PlanCase) -> str | None:
        """Return the plan that is taught; None for the empty path, which no text can tell."""
        return render_plan(case.path) if case.path else None

    def parse(self, text: str, case: PlanCase) -> tuple[LabelPath, ...] | ParseFailure:
        """Return the distinct plans of a text, in their order."""
        return parse_plans(text)

    def constraint(self, case: PlanCase) -> Constraint | None:
        """Return the paths that exist, where the case brings them."""
        return case.paths_allowed


# ------ Plans that exist: following them from any topic ends somewhere, topics not re-entered unless asked for.


class PathConstraint:
    """The plans around one set of topics, written as ``render_plan`` does.

    After the start marker a piece is a step with the marker behind it, so none begins another. Frontiers are worked
    out as far as a plan is written, and kept for all plans that begin alike; nothing is enumerated.
    """

    def __init__(self, space: PathConstraints, topics: tuple[int, ...]) -> None:
        self.key = f"{space.key}:{','.join(map(str, topics))}"
        self._space = space
        start = np.array(topics, dtype=np.int64)
        self._barred: I64 = np.empty(0, dtype=np.int64) if space.reenter_topic else start
        self._frontiers: dict[RelationPath, I64] = {(): start}
        self._pieces: dict[tuple[str, ...], tuple[str, ...]] = {}

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return the start marker, then steps in order of relation id: those that end the plan, those that go on."""
        space = self._space
        if pieces not in self._pieces and not self.may_end(pieces):
            path = tuple(space.relation_of[piece] for piece in pieces[1:])
            here, further = self.next_relations(path)
            if pieces:
                on = further if len(path) + 1 < space.max_hops else further[:0]
                self._pieces[pieces] = space.pieces(here.tobytes(), on.tobytes())
            else:
                self._pieces[pieces] = (START,) if len(here) else ()
        return self._pieces.get(pieces, ())

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether the plan is whole."""
        return bool(pieces) and pieces[-1].endswith(END)

    def next_relations(self, path: RelationPath) -> tuple[Ints, Ints]:
        """Return the relations that lead somewhere after ``path``, and those of them after which one more does."""
        graph, frontiers = self._space.graph, self._frontiers
        for end in range(1, len(path) + 1):
            if path[:end] not in frontiers:
                frontiers[path[:end]] = leave(graph, frontiers[path[: end - 1]], path[end - 1], self._barred)
        leads = find_leading(graph.arrays, frontiers[path], self._barred, graph.identity, LEADS | LEADS_ON)
        return np.flatnonzero(leads & LEADS), np.flatnonzero(leads & LEADS_ON)


class PathConstraints:
    """The plans of one graph: a constraint per set of topics, kept for questions that share them."""

    def __init__(self, graph: KnowledgeGraph, *, max_hops: int = 3, reenter_topic: bool = False) -> None:
        self.graph, self.max_hops, self.reenter_topic = graph, max_hops, reenter_topic
        steps = [render_step(step) for step in graph.steps]
        self.ends = [step + END for step in steps]
        self.goes_on = [step + SEPARATOR for step in steps]
        self.relation_of = {piece: relation for relation, piece in enumerate(self.goes_on)}
        self.key = f"paths:{identity_of(graph)}:{max_hops}:{int(reenter_topic)}"
        self.pieces = lru_cache(maxsize=MAX_PIECES)(self._list_pieces)  # few sets of relations, met again and again
        self._around = lru_cache(maxsize=MAX_TOPICS)(partial(PathConstraint, self))

    def around(self, topics: Sequence[int]) -> PathConstraint:
        """Return the plans that exist around ``topics``; no text is allowed where there is none."""
        return self._around(tuple(sorted(set(topics))))

    def _list_pieces(self, ending: bytes, going_on: bytes) -> tuple[str, ...]:
        """Return the steps of relation ids, of 64 bits each, that end a plan, then of those that go on."""
        ends, on = np.frombuffer(ending, dtype=np.int64), np.frombuffer(going_on, dtype=np.int64)
        return (*(self.ends[relation] for relation in ends), *(self.goes_on[relation] for relation in on))


class RelationConstraint:
    """Plans of 1..``max_hops`` known steps, whatever is around the topic: where there is no graph."""

    def __init__(self, steps: Sequence[str], *, max_hops: int = 3) -> None:
        rendered = [render_step(step) for step in dict.fromkeys(steps)]
        self._last = tuple(step + END for step in rendered)
        self._any = self._last + tuple(step + SEPARATOR for step in rendered)
        self._max_hops = max_hops
        told = "\0".join([str(max_hops), *sorted(rendered)])
        self.key = "relations:" + hashlib.sha256(told.encode()).hexdigest()

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return the start marker, then any step with a marker behind it."""
        if self.may_end(pieces):
            return ()
        if not pieces:
            return (START,) if self._last else ()
        return self._last if len(pieces) >= self._max_hops else self._any

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether the plan is whole."""
        return bool(pieces) and pieces[-1].endswith(END)


def identity_of(graph: KnowledgeGraph) -> str:
    """Return what tells this graph from others: its artifact's content, however it was made, else a hash of its arrays.

    Two homes that build the same graph agree on it, so a call of a model is the same call, and an oracle draws alike.
    """
    if (made := read_artifact(graph.folder)) is not None:
        return made.content[:16]
    digest = hashlib.sha256("\0".join(graph.relation_names).encode())
    for array in (graph.group_ptr, graph.group_relation, graph.edge_ptr, graph.edge_tail):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


# ------ Asking for plans by beam search or by samples, and reading what comes back.


@dataclass(frozen=True, slots=True)
class PlanAsker:
    """How a language model is asked for plans, and how its texts are read."""

    instruction: PlanInstruction
    space: PathConstraints | RelationConstraint | None  # the plans that exist; None: any text is a plan
    max_new_tokens: int = 160  # of one plan
    searches: Searches = "bound"  # how the model finds several texts

    def decoding(self, num_plans: int) -> Decoding:
        """Return how ``num_plans`` plans are searched for: where there are no beams, among samples."""
        ends_itself = self.space is not None and self.searches == "bound"  # a constraint ends the text
        stop = () if ends_itself else (END,)
        if self.searches == "samples":
            num, heat = SAMPLES * num_plans, TEMPERATURE
            return Decoding(self.max_new_tokens, "sample", num_returns=num, temperature=heat, stop=stop)
        return Decoding(self.max_new_tokens, "beam", num_returns=num_plans, num_beams=num_plans, stop=stop)

    def case(self, question: PlanQuestion) -> PlanCase:
        """Return what the instruction is asked about a question."""
        space = self.space
        allowed = space.around(question.topics) if isinstance(space, PathConstraints) else space
        return PlanCase(question.text, question_id=question.id, paths_allowed=allowed)

    def read(self, case: PlanCase, texts: Sequence[Generation]) -> list[Plan]:
        """Return the distinct plans of a question's texts, best first; equal ones add up their probabilities.

        A sampled plan is as probable as it is frequent, of equals the one comes first that the model says is.
        """
        found: dict[LabelPath, float] = {}
        times = Counter[LabelPath]()
        for text in texts:
            parsed = self.instruction.parse(text.text, case)
            if text.problem or isinstance(parsed, ParseFailure):
                continue
            log_prob = text.log_prob if text.log_prob is not None else -math.log(2) * (len(found) + 1)
            for path in parsed:
                if case.paths_allowed is None or is_allowed(case.paths_allowed, render_plan(path)):
                    times[path] += 1
                    low, high = sorted((log_prob, found.get(path, -math.inf)))
                    added = high + math.log1p(math.exp(low - high)) if low > -math.inf else high
                    found[path] = min(0.0, added) if path in found else log_prob
        if self.searches == "samples":
            ranked = sorted(found, key=lambda path: (-times[path], -found[path]))
            return [Plan(path, math.log(times[path] / times.total())) for path in ranked]
        return [Plan(path, found[path]) for path in sorted(found, key=lambda path: -found[path])]


@dataclass(frozen=True, slots=True)
class GeneratorPlanner:
    """Any language model as a ``Planner`` (RoG §4.3); who cannot follow the asker's ``space`` is held to it after."""

    model: LanguageModel
    asker: PlanAsker

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, best first; none where none exists."""
        cases = [self.asker.case(question) for question in questions]
        prompts = [self.asker.instruction.render(case) for case in cases]
        texts = self.model.generate(prompts, self.asker.decoding(num_plans))
        return [self.asker.read(case, given)[:num_plans] for case, given in zip(cases, texts, strict=True)]

    def weigh(self, questions: Sequence[PlanQuestion], paths: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
        """Return the log-probability of each question's ``paths`` as whole answers, whether they exist or not."""
        prompts = [self.asker.instruction.render(self.asker.case(question)) for question in questions]
        return self.model.score(prompts, [[render_plan(path) for path in own] for own in paths])


def weigh_plans(log_probs: Sequence[float]) -> list[float]:
    """Return the beam probabilities of one question's plans, normalised over them (EPERM Fig. 4).

    -inf is a plan that weighs nothing, and if all are, all weigh alike.
    """
    most = max(log_probs, default=-math.inf)
    weights = [math.exp(log_prob - most) if most > -math.inf else 1.0 for log_prob in log_probs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def score_paths(weights: Sequence[float], entity_scores: Sequence[Sequence[float]]) -> list[float]:
    """Return the scores of one question's reasoning paths: each plan's weight times its entities' scores, 0..1.

    They sum to 1 (EPERM Fig. 4). Where every product is 0 the entities tell nothing: the plans' weights alone count.
    """
    products = [weight * math.prod(scores) for weight, scores in zip(weights, entity_scores, strict=True)]
    values = products if any(products) else weights
    total = math.fsum(values)
    return [value / total if total else 1 / len(values) for value in values]
