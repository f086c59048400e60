"""choose: labelled candidates with evidence (EtD, DualR); enough_information: may the search end? (Think-on-Graph).

The wording of the paper lets the model answer from its own knowledge, so a text is read in this order: a label, else a
candidate's name, else a free answer, which nothing supports. Where label and name disagree, the label wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import ClassVar

from kgqa_core.evaluation.metrics import normalise_name
from kgqa_core.instructions.answers import AS_ANSWER, BOXED, BULLET, LEAD, Answers, find_names, parse_answers
from kgqa_core.instructions.render import NOTHING, Names, ScoredPath, escape, render_lines, render_paths, render_triples
from kgqa_core.instructions.types import Case, Instruction, ParseFailure
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import Constraint
from kgqa_core.types import Prediction

MAX_TEXT = 20_000  # characters of an answer that are read

_SHORT = r"(?:[A-Z]{1,2})"  # a label
_BEGINS = re.compile(rf"\W*({_SHORT})(?:[.):\]]|\*\*)(.*)")  # a line "A. 1989", "(B)", "**C**"
_GAP = r"[\s,;\"'*()\[\]]+"  # between two labels
# A line "A, C", '["A", "C"]' or "Both A and C", not "C++".
_ONLY = re.compile(rf"\W*(?:[Bb]oth\s+)?{_SHORT}(?:{_GAP}(?:and{_GAP})?{_SHORT})*[^\w+#]*")
_LONE = re.compile(r"\W*[a-z]\W*")  # a reply "a": a label, where it is no name
_WORD = re.compile(rf"(?<![\w']){_SHORT}(?![\w'+#])")  # a label in any text
_LISTED = re.compile(rf"(?:[\"*)\s]*(?:,\s*(?:and\s+)?|\sand\s+)[\"*(]*{_SHORT})+(?=\W*\Z|\.\s)")  # then: ", B and C."
# "The answer is B.", "option (C)", "I'd say C", "Answers: **A**, B": the label, and what stands behind it.
_STATED = re.compile(
    rf"(?:{LEAD}|\b(?:answers?|options?|choices?|labels?)\s*+(?:is|are|:)?\s*+"
    r"|\bI(?:['’]d|\s+would)?\s+(?:say|choose|pick|go\s+with|think(?:\s+it\s+is)?)\s+)"
    rf"(?:\*\*|\(|\[|\"|option\s+|label\s+|both\s+)*({_SHORT})"
    r"(?=[.):\],;*\"\n]|\s*\Z|\s+and\s|\s+\()(?=(.{0,300}))",
    re.IGNORECASE,
)
_INLINE = re.compile(rf"(?<![\w'])\(?({_SHORT})[.):](?=\s)\s*(.{{0,300}})")  # a label in passing: "I take B) Rome"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate answer as the prompt shows it."""

    name: str
    score: float  # its probability (EtD Eq. 3), over all candidates or renormalised over those shown
    evidence: tuple[str, ...] = ()  # triples as ``render.render_triples`` has them


