"""Questions linked to a graph: the names in a text, the masking of mentions, and whole files of questions."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from threading import Lock

from kgqa_core.errors import InputError, LinkError, shorten
from kgqa_core.graph.input_files import MAX_REJECT_TEXT, UNLINKED
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import Fault, Loaded, QuestionFile, RawQuestion, Reader
from kgqa_core.types import Question, Reject, Span, Split

TOPIC = "[topic]"
CLAIM = "[claim]"
NUM_NEAREST = 5
MAX_CHARACTERS = 20_000  # of a question: longer ones are rejected
MAX_COMPARED = 300  # characters of a topic that is not there, or a question, that are compared with the names
MAX_WORDS = 20  # of an unlinked question that are compared with the names

TRAIN_SHARE, HELD_SHARE = 0.8, 0.1  # of a single file that is split by hash: train, and each of dev and test

TOO_LONG = f"more than {MAX_CHARACTERS} characters"
DUPLICATE_ID = "id used before"
NO_ANSWER, NO_TOPIC, NO_MENTION = UNLINKED
_ONE_LOOK = Lock()  # a look for near names copies all of them: threads of a server take turns
NO_CLAIM = "claim not in the graph"
SHARED_CLAIM = "claim names several entities"


def find_mention(text: str, graph: KnowledgeGraph) -> tuple[Span, tuple[int, ...]] | None:
    """Return where the longest, of equals the first, entity name stands between word boundaries, and all who bear it.

    Names that stand there letter for letter and hold a capital come first: a graph may well have entities called
    "film" or "director". Without one, case does not count, and all entities whose name differs in case alone are meant.
    """
    exact = [span for span in _name_spans(text, graph, folded=False) if any(map(str.isupper, text[slice(*span)]))]
    spans = exact or _name_spans(text, graph, folded=True)
    if not spans:
        return None
    span = max(spans, key=lambda span: (span[1] - span[0], -span[0]))
    name = text[slice(*span)]
    return span, graph.ids_of_name(name) if exact else graph.ids_of_folded_name(name)


def _name_spans(text: str, graph: KnowledgeGraph, *, folded: bool) -> list[Span]:
    """Return every span that is a name with a letter or digit: from each start on, as long as some name begins so."""
    index = graph.folded_index if folded else graph.name_index
    edges = [place for place in range(len(text) + 1) if _is_boundary(text, place)]
    spans = []
    for number, start in enumerate(edges):
        for later in range(number + 1, len(edges)):  # by number: a slice would copy the rest of the text's edges
            end = edges[later]
            piece = (text[start:end].casefold() if folded else text[start:end]).encode("utf-8", "surrogatepass")
            row = index.first(piece)
            if not index.starts_with(row, piece):
                break
            if index.key(row) == piece and any(map(str.isalnum, text[start:end])):
                spans.append((start, end))
    return spans


def _is_boundary(text: str, place: int) -> bool:
    return not (0 < place < len(text) and is_of_word(text[place - 1]) and is_of_word(text[place]))


def is_of_word(character: str) -> bool:
    """Is it a letter, a digit, or an accent or vowel sign on one? What makes an emoji of a sign is not."""
    return character.isalnum() or (unicodedata.category(character).startswith("M") and character != "\ufe0f")


def ids_of(value: str, graph: KnowledgeGraph, *, topic: bool = False) -> tuple[int, ...]:
    """Return what ``value`` means: the entity of this label, else the literals of this text, else all of this name.

    As a topic, which has to lead on, it means what is no literal where that has the name, too.
    """
    entity_id = graph.ids_of_label(value)
    named = graph.ids_of_name(value) if entity_id is None else (entity_id,)
    if len(named) < 2:  # nearly always
        return named
    return tuple(one for one in named if graph.label_of(one).startswith('"') is not topic) or named


def require_ids(value: str, graph: KnowledgeGraph, *, near: bool = True) -> tuple[int, ...]:
    """Return what a topic means; LinkError where that is nothing, with the five nearest names if ``near``."""
    found = ids_of(value, graph, topic=True)
    if not found:
        fault = f"{shorten(value)} is no entity of the graph, neither a label nor a name (upper and lower case count)."
        raise _link_error(fault, value, graph, near)
    return found


def _link_error(fault: str, value: str, graph: KnowledgeGraph, near: bool) -> LinkError:
    if not near:
        return LinkError(fault)
    with _ONE_LOOK:
        names = nearest_names(value, graph)
    return LinkError(f"{fault} Nearest names in the graph: {', '.join(spell(name, value) for name in names)}.", names)


def spell(name: str, value: str) -> str:
    """Return a name in quotes, its letters by number where ``value`` only looks like it: NFC, NFD, no-break blanks."""
    plain, other = (unicodedata.normalize("NFKC", text) for text in (name, value))
    return ascii(name) if name not in value and plain in other else shorten(name, 60)


def nearest_names(value: str, graph: KnowledgeGraph) -> list[str]:
    """Return the five entity names most like ``value`` or some words in it. Reads all names: for errors only."""
    from rapidfuzz import fuzz, process

    value = value[:MAX_COMPARED]  # all of ten million would keep a server busy for an hour
    names = sorted(set(graph.entity_names))
    folded = [name.casefold() for name in names]
    words = value.casefold().split()[:MAX_WORDS]
    windows = {" ".join(words[i : i + size]) for size in (1, 2, 3, 4) for i in range(len(words) - size + 1)}
    best: dict[int, float] = {}
    for window in sorted({value.casefold(), *windows}):
        for name, score, row in process.extract(window, folded, scorer=fuzz.ratio, limit=NUM_NEAREST):
            length = len(window) + len(name)
            common = round(score * length / 200)
            # Characters in common, since short common words match something anyway, less those that are not.
            near = max(3 * common - length, common / 2 if window in name else -length)
            best[row] = max(near, best.get(row, near))
    return [names[row] for row in sorted(best, key=lambda row: (-best[row], row))[:NUM_NEAREST]]


def spans_of(text: str, name: str) -> list[Span]:
    """Return where ``name`` stands in ``text`` between word boundaries: exact case, else any case."""
    for flags in (re.NOFLAG, re.IGNORECASE):
        found = [match.span() for match in re.finditer(re.escape(name), text, flags)]
        found = [span for span in found if _is_boundary(text, span[0]) and _is_boundary(text, span[1])]
        if found:
            return found
    return []


def mask_spans(text: str, spans: Sequence[tuple[Span, str]]) -> str:
    """Replace each span by its placeholder; of spans that overlap the longest counts."""
    covered, taken = bytearray(len(text)), []
    for (start, end), placeholder in sorted(spans, key=lambda item: (item[0][0] - item[0][1], item[0])):
        if not any(covered[start:end]):
            covered[start:end] = b"\1" * (end - start)
            taken.append((start, end, placeholder))
    for start, end, placeholder in sorted(taken, reverse=True):
        text = text[:start] + placeholder + text[end:]
    return text


def mask_topics(text: str, names: Iterable[str], *, claims: Iterable[str] = ()) -> str:
    """Return ``text`` with every mention of a topic's name replaced by ``[topic]`` and of a claim by ``[claim]``."""
    wanted = [(name, TOPIC) for name in names] + [(name, CLAIM) for name in claims]
    return mask_spans(text, [(span, placeholder) for name, placeholder in wanted for span in spans_of(text, name)])


