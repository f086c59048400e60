"""Given: reasoning paths that another system retrieved, read and answered by this run's language model.

Bring your own retriever: GNN-RAG's published prompts (Mavromatis and Karypis, 2024), for one, hold its paths. The paths
are the file's, in its order. Rows beside may copy their ends, or repeat what the file's own model answered.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from kgqa_core.config_base import FileDataset, FilePath, Section, Share
from kgqa_core.config_systems import SystemType
from kgqa_core.errors import ConfigError
from kgqa_core.evaluation.metrics import normalise_name
from kgqa_core.graph.follow import end_of
from kgqa_core.graph.given import read_given
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.nsm import LabelledPath, QuestionLine
from kgqa_core.graph.search_graph import SearchGraph, is_evidence
from kgqa_core.instructions.answers import Answers, distinct_names, without_stop
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import Prompts, ScoredPath, group_paths, show_path
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import GREEDY, Decoding
from kgqa_core.questions.formats import QuestionFile, list_files, question_files
from kgqa_core.questions.link import ids_of
from kgqa_core.systems.answering import VERDICTS, answer_by_name, answer_on_paths, answer_with
from kgqa_core.systems.types import Ask, Reply, Steps, System
from kgqa_core.types import Question, ReasoningPath

MAX_WAYS = 100  # in which the names of one path may be read
FIRST_NAMES = Decoding(48, "beam", num_returns=8, num_beams=8, stop=("\n",))  # the most probable first lines


class GivenSection(Section):
    """Settings of given."""

    file: FilePath | None = None  # JSON lines as graph.given says; None: the run's question files, of format paths
    reasoning: Literal["lm", "first", "none", "given"] = "lm"  # the first path's end; all ends; what the file predicts
    order: Literal["file", "drawn"] = "file"  # of the paths; drawn by the seed and the question's id
    orders: Annotated[int, Field(ge=1, le=26)] = 1  # in which the model reads the paths; all names are answers
    names: Literal["written", "weighed"] = "written"  # weighed: ways, by how probable their ends are as the first name
    least_share: Share = 0.1  # with names: weighed, of the best way's probability; what is less is no answer
    whole_ways: bool = False  # does the name of one end stand for all that the same relations lead to from its topic?
    scores: Literal["real", "hidden"] = "hidden"  # after each path the file's, or none


def ask_in_orders(
    instruction: ReasonInstruction, case: ReasonCase, orders: int, decoding: Decoding
) -> list[Ask[Answers]]:
    """Return the calls that show the paths in so many orders of their ways; the first order is the case's own.

    Paths of one way stay together in the others. Orders are drawn by the question; two ways have but two.
    """
    ways, chance = list(dict.fromkeys((path.start, path.steps) for path in case.paths)), random.Random(case.question_id)
    drawn = [tuple(ways), *(tuple(chance.sample(ways, len(ways))) for _ in range(4 * orders) if orders > 1)]
    asks = [Ask(instruction, case, decoding)]
    for order in islice(dict.fromkeys(drawn), 1, orders):
        turned = sorted(case.paths, key=lambda path: order.index((path.start, path.steps)))
        asks.append(Ask(instruction, replace(case, paths=tuple(turned)), decoding))
    return asks


def all_names(replies: Sequence[Reply[Answers]], question: Question) -> tuple[Answers | ParseFailure, float | None]:
    """Return the names that any order brings, those of more orders first, and the share of orders that name the first.

    Where several ways lead to answers, a reader often stops after those that it meets first (ours). Of yes and no the
    more frequent counts. With one order alone the share is None.
    """
    said = [reply.result for reply in replies]
    read = [one for one in said if isinstance(one, Answers)]
    if question.claim is not None:
        read = [replace(one, names=(one.verdict,)) if one.verdict else one for one in read]
    if len(said) == 1 or not read:
        return said[0], None
    votes = Counter(chain.from_iterable({normalise_name(without_stop(name)) for name in one.names} for one in read))
    names = distinct_names(chain.from_iterable(one.names for one in read))
    ranked = tuple(sorted(names, key=lambda name: -votes[normalise_name(without_stop(name))]))
    ranked = ranked[:1] if votes.keys() <= VERDICTS.keys() else ranked  # yes and no are no two names
    sure = max(votes.values()) / len(said) if votes else None
    return Answers(ranked, all(one.abstained for one in read)), sure


def weigh_ways(
    replies: Sequence[Reply[Answers]], paths: Sequence[ScoredPath], least_share: float
) -> tuple[Answers | ParseFailure, float | None]:
    """Return all ends of the ways that are probable enough, the best way's first, and that way's probability (ours).

    The texts of a reply are its most probable first names. A way has the probability of those among its ends: shared
    out over all that any way ends at, and the mean over the replies. Where no text is an end, the first text counts.
    """
    ways = [list(ends) for ends in group_paths(paths).values()]
    folded = [dict.fromkeys(map(normalise_name, ends)) for ends in ways]
    known, sums, num_read = set(chain.from_iterable(folded)), [0.0] * len(ways), 0
    for reply in replies:
        said = defaultdict[str, float](float)  # name -> its probability as the first one
        for text in reply.texts:
            if not text.problem and (name := normalise_name(without_stop(text.text))) in known:
                said[name] += math.exp(text.log_prob) if text.log_prob is not None else 1.0
        if (total := sum(said.values())) > 0:
            num_read += 1
            for place, names in enumerate(folded):
                sums[place] += sum(said.get(name, 0.0) for name in names) / total
    if not num_read:
        return replies[0].result, None
    most = max(sums)
    order = sorted(range(len(ways)), key=lambda place: -sums[place])
    taken = [ways[place] for place in order if sums[place] > 0 and sums[place] >= least_share * most]
    return Answers(distinct_names(chain.from_iterable(taken))), min(1.0, most / num_read)


def with_whole_ways(names: Sequence[str], paths: Sequence[ScoredPath]) -> tuple[str, ...]:
    """Return the names, and behind them the other ends of each way that leads to one of them (ours)."""
    said = {normalise_name(without_stop(name)) for name in names}
    ways = [ends for ends in group_paths(paths).values() if not said.isdisjoint(map(normalise_name, ends))]
    return distinct_names(chain(names, *ways))


@dataclass(frozen=True, slots=True)
class Given(System):
    """All paths that a file has for a question, in one prompt.

    A question without a path is not asked about: the system abstains.
    """

    search: SearchGraph  # whose graph is that of names, no subgraphs
    prompts: Prompts
    lines: dict[str, QuestionLine]  # by question id
    settings: GivenSection
    seed: int = 0
    needs_topic: ClassVar[bool] = False
    on_rows: ClassVar[bool] = False

    def steps(self, question: Question, prepared: None) -> Steps:
        """Show the paths, and ask once; or copy."""
        line, kept = self.lines.get(question.id), self.settings
        found = [(steps, score) for path, score in (line.paths if line else ()) if (steps := self._resolve(path))]
        num_lost = len(line.paths) - len(found) if line else 0
        if kept.order == "drawn":
            random.Random(f"{self.seed}:{question.id}").shuffle(found)
        paths = [steps for steps, _ in found]
        counts = {"num_paths": len(paths), "num_not_in_graph": num_lost, "has_no_line": float(line is None)}
        if kept.reasoning == "given":
            answer = answer_by_name(self.search, question, Answers(line.said if line else (), not line), paths)
        elif kept.reasoning != "lm" or not paths:
            ends = list(map(end_of, paths))
            answer = answer_with(question, ends[:1] if kept.reasoning == "first" else ends, paths)
        else:
            shown = tuple(show_path(self.search, steps, score) for steps, score in found)
            names = tuple(dict.fromkeys(self.search.name_of(end_of(path)) for path in paths))  # retrievers' candidates
            case = ReasonCase(question.text, shown, names, question_id=question.id)
            instruction = ReasonInstruction(self.prompts, scored=kept.scores == "real")
            weighed = kept.names == "weighed" and question.claim is None  # yes and no are no ends
            decoding = FIRST_NAMES if weighed else GREEDY
            replies = yield ask_in_orders(instruction, case, kept.orders, decoding)
            said, sure = weigh_ways(replies, shown, kept.least_share) if weighed else all_names(replies, question)
            if kept.whole_ways and isinstance(said, Answers):
                said = replace(said, names=with_whole_ways(said.names, shown))
            answer = replace(answer_on_paths(self.search, question, said, paths), confidence=sure)
        return replace(answer, counts={**answer.counts, **counts})

    def _resolve(self, path: LabelledPath) -> ReasoningPath | None:
        """Return a path of names in the graph; None where it does not stand there, in either direction of a relation.

        Of entities that share a name those are meant between which the path leads; of several ways the first counts.
        """
        graph, none = self.search.graph, ReasoningPath()
        ways = [(none, start) for start in ids_of(path[0], graph, topic=True)]  # (the path so far, where it ends)
        for label, name in zip(path[1::2], path[2::2], strict=True):
            forward = to_relations(graph, (label,)) or ()
            backward = [(relation + graph.num_relations) % graph.identity for relation in forward]
            longer = []
            for (steps, here), end in product(ways[:MAX_WAYS], ids_of(name, graph)):
                tried = [graph.step(here, relation, end) for relation in (*forward, *backward)]
                longer += [((*steps, step), end) for step in tried if is_evidence(graph, (step,), end)]
            ways = longer
        return ways[0][0] if ways else None


def _files(config: Any, settings: GivenSection) -> dict[str, Path]:
    """Return the files that hold the paths, by names that are free of this machine."""
    if settings.file is not None:
        return {"paths": settings.file}
    dataset = config.dataset
    if not isinstance(dataset, FileDataset) or dataset.questions.format != "paths":
        raise ConfigError("systems.given.file: name the file with the paths; only questions of format paths bring them")
    return question_files(dataset.questions)


def _open_given(parts: Any) -> Given:
    file = parts.settings.file  # what else there may be, ``_files`` says
    files = [QuestionFile(file)] if file else list_files(parts.pipeline.config.dataset.questions)
    lines = read_given({one.path: one.stem for one in files})
    return Given(parts.search.whole, parts.prompts, lines, parts.settings, parts.seed)


GIVEN = SystemType(
    _open_given,
    settings=GivenSection,
    roles=lambda settings: ("reason",) if settings.reasoning == "lm" else (),
    files=_files,
)
