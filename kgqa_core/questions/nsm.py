"""The questions of NSM and GraftNet files; their subgraphs are read by ``graph/nsm.py`` and ``graph/subgraphs.py``."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.graph.nsm import default_id, parse_line
from kgqa_core.questions.records import Fault, Parser, RawQuestion


def nsm_parser(path: Path) -> Parser:
    """Return the line parser of one file.

    Questions without a topic, without a known answer, or whose answers lie in no triple are kept: they count as not
    answered in every figure.
    """

    def parse(line: str, number: int) -> RawQuestion | Fault:
        read = parse_line(line)
        if isinstance(read, str):
            return Fault(read)
        return RawQuestion(
            id=read.id or default_id(path, number),
            text=read.question,
            answers=read.answers,
            topics=read.topics,
            keep=True,
        )

    return parse
