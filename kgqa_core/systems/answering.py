"""What systems share: where plans come from, and which entities the names mean that a language model gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, Literal

from kgqa_core.graph.csr import Ints
from kgqa_core.graph.follow import end_of, reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph, ends_of
from kgqa_core.instructions.answers import Answers, match_answers
from kgqa_core.instructions.plan import Plan, PlanAsker, Planner, PlanQuestion, weigh_plans
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import Prompts, show_path
from kgqa_core.instructions.scores import USUAL_BUDGET, RelationsCase, ScoreRelationsInstruction, Scores
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import GREEDY, Decoding
from kgqa_core.systems.types import Ask, Reply, Rounds, SystemAnswer
from kgqa_core.types import Prediction, Question, ReasoningPath, RelationPath

VERDICTS = {"yes": True, "true": True, "no": False, "false": False}
"""What a model may answer to a true/false question instead of a name."""

Said = Answers | ParseFailure
Paths = Sequence[ReasoningPath]


@dataclass(frozen=True, slots=True)
class PlanSource:
    """Where a system's plans come from: a planner, for many questions at once, or the model that answers, per call."""

    planner: Planner | PlanAsker
    mask_topics: bool = True  # does it read questions with a placeholder where they name a topic?

    def prepare(self, questions: Sequence[Question], num_plans: int) -> list[list[Plan] | None]:
        """Return each question's plans, best first; None where they have to be asked for."""
        if isinstance(self.planner, PlanAsker):
            return [None] * len(questions)
        asked = [PlanQuestion(one.id, one.asked(self.mask_topics), one.topics) for one in questions]
        return list(self.planner.plan(asked, num_plans=num_plans))

    def ask(self, question: Question, num_plans: int) -> Rounds:
        """Return the plans that the language model gives, best first: one call of ``plan``, a beam."""
        asker = self.planner
        assert isinstance(asker, PlanAsker)  # other plans are prepared
        case = asker.case(PlanQuestion(question.id, question.asked(self.mask_topics), question.topics))
        (reply,) = yield [Ask(asker.instruction, case, asker.decoding(num_plans))]
        return asker.read(reply.case, reply.texts)[:num_plans]


Relations = Literal["written", "weighed"]
"""How relations are scored: those that the model names, as it writes (the papers); or all, each by how probable a line
is that begins with it (ours). Then none is left out or misread. If nobody can tell likelihoods, all weigh alike."""


def ask_relations(prompts: Prompts, case: RelationsCase, how: Relations, decoding: Decoding = GREEDY) -> Ask[Scores]:
    """Return the call that scores the relations of a case."""
    instruction = ScoreRelationsInstruction(prompts)
    if how == "written":
        return Ask(instruction, case, decoding)
    case = replace(case, budget=USUAL_BUDGET)  # how many may be named does not matter: what every adapter was taught
    return Ask(instruction, case, decoding, instruction.lines(case))


def positive(reply: Reply[Any] | None) -> list[tuple[int, float]]:
    """Return the options that a reply scores above 0; none where there is no reply, or it could not be read."""
    scores = reply.result.scores if reply and isinstance(reply.result, Scores) else ()
    if reply and reply.log_probs:  # one whose likelihood could not be told scores 0
        scores = tuple(enumerate(weigh_plans(reply.log_probs)))
    return [pair for pair in scores if pair[1] > 0]


# ------ From names that a model gave to a prediction: which entities are meant, in which order, on what evidence.


def answer_with(
    question: Question, answers: Sequence[int] = (), paths: Paths = (), *, weights: Mapping[int, float] | None = None
) -> SystemAnswer:
    """Return a prediction of ``answers``, scored 1, 1/2, 1/3, ... or by weight, then of all else, scored 0.

    Each candidate has the first path that ends in it as evidence. Without an answer the system abstains and nothing is
    ranked: what was retrieved is not what the model said, and would be a hit where it is a gold. It counts as covered.
    """
    evidence: dict[int, ReasoningPath] = {}
    for path in paths:
        evidence.setdefault(end_of(path), path)
    taken = tuple(dict.fromkeys(answers))
    scores = weights or {answer: 1 / place for place, answer in enumerate(taken, start=1)}
    reached = sorted({*taken, *evidence}, key=lambda one: (one not in taken, -scores.get(one, 0.0), one))
    candidates = tuple(reached) if taken else ()
    prediction = Prediction(
        question_id=question.id,
        candidates=candidates,
        scores=tuple(scores.get(candidate, 0.0) for candidate in candidates),
        answers=taken,
        paths=tuple(evidence.get(candidate, ()) for candidate in candidates),
        covered=not set(question.answers).isdisjoint(reached),
        verdict=question.claim in taken if question.claim is not None and taken else None,
    )
    return SystemAnswer(prediction)


