"""Every Parquet schema at rest, in one place. A column is renamed here or nowhere."""

from __future__ import annotations

import pyarrow as pa

ENTITIES = pa.schema(
    [
        pa.field("entity_id", pa.int32(), nullable=False),  # 0..N-1, in sorted order of label
        pa.field("label", pa.string(), nullable=False),  # the key that the triples use
        pa.field("name", pa.string(), nullable=False),  # what people call it; = label where no names are given
        pa.field("kind", pa.string()),  # entity, cvt (no name at all), foreign (named in another language), literal
    ]
)

ALIASES = pa.schema(
    [
        pa.field("entity_id", pa.int32(), nullable=False),
        pa.field("alias", pa.string(), nullable=False),  # another name, in the language of the names
    ]
)

TYPES = pa.schema(
    [
        pa.field("entity_id", pa.int32(), nullable=False),
        pa.field("type", pa.string(), nullable=False),  # label of the type
    ]
)

HUBS = pa.schema(
    [
        pa.field("label", pa.string(), nullable=False),  # of the entity that the triples were walked from
        pa.field("relation", pa.string(), nullable=False),
        pa.field("direction", pa.string(), nullable=False),  # forward: the entity is the head; backward: the tail
        pa.field("hop", pa.int32(), nullable=False),
        pa.field("degree", pa.int64(), nullable=False),  # distinct triples of the group
        pa.field("kept", pa.int64(), nullable=False),
    ]
)

REACHED_TOPICS = pa.schema(
    [
        pa.field("label", pa.string(), nullable=False),
        pa.field("entity_id", pa.int32()),  # null: in no triple of the dump
    ]
)

RELATIONS = pa.schema(
    [
        pa.field("relation_id", pa.int32(), nullable=False),  # 0..R-1, in sorted order of label
        pa.field("label", pa.string(), nullable=False),
        pa.field("num_triples", pa.int64(), nullable=False),
        pa.field("inverse", pa.string()),  # label that the file gives the relation walked backwards; null: none
    ]
)

TRIPLES = pa.schema(
    [
        pa.field("head", pa.int32(), nullable=False),
        pa.field("relation", pa.int32(), nullable=False),
        pa.field("tail", pa.int32(), nullable=False),
    ]
)

SUBGRAPHS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("num_entities", pa.int64(), nullable=False),  # of its triples, its topics and its answers
        pa.field("num_triples", pa.int64(), nullable=False),  # distinct
        pa.field("holds_answer", pa.bool_(), nullable=False),  # does an answer lie in a triple?
        pa.field("digest", pa.string(), nullable=False),  # of its triples by label, whatever their ids: triple_digest
        pa.field("num_capped", pa.int64()),  # groups walked in part; null where it was not cut from a graph
        pa.field("stopped", pa.bool_()),  # did the limit of triples end the walk? null where it was not cut
    ]
)

SUBGRAPH_TRIPLES = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("head", pa.int32(), nullable=False),  # ids of ENTITIES and RELATIONS of the graph it was cut from
        pa.field("relation", pa.int32(), nullable=False),
        pa.field("tail", pa.int32(), nullable=False),
    ]
)

NEIGHBOURHOOD = pa.schema(
    [
        pa.field("head_label", pa.string(), nullable=False),
        pa.field("head_name", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("tail_label", pa.string(), nullable=False),
        pa.field("tail_name", pa.string(), nullable=False),
    ]
)

QUESTIONS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("masked", pa.string(), nullable=False),
        pa.field("topics", pa.list_(pa.int32()), nullable=False),
        pa.field("answers", pa.list_(pa.int32()), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("hops", pa.int32()),
        pa.field("chain", pa.list_(pa.int32())),
        pa.field("claim", pa.int32()),
        pa.field("verdict", pa.bool_()),
    ]
)

COVERAGE = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("steps", pa.int32(), nullable=False),
        pa.field("num_questions", pa.int64(), nullable=False),  # also those that nothing can answer
        pa.field("num_with_topic", pa.int64(), nullable=False),  # a topic is in the graph
        pa.field("num_with_answer", pa.int64(), nullable=False),  # an answer lies in a triple
        pa.field("num_any", pa.int64(), nullable=False),  # an answer is at most so many steps from a topic
        pa.field("num_all", pa.int64(), nullable=False),  # all answers that the file gives are
    ]
)

REJECTS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)

ENCODINGS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),  # sha256 of the text, hexadecimal
        pa.field("text", pa.string(), nullable=False),
        pa.field("vector", pa.list_(pa.float32()), nullable=False),  # fixed width per encoder
    ]
)

PREDICTIONS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("hops", pa.int32()),
        pa.field("prediction", pa.list_(pa.string()), nullable=False),  # names of the answer set, best first
        pa.field("ground_truth", pa.list_(pa.string()), nullable=False),  # names of the golds
        pa.field("answer_ids", pa.list_(pa.int32()), nullable=False),  # parallel to prediction
        pa.field("gold_ids", pa.list_(pa.int32()), nullable=False),  # parallel to ground_truth
        pa.field("candidate_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("candidate_scores", pa.list_(pa.float32()), nullable=False),
        pa.field("paths", pa.list_(pa.string()), nullable=False),  # readable evidence of the first candidates
        pa.field("covered", pa.bool_(), nullable=False),
        pa.field("verdict", pa.bool_()),  # true/false questions: what was answered
        pa.field("gold_verdict", pa.bool_()),  # true/false questions: what is right
        pa.field("claim", pa.int32()),  # true/false questions: the entity claimed to be the answer
    ]
)