@dataclass(frozen=True, slots=True)
class ChooseCase(Case):
    """A question with its candidates, best first."""

    candidates: tuple[Candidate, ...] = ()
    right: tuple[int, ...] | None = None  # taught: indices of the right candidates


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen."""

    chosen: tuple[int, ...]  # indices of candidates; empty: none of them
    by: str  # "label", "name", "plan", "free" (an answer of the model's own, unsupported) or "abstained"
    free: tuple[str, ...] = ()  # names of a free answer
    conflict: bool = False  # a label was followed by the name of another candidate
    verdict: str = field(default="", compare=False)  # of ``Answers``


@dataclass(frozen=True, slots=True)
class Shown:
    """What candidates show; each off is a variant of EtD's and DualR's Table 4."""

    labels: bool = True  # else lists of names, of probabilities and of facts, side by side (w/o mcp)
    names: bool = True  # else facts with probabilities, without labels (w/o cand)
    probabilities: bool = True
    evidence: bool = True


@dataclass(frozen=True)
class ChooseInstruction(Instruction[ChooseCase, Choice]):
    """The instruction ``choose``."""

    name: ClassVar[str] = "choose"
    part: ClassVar[str] = "candidates"
    shown: Shown = field(default_factory=Shown)
    only_candidates: bool = False  # constrain to one label with its name (unlabelled: a name); papers leave it free

    @property
    def file(self) -> str:
        """Return the name of the prompt file: without labels none can be asked for."""
        return self.name if self.shown.labels and self.shown.names else f"{self.name}_unlabelled"

    def values(self, case: ChooseCase) -> dict[str, str]:
        """Return what the prompt shows."""
        return {"candidates": render_candidates(case.candidates, self.shown)}

    def target(self, case: ChooseCase) -> str | None:
        """Return every right candidate, one per line; None where none of them is right."""
        return "\n".join(_line(case, index) for index in case.right) if case.right else None

    def parse(self, text: str, case: ChooseCase) -> Choice | ParseFailure:
        """Return what a text chooses: by label, else by name, else freely."""
        text = BOXED.sub(AS_ANSWER, text[:MAX_TEXT])
        told = [text, text.upper()] if _LONE.fullmatch(text) else [text]
        labelled = [_by_label(one, case.candidates) if self.file == self.name else None for one in told]
        if named := labelled[0] or _by_name(text, case) or labelled[-1]:
            return named
        said = parse_answers(text)
        if isinstance(said, ParseFailure):
            return said
        return Choice((), "abstained") if said.abstained else Choice((), "free", said.names, verdict=said.verdict)

    def constraint(self, case: ChooseCase) -> Constraint | None:
        """Return the candidates, where the model is held to them."""
        is_labelled = self.file == self.name
        lines = [_line(case, at) if is_labelled else escape(one.name) for at, one in enumerate(case.candidates)]
        return Choices(lines) if self.only_candidates and lines else None


def show_candidates(names: Names, found: Prediction, count: int) -> tuple[Candidate, ...]:
    """Return the first ``count`` candidates of an explorer as a prompt shows them."""
    rows = zip(found.candidates[:count], found.scores, chain(found.paths, repeat(())), strict=False)
    return tuple(
        Candidate(names.name_of(entity), score, tuple(render_triples(names, (step,)) for step in path))
        for entity, score, path in rows
    )


def label_of(index: int) -> str:
    """Return A, B, ... Z, AA, AB, ... for 0, 1, ..."""
    head, last = divmod(index, 26)
    return (label_of(head - 1) if head else "") + chr(ord("A") + last)


def render_candidates(candidates: Sequence[Candidate], shown: Shown) -> str:
    """Return the candidates as the prompt shows them, one per line; without labels in the forms of EtD's Table 14."""
    lines: list[str] = []
    if shown.names and not shown.labels:
        facts = dict.fromkeys(fact for candidate in candidates for fact in candidate.evidence)
        lines = [f"Names: [{', '.join([escape(candidate.name) for candidate in candidates])}]"]
        shares = ", ".join([f"{candidate.score:.3f}" for candidate in candidates])
        lines += [f"Probabilities: [{shares}]"] if shown.probabilities else []
        lines += [f"Evidence: [{', '.join(facts)}]"] if shown.evidence else []
        return "\n".join(lines)
    for index, candidate in enumerate(candidates):
        parts = [f"{label_of(index)}.", escape(candidate.name)] if shown.names else ["-"]
        parts += [f"(probability {candidate.score:.3f})"] if shown.probabilities else []
        parts += [f"{{evidence: {', '.join(candidate.evidence)}}}"] if shown.evidence and candidate.evidence else []
        lines.append(" ".join(parts))
    return "\n".join(lines) or NOTHING


def _line(case: ChooseCase, index: int) -> str:
    return f"{label_of(index)}. {escape(case.candidates[index].name)}"