# ------ From what a file says to a Question: labels and names become entity ids, mentions become placeholders.


def link_file(
    file: QuestionFile,
    loaded: Loaded,
    *,
    read: Reader,
    resolver: Resolver,
    to_dev: Container[str] = (),
    dropped: Container[str] = (),
) -> Iterator[Question]:
    """Yield a file's questions, linked, as they are read; its rejects and notes go to ``loaded``.

    A file without a split is split by hash. ``to_dev`` and ``dropped`` hold ids of questions that a variant moves to
    the dev split, or leaves out. An id that ``loaded`` has a question of is used.
    """
    used = {question.id for question in loaded.questions}
    for number, line, parsed in read(file):
        if isinstance(parsed, Fault):
            found: Question | Fault = parsed
        elif len(parsed.text) > MAX_CHARACTERS:
            found = Fault(TOO_LONG)
        elif parsed.id in used:
            found = Fault(DUPLICATE_ID)
        elif parsed.id in dropped:
            continue
        else:
            found = resolver.resolve(parsed, "dev" if parsed.id in to_dev else file.split, loaded)
        if isinstance(found, Fault):
            loaded.reject(Reject(file.shown, number, found.reason, line[:MAX_REJECT_TEXT]), unknown=found.unknown)
        else:
            used.add(found.id)
            yield found


