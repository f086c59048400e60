"""Small question files in the official forms, with content of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def webqsp_parse(topic: str | None, chain: list[str] | None, answers: list[Any], **more: Any) -> dict[str, Any]:
    """Return one parse. An answer is a MID, ``value:`` and a value, or what the file shall hold instead."""
    return {
        "ParseId": "P0",
        "AnnotatorComment": {"ParseQuality": "Complete", "QuestionQuality": "Good", "Confidence": "Normal"},
        "Sparql": "SELECT …",
        "TopicEntityName": "a name",
        "TopicEntityMid": topic,
        "InferentialChain": chain,
        "Constraints": [],
        "Time": None,
        "Order": None,
        "Answers": [_webqsp_answer(answer) for answer in answers],
        **more,
    }


def _webqsp_answer(answer: Any) -> Any:
    if not isinstance(answer, str):
        return answer
    kind, _, value = answer.rpartition("value:")
    is_value = bool(kind or answer.startswith("value:"))
    return {
        "AnswerType": "Value" if is_value else "Entity",
        "AnswerArgument": value if is_value else answer,
        "EntityName": None if is_value else f"name of {answer}",
    }


def webqsp_question(id: str, text: str, *parses: Any, **more: Any) -> dict[str, Any]:
    """Return one item of ``Questions``."""
    return {
        "QuestionId": id,
        "RawQuestion": text,
        "ProcessedQuestion": text.rstrip("?"),
        "Parses": list(parses),
        **more,
    }


def write_webqsp(path: Path, questions: list[Any]) -> Path:
    """Write a WebQSP file."""
    path.write_text(json.dumps({"Version": "1.0", "Questions": questions}, ensure_ascii=False, indent=2), "utf-8")
    return path


def cwq_question(id: str, text: str, sparql: str | None, answers: list[str] | None, **more: Any) -> dict[str, Any]:
    """Return one item of a ComplexWebQuestions file."""
    item: dict[str, Any] = {"ID": id, "question": text, "compositionality_type": "conjunction", **more}
    if sparql is not None:
        item["sparql"] = sparql
    if answers is not None:
        item["answers"] = [{"answer_id": label, "answer": f"name of {label}", "aliases": []} for label in answers]
    return item


def write_json(path: Path, items: Any) -> Path:
    """Write one JSON value."""
    path.write_text(json.dumps(items, ensure_ascii=False), "utf-8")
    return path