def _by_label(text: str, candidates: Sequence[Candidate]) -> Choice | None:
    """Return what lines that begin with labels choose, else the last statement, else the first label in passing.

    What begins like a label may be a name with initials, "C. S. Lewis": then it is the candidate of that name.
    """
    labels = {label_of(index): index for index in range(len(candidates))}
    names = [normalise_name(escape(candidate.name)) for candidate in candidates]

    def meant_by(match: re.Match[str]) -> int | None:
        """Return which candidate a label, or a name that begins like one, stands for."""
        label, rest = match[1], match[2]
        own, said = labels.get(label), normalise_name(match.string[match.start(1) : match.end(2)])
        begun = [name for name in names if len(name) > len(label) and said.startswith(name)]
        has_own_name = own is not None and normalise_name(rest).startswith(names[own])
        return names.index(max(begun, key=len)) if begun and not has_own_name else own

    def labels_in(form: re.Pattern[str]) -> list[re.Match[str]]:
        return [match for match in form.finditer(text) if match[1] in labels and meant_by(match) == labels[match[1]]]

    found: dict[int, str | None] = {}  # with what stands behind the label; None: by name
    for line in text.split("\n"):
        match = _BEGINS.match(line := BULLET.sub("", line))
        if match and (index := meant_by(match)) is not None:
            found.setdefault(index, match[2] if index == labels.get(match[1]) else None)
        elif _ONLY.fullmatch(line[:200]):
            for word in filter(labels.__contains__, _WORD.findall(line)):
                found.setdefault(labels[word], "")
    if not found and (stated := labels_in(_STATED)[-1:] or labels_in(_INLINE)[:1]):
        label, behind = stated[0][1], stated[0][2]
        others = _WORD.findall(listed[0]) if (listed := _LISTED.match(behind)) else []
        found = {labels[label]: behind, **{labels[word]: "" for word in others if word in labels}}

    def contradicts(index: int, behind: str) -> bool:
        """Say whether behind a candidate's label stands the name of another."""
        said = normalise_name(behind.strip(" .:)-*\"'"))
        begun = [name for name in names if name and said.startswith(name)]
        if said.startswith(own := names[index]):  # a longer name begins alike
            begun = [name for name in begun if len(name) > len(own) and not said[len(name) :][:1].isalnum()]
        return bool(begun)

    labelled = {index: behind for index, behind in found.items() if behind is not None}
    conflict = any(contradicts(index, behind) for index, behind in labelled.items())
    return Choice(tuple(found), "label", conflict=conflict) if labelled else None


def _by_name(text: str, case: ChooseCase) -> Choice | None:
    """Return the candidates whose names are lines of the text, else the first one that it mentions.

    A candidate that the question names is meant only where no other is mentioned.
    """
    names = [candidate.name for candidate in case.candidates]
    answers = parse_answers(text, names)
    answers = answers if isinstance(answers, Answers) else Answers(())
    given = list(map(normalise_name, answers.names))
    chosen = [index for index, name in enumerate(names) if normalise_name(name) in given]
    chosen.sort(key=lambda index: given.index(normalise_name(names[index])))  # as they are answered, not as shown
    if not chosen and (named := find_names(text, names)):
        asked = find_names(case.question, names)
        chosen = [names.index(next((name for name in named if name not in asked), named[0]))]
    return Choice(tuple(chosen), "name", verdict=answers.verdict) if chosen else None


# ------ enough_information: do these paths answer the question? (Think-on-Graph's stopping rule).


YES, NO = "yes", "no"

# What a text begins with, else the last: "there is no doubt: yes".
_VERDICT = re.compile(r"(?:\W*|.*(?<![\w'-]))(yes|no)(?![\w-])", re.IGNORECASE | re.DOTALL)
_INSUFFICIENT = re.compile(r"\b(?:not (?:enough|sufficient)|insufficient)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EnoughCase(Case):
    """A question with the evidence found so far."""

    topics: tuple[str, ...] = ()  # names
    paths: tuple[ScoredPath, ...] = ()
    enough: bool | None = None  # taught: does the evidence reach an answer?


class EnoughInstruction(Instruction[EnoughCase, bool]):
    """The instruction ``enough_information``."""

    name: ClassVar[str] = "enough_information"
    part: ClassVar[str] = "paths"

    def values(self, case: EnoughCase) -> dict[str, str]:
        """Return what the prompt shows."""
        return {"topics": render_lines(map(escape, case.topics)), **render_paths(case.paths)}

    def target(self, case: EnoughCase) -> str | None:
        """Return yes or no."""
        return None if case.enough is None else YES if case.enough else NO

    def parse(self, text: str, case: EnoughCase) -> bool | ParseFailure:
        """Return the verdict that a text begins with, else its last."""
        if verdict := _VERDICT.match(text):
            return verdict[1].lower() == YES
        return False if _INSUFFICIENT.search(text) else ParseFailure("neither yes nor no")

    def constraint(self, case: EnoughCase) -> Constraint | None:
        """Return the two verdicts."""
        return Choices((YES, NO))