def meant_by_verdict(question: Question, said: Said, ends: Iterable[int]) -> list[int] | None:
    """Return what a yes or no to a true/false question means: the claim, or all else of ``ends``; None: no verdict."""
    if question.claim is None or not isinstance(said, Answers):
        return None
    text = said.verdict or " ".join(said.names[:2])  # two names are no verdict
    verdict = VERDICTS.get(text.strip(" .!").casefold())
    if verdict is None:
        return None
    return [question.claim] if verdict else [end for end in dict.fromkeys(ends) if end != question.claim]


def answer_by_name(
    search: SearchGraph, question: Question, said: Said, paths: Sequence[ReasoningPath], *, on_rows: bool = False
) -> SystemAnswer:
    """Return what a model's names mean: ends of the paths that it was shown first, then entities that are searched.

    A text that could not be read is an abstention. ``on_rows``: as of the system.
    """
    if isinstance(said, ParseFailure) or said.abstained:
        return answer_with(question, (), paths)
    meant = meant_by_verdict(question, said, map(end_of, paths))
    if meant is not None:
        found = answer_with(question, meant, paths)
        return replace(found, prediction=replace(found.prediction, verdict=question.claim in meant))
    view = search if on_rows else search.whole
    shown = {end: view.name_of(end) for end in map(end_of, paths)}
    matched = match_answers(said, shown, view, question.id)
    found = answer_with(question, matched.entities, paths)
    num_unsupported = len(set(matched.entities).difference(shown))
    return SystemAnswer(found.prediction, matched.unmatched, {"num_unsupported": num_unsupported})


# ------ What a model said after a search of its own, on the paths that it was shown.


def ask_reason(search: SearchGraph, prompts: Prompts, text: str, paths: Sequence[ReasoningPath]) -> Ask[Answers]:
    """Return the call that asks for the answers that some paths, all of one weight, support."""
    names = dict.fromkeys(search.name_of(end_of(path)) for path in with_stations(search, paths))
    shown = tuple(show_path(search, path) for path in paths)
    return Ask(ReasonInstruction(prompts), ReasonCase(text, shown, tuple(names), stations=True))


def list_paths(
    graph: KnowledgeGraph, ways: Sequence[tuple[RelationPath, Sequence[Ints]]], *, max_triples: int
) -> list[ReasoningPath]:
    """Return the reasoning paths of some ways in turns, as many as have ``max_triples`` distinct triples; one at least.

    A way is a relation path, and the entities, ascending, after 0, 1, ... steps; its first paths have an end each.
    """
    walks = [  # each end needs a triple of its own
        reasoning_paths(graph, (), path, ends=layers[-1][:max_triples].tolist(), layers=layers)
        for path, layers in ways
        if path
    ]
    found: dict[ReasoningPath, None] = {}
    triples: set[tuple[int, int, int]] = set()
    for path in chain.from_iterable(zip_longest(*walks)):
        more = triples.union((step.head, step.relation, step.tail) for step in path or ())
        if path and found and len(more) > max_triples:
            break
        triples = more
        found |= {path: None} if path else {}
    return list(found)


def with_stations(search: SearchGraph, paths: Sequence[ReasoningPath]) -> list[ReasoningPath]:
    """Return the paths, and behind them the ways to entities on them that have the name of no end.

    A question that names several things is often answered by what lies between them.
    """
    names = {search.name_of(end_of(path)) for path in paths}
    ways = (path[:length] for path in paths for length in range(1, len(path)))
    return list(dict.fromkeys([*paths, *(way for way in ways if search.name_of(end_of(way)) not in names)]))


def answer_on_paths(
    search: SearchGraph, question: Question, said: Said, paths: Sequence[ReasoningPath]
) -> SystemAnswer:
    """Return what was answered on ``paths``, for a system that walks itself."""
    if question.claim is not None:  # a path that starts at the claim supports it as well as one that ends there
        turned = [
            tuple(replace(step, reverse=not step.reverse) for step in reversed(path))
            for path in paths
            if path and ends_of(path[0])[0] == question.claim
        ]
        paths = [*paths, *turned]
    is_named = meant_by_verdict(question, said, ()) is None
    return answer_by_name(search, question, said, with_stations(search, paths) if is_named else paths, on_rows=True)