class Resolver:
    """Links raw questions to one graph; looks each label or name up once."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph
        self.ids_of = lru_cache(maxsize=2**20)(lambda value, topic=False: ids_of(value, graph, topic=topic))
        inverses = enumerate(graph.inverse_labels, graph.num_relations)
        given = (*enumerate(graph.relation_names), *enumerate(graph.relation_labels), *inverses)
        self._relations = {called: relation for relation, called in given if called is not None}

    def resolve(self, raw: RawQuestion, split: Split | None, loaded: Loaded) -> Question | Fault:
        """Return the linked question, or why it cannot be used; doubts that do not reject it go to ``loaded``.

        Where ``split`` is None, a hash of ``split_key`` decides.
        """
        if split is None:  # before anything is asked of the graph
            split = split_of(split_key(raw, loaded))
        name_of = self.graph.name_of
        claim = () if raw.claim is None else self.ids_of(raw.claim)
        claims = {*map(name_of, claim), *([raw.claim] if raw.claim else [])}
        named = {"topic": raw.topics, "answer": dict.fromkeys(raw.answers), "claim": filter(None, [raw.claim])}
        loaded.missing += [(raw.id, what, one) for what, some in named.items() for one in some if not self.ids_of(one)]
        topics = self._topics(raw, claims)
        if isinstance(topics, Fault):
            if not raw.keep:
                return topics
            topics = ()
        answers = tuple(sorted({entity for answer in raw.answers for entity in self.ids_of(answer)}))
        if raw.answers and not answers and not raw.keep:
            return Fault(NO_ANSWER, unknown=raw.answers[0])
        if raw.claim is not None and len(claim) != 1:
            return Fault(SHARED_CLAIM) if claim else Fault(NO_CLAIM, unknown=raw.claim)
        if raw.mentions:
            masked = mask_spans(raw.text, [(span, TOPIC) for span in raw.mentions])
        else:
            masked = mask_topics(raw.text, {*raw.topics, *map(name_of, topics)}, claims=claims)
        steps = [self._step(label) for label in raw.chain or ()]
        question = Question(
            id=raw.id,
            text=raw.text,
            masked=masked,
            topics=topics,
            answers=answers,
            split=split,
            hops=raw.hops,
            chain=None if raw.chain is None or None in steps else tuple(step for step in steps if step is not None),
            claim=claim[0] if claim else None,
            verdict=raw.verdict,
        )
        self._note(raw, question, loaded)
        return question

    def _topics(self, raw: RawQuestion, claims: Iterable[str]) -> tuple[int, ...] | Fault:
        if not raw.topics and not raw.keep:
            # "Did Hitchcock direct Vertigo?": what is claimed is no topic
            claimed = [(span, " ") for name in claims for span in spans_of(raw.text, name)]
            mention = find_mention(mask_spans(raw.text, claimed), self.graph)
            return Fault(NO_MENTION, unknown=raw.text) if mention is None else mention[1]
        topics = {entity for topic in raw.topics for entity in self.ids_of(topic, topic=True)}
        if not topics and raw.link and (mention := find_mention(raw.text, self.graph)) is not None:
            return mention[1]
        return tuple(sorted(topics)) or Fault(NO_TOPIC, unknown=next(iter(raw.topics), ""))

    def _step(self, label: str) -> int | None:
        if label in self._relations:  # first, in case a label itself begins with "~"
            return self._relations[label]
        relation = self._relations.get(label.removeprefix("~")) if label.startswith("~") else None
        return None if relation is None else (relation + self.graph.num_relations) % (2 * self.graph.num_relations)

    def _note(self, raw: RawQuestion, question: Question, loaded: Loaded) -> None:
        for value in (*raw.topics, *raw.answers):
            ids = self.ids_of(value)
            if len(ids) != 1:
                kind = "shared_name_used" if ids else "unknown_entity"
                loaded.note(kind, question.split, f"{raw.id}: {value}")
        doubts = {
            "partial_gold": not all(map(self.ids_of, raw.answers)),
            "duplicate_gold": len(set(raw.answers)) < len(raw.answers),
            "no_topic": not question.topics,
            "topic_not_in_text": bool(question.topics) and TOPIC not in question.masked,
            "no_gold": not raw.answers and raw.claim is None,
        }
        for kind, is_so in doubts.items():
            if is_so:
                loaded.note(kind, question.split, raw.id)
        if raw.chain is not None and question.chain is None:
            loaded.note("unknown_chain_relation", question.split, f"{raw.id}: {' '.join(raw.chain)}")


def split_key(raw: RawQuestion, loaded: Loaded) -> str:
    """Return what decides a question's split where its file has none: its id, and no graph, which may change.

    An id that may count lines would move with them: then it is the text, its topics masked as the file names them. Of
    repeats the first decides for all.
    """
    text = "\x1f".join([mask_topics(raw.text, raw.topics), *sorted(raw.topics)])
    key = loaded.key_of_text.setdefault(text, text if re.search(r"-\d+$", raw.id) else raw.id)
    loaded.split_keys[raw.id] = key
    return key


def split_of(key: str) -> Split:
    """Return the split, 80/10/10, that a key of ``split_key`` means."""
    share = hash_share(key)
    return "train" if share < TRAIN_SHARE else "dev" if share < TRAIN_SHARE + HELD_SHARE else "test"


def hash_share(key: str) -> float:
    """Return a number in [0, 1) that a key decides."""
    return hash_number(key) / 2**64


def hash_number(*parts: str) -> int:
    """Return a number of 64 bits that some texts decide."""
    seeded = "\x1f".join(("0", *parts))  # another seed than 0 would move all questions
    return int.from_bytes(hashlib.sha256(seeded.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def link_question(text: str, graph: KnowledgeGraph, *, topics: Sequence[str] = (), near: bool = True) -> Question:
    """Return a question without golds, as a person asks it; ``topics``: labels or names, else by ``find_mention``.

    Raises LinkError where the text holds none or the graph lacks a topic; ``near``: it names the five nearest names.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"the question {shorten(text, 60)} has {TOO_LONG}")
    entities = {entity for topic in topics for entity in require_ids(topic, graph, near=near)}
    if not topics:
        mention = find_mention(text, graph)
        if mention is None:
            fault = (
                f"no entity name stands in the question {shorten(text)}. Name the topic: --topic NAME, or field topic."
            )
            raise _link_error(fault, text, graph, near)
        entities = set(mention[1])
    masked = mask_topics(text, {*topics, *map(graph.name_of, entities)})
    return Question("asked", text, masked, topics=tuple(sorted(entities)), answers=(), split="test")