SYSTEM_PREDICTIONS = pa.schema(
    [
        *PREDICTIONS,
        pa.field("status", pa.string(), nullable=False),  # answered, abstained, skipped (no topic), failed (it raised)
        pa.field("error", pa.string()),  # traceback of a question that failed
        pa.field("topics", pa.list_(pa.int32()), nullable=False),  # entity ids that the system was given
        pa.field("topic_source", pa.string(), nullable=False),  # gold, linked, none: it uses none
        pa.field("unmatched", pa.list_(pa.string()), nullable=False),  # names answered that nothing in the graph bears
        pa.field("faithful", pa.list_(pa.bool_()), nullable=False),  # parallel to answer_ids: is its path in the graph?
        pa.field("num_calls", pa.int64(), nullable=False),  # logical figures, as in METER, over all instructions
        pa.field("num_prompt_tokens", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("money", pa.float64()),  # null: a model that was asked has no price
        pa.field("stopped", pa.string()),  # the limit of the budget that ended it: calls, tokens, seconds, money
        pa.field("counts", pa.map_(pa.string(), pa.float64()), nullable=False),  # what the system counts: num_paths
        pa.field("raw", pa.string()),  # what the model said last; null: it was not asked
    ]
)

SYSTEM_CALLS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),  # from 1; calls of a round do not depend on each other
        pa.field("number", pa.int32(), nullable=False),  # from 1, of the question's calls
        pa.field("instruction", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("system_prompt", pa.string(), nullable=False),
        pa.field("texts", pa.list_(pa.string()), nullable=False),  # best first; of options: each with its likelihood
        pa.field("problem", pa.string(), nullable=False),  # why there is no result; empty where there is one
        pa.field("num_tokens", pa.int64(), nullable=False),  # given
    ]
)

DUMP_TRIPLES = pa.schema(
    [
        pa.field("head", pa.string(), nullable=False),  # labels
        pa.field("relation", pa.string(), nullable=False),
        pa.field("tail", pa.string(), nullable=False),
    ]
)

DUMP_TYPES = pa.schema(
    [pa.field("entity", pa.string(), nullable=False), pa.field("type", pa.string(), nullable=False)],
)

DUMP_NAMES = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),  # 0 name, 1 alias, 2 named, but in another language
        pa.field("name", pa.string()),  # null where kind is 2
    ]
)

DUMP_RELATIONS = pa.schema(
    [
        pa.field("label", pa.string(), nullable=False),
        pa.field("use", pa.string(), nullable=False),  # triple, name, alias, type or noise
        pa.field("num_lines", pa.int64(), nullable=False),  # well-formed ones
    ]
)

TOPICS = pa.schema([pa.field("label", pa.string(), nullable=False)])  # labels or names, as the question files have them

ASKED = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),  # as a planner reads it: masked, unless the run says otherwise
        pa.field("topics", pa.list_(pa.int32()), nullable=False),  # entity ids; empty without a graph
        pa.field("hops", pa.int32()),  # null: the dataset does not say
    ]
)

SUPERVISION = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("path", pa.list_(pa.string()), nullable=False),  # steps by label, "^" before one walked backward
        pa.field("num_reached", pa.int64()),  # entities that following it from the topics ends at; null: no graph
        pa.field("num_right", pa.int64()),  # of them golds
        pa.field("f1", pa.float64()),  # 0..1, of what it reaches against the golds
        pa.field("best", pa.bool_(), nullable=False),  # has it the highest F1 of the question's paths? (ties: all)
    ]
)

CANDIDATES = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("candidates", pa.list_(pa.int32()), nullable=False),  # entity ids (or rows of subgraphs), best first
        pa.field("scores", pa.list_(pa.float64()), nullable=False),  # EtD Eq. 3
        pa.field(
            "paths",  # evidence of the first of them
            pa.list_(
                pa.list_(
                    pa.struct(
                        [
                            pa.field("head", pa.int32(), nullable=False),
                            pa.field("relation", pa.int32(), nullable=False),
                            pa.field("tail", pa.int32(), nullable=False),
                            pa.field("reverse", pa.bool_(), nullable=False),
                        ]
                    )
                )
            ),
            nullable=False,
        ),
    ]
)

INSTRUCTIONS = pa.schema(
    [
        pa.field("instruction", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("system", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("weight", pa.float64(), nullable=False),  # of its loss
    ]
)

PLANS = pa.schema(
    [
        pa.field("planner", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),  # from 1
        pa.field("path", pa.list_(pa.string()), nullable=False),
        pa.field("log_prob", pa.float64(), nullable=False),
        pa.field("right", pa.bool_(), nullable=False),  # is it one of the question's paths?
    ]
)

METER = pa.schema(
    [
        pa.field("system", pa.string(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("instruction", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("num_calls", pa.int64(), nullable=False),  # logical: asked for, whether paid or remembered
        pa.field("num_prompt_tokens", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),  # given
        pa.field("seconds", pa.float64(), nullable=False),  # of a remembered call: what it took when it was paid
        pa.field("money", pa.float64()),  # null: the model has no price
        pa.field("paid_calls", pa.int64(), nullable=False),  # that went to the model
        pa.field("paid_prompt_tokens", pa.int64(), nullable=False),
        pa.field("paid_tokens", pa.int64(), nullable=False),
        pa.field("paid_seconds", pa.float64(), nullable=False),
        pa.field("paid_money", pa.float64()),
        pa.field("num_failed", pa.int64(), nullable=False),  # calls that gave nothing, of num_calls
        pa.field("num_stopped", pa.int64(), nullable=False),  # calls that a budget forbade; not in num_calls
        pa.field("num_cut", pa.int64(), nullable=False),  # texts cut at max_new_tokens
        pa.field("num_outside", pa.int64(), nullable=False),  # texts that their constraint does not allow
    ]
)
