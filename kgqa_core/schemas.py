"""Every Parquet schema at rest, in one place. A column is renamed here or nowhere."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

TEXT, FLAG, ID, COUNT, NUMBER = pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float64()
IDS, TEXTS = pa.list_(ID), pa.list_(TEXT)


def _null(kind: Any) -> pa.Field:
    return pa.field("", kind)


def _table(*first: pa.Field, **columns: Any) -> pa.Schema:
    """Return a schema of the columns ``first``, then those given by name: never null, unless given as ``_null``."""
    fields = {name: kind if isinstance(kind, pa.Field) else pa.field("", kind, False) for name, kind in columns.items()}
    return pa.schema([*first, *(field.with_name(name) for name, field in fields.items())])


ENTITIES = _table(
    entity_id=ID,  # 0..N-1, in sorted order of label
    label=TEXT,  # the key that the triples use
    name=TEXT,  # what people call it; = label where no names are given
    kind=_null(TEXT),  # literal; entity: has a name or alias; else cvt (a MID), foreign, iri or blank. null: not told
    datatype=_null(TEXT),  # of a literal: IRI; null: a plain text, or not told
    language=_null(TEXT),  # of a literal: tag in lower case
)
ALIASES = _table(entity_id=ID, alias=TEXT)  # another name, in the language of the names
TYPES = _table(entity_id=ID, type=TEXT)  # label of the type
HUBS = _table(
    label=TEXT,  # of the entity that the triples were walked from
    relation=TEXT,
    direction=TEXT,  # forward: the entity is the head; backward: the tail
    hop=ID,
    degree=COUNT,  # distinct triples of the group
    kept=COUNT,
)
REACHED_TOPICS = _table(label=TEXT, entity_id=_null(ID))  # null: in no triple of the dump
RELATIONS = _table(
    relation_id=ID,  # 0..R-1, in sorted order of label
    label=TEXT,
    name=TEXT,  # unique; what plans, prompts and encodings call it: = label where nothing else is known
    num_triples=COUNT,
    inverse=_null(TEXT),  # label that the file gives the relation walked backwards; null: none
)
TRIPLES = _table(head=ID, relation=ID, tail=ID)
SUBGRAPHS = _table(
    question_id=TEXT,
    num_entities=COUNT,  # of its triples, its topics and its answers
    num_triples=COUNT,  # distinct
    holds_answer=FLAG,  # does an answer lie in a triple?
    digest=TEXT,  # of its triples by label, whatever their ids: graph.csr.digest_triples
    num_capped=_null(COUNT),  # groups walked in part; null where it was not cut from a graph
    stopped=_null(FLAG),  # did the limit of triples end the walk? null where it was not cut
)
SUBGRAPH_TRIPLES = _table(question_id=TEXT, head=ID, relation=ID, tail=ID)  # ids of the graph it was cut from
NEIGHBOURHOOD = _table(head_label=TEXT, head_name=TEXT, relation=TEXT, tail_label=TEXT, tail_name=TEXT)
QUESTIONS = _table(
    id=TEXT,
    text=TEXT,
    masked=TEXT,
    topics=IDS,
    answers=IDS,
    split=TEXT,
    hops=_null(ID),
    chain=_null(IDS),
    claim=_null(ID),
    verdict=_null(FLAG),
)
COVERAGE = _table(
    split=TEXT,
    steps=ID,
    num_questions=COUNT,  # also those that nothing can answer
    num_with_topic=COUNT,  # a topic is in the graph
    num_with_answer=COUNT,  # an answer lies in a triple
    num_any=COUNT,  # an answer is at most so many steps from a topic
    num_all=COUNT,  # all answers that the file gives are
)
MISSING = _table(question_id=TEXT, field=TEXT, label=TEXT)  # a topic, answer or claim that the graph has not
REJECTS = _table(file=TEXT, line=COUNT, reason=TEXT, text=TEXT)
ENCODINGS = _table(
    key=TEXT,  # sha256 of the text, hexadecimal
    text=TEXT,
    vector=pa.list_(pa.float32()),  # fixed width per encoder
)
PREDICTIONS = _table(
    question_id=TEXT,
    question=TEXT,
    split=TEXT,
    hops=_null(ID),
    prediction=TEXTS,  # names of the answer set, best first
    ground_truth=TEXTS,  # names of the golds
    answer_ids=IDS,  # parallel to prediction
    gold_ids=IDS,  # parallel to ground_truth
    candidate_ids=IDS,
    candidate_scores=pa.list_(pa.float32()),
    paths=TEXTS,  # readable evidence of the first candidates
    covered=FLAG,
    verdict=_null(FLAG),  # true/false questions: what was answered
    gold_verdict=_null(FLAG),  # true/false questions: what is right
    claim=_null(ID),  # true/false questions: the entity claimed to be the answer
)
SYSTEM_PREDICTIONS = _table(
    *PREDICTIONS,
    status=TEXT,  # answered, abstained, unmatched, unreadable, skipped (no topic), failed (it raised)
    error=_null(TEXT),  # traceback of a question that failed
    topics=IDS,  # entity ids that the system was given
    topic_source=TEXT,  # gold, linked, none: it uses none
    unmatched=TEXTS,  # names answered that nothing in the graph bears
    faithful=pa.list_(FLAG),  # parallel to answer_ids: is its path in the graph?
    num_calls=COUNT,  # logical figures, as in METER, over all instructions
    num_prompt_tokens=COUNT,
    num_tokens=COUNT,
    seconds=NUMBER,
    money=_null(NUMBER),  # null: a model that was asked has no price
    stopped=_null(TEXT),  # the limit that ended it: calls
    counts=pa.map_(TEXT, NUMBER),  # what the system counts: num_paths
    plans=TEXTS,  # that were followed, best first: by label, "^" before a step walked backward
    raw=_null(TEXT),  # what the model said last; null: it was not asked
    confidence=_null(NUMBER),  # 0..1, of the answer: see SYSTEM_CALLS, the last call; null: no answer, or nobody told
)
SYSTEM_CALLS = _table(
    question_id=TEXT,
    round=ID,  # from 1; calls of a round do not depend on each other
    number=ID,  # from 1, of the question's calls
    instruction=TEXT,
    prompt=TEXT,
    system_prompt=TEXT,
    texts=TEXTS,  # best first; of options: each with its likelihood
    problem=TEXT,  # why there is no result; empty where there is one
    num_tokens=COUNT,  # given
    confidence=_null(NUMBER),  # 0..1: mean probability of a token of the first text, or the best option's share
)
DUMP_TRIPLES = _table(head=TEXT, relation=TEXT, tail=TEXT)  # labels; of literals: graph.dump_rows.literal_label
DUMP_TYPES = _table(entity=TEXT, type=TEXT)
DUMP_NAMES = _table(
    entity=TEXT,
    kind=pa.int8(),  # 0 name, 1 alias, 2 named, but in another language; 3, 4 ... name in the second, third language
    name=_null(TEXT),  # null where kind is 2
)
DUMP_RELATIONS = _table(
    label=TEXT,
    use=TEXT,  # triple, name, alias, type or noise
    num_lines=COUNT,  # well-formed ones
)
TOPICS = _table(label=TEXT)  # labels or names, as the question files have them
ASKED = _table(
    question_id=TEXT,
    split=TEXT,
    text=TEXT,  # as a planner reads it: masked, unless the run says otherwise
    topics=IDS,  # entity ids; empty without a graph
    hops=_null(ID),  # null: the dataset does not say
)
SUPERVISION = _table(
    question_id=TEXT,
    split=TEXT,
    path=TEXTS,  # steps by label, "^" before one walked backward
    num_reached=_null(COUNT),  # entities that following it from the topics ends at; null: no graph
    num_right=_null(COUNT),  # of them golds
    f1=_null(NUMBER),  # 0..1, of what it reaches against the golds
    best=FLAG,  # has it the highest F1 of the question's paths? (ties: all)
)
_STEPS = pa.list_(pa.struct(_table(head=ID, relation=ID, tail=ID, reverse=FLAG)))
CANDIDATES = _table(
    question_id=TEXT,
    candidates=IDS,  # entity ids (or rows of subgraphs), best first
    scores=pa.list_(NUMBER),  # EtD Eq. 3
    paths=pa.list_(_STEPS),  # evidence of the first of them
)
INSTRUCTIONS = _table(
    instruction=TEXT,
    question_id=TEXT,
    split=TEXT,
    system=TEXT,
    prompt=TEXT,
    target=TEXT,
    weight=NUMBER,  # of its loss
)
PLANS = _table(
    planner=TEXT,
    question_id=TEXT,
    rank=ID,  # from 1
    path=TEXTS,
    log_prob=NUMBER,
    right=FLAG,  # is it one of the question's paths?
)
DENSE_PATHS = _table(path=TEXTS)  # steps by label, as in SUPERVISION
DENSE_QUESTIONS = _table(question_id=TEXT, paths=IDS)  # rows of DENSE_PATHS
METER = _table(
    system=TEXT,
    model=TEXT,
    instruction=TEXT,
    question_id=TEXT,
    num_calls=COUNT,  # logical: asked for, whether paid or remembered
    num_prompt_tokens=COUNT,
    num_tokens=COUNT,  # given
    seconds=NUMBER,  # of a remembered call: what it took when it was paid
    money=_null(NUMBER),  # null: the model has no price
    paid_calls=COUNT,  # that went to the model
    paid_prompt_tokens=COUNT,
    paid_tokens=COUNT,
    paid_seconds=NUMBER,
    paid_money=_null(NUMBER),
    num_failed=COUNT,  # calls that gave nothing, of num_calls
    num_stopped=COUNT,  # calls that a budget forbade; not in num_calls
    num_cut=COUNT,  # texts cut at max_new_tokens
    num_looping=COUNT,  # of them: that repeated themselves to the end, and are read without that
    num_outside=COUNT,  # texts that their constraint does not allow
)
