"""Small question files in the official forms, with content of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def webqsp_parse(topic: str | None, chain: list[str] | None, answers: list[Any], **more: Any) -> dict[str, Any]:
    """Return one parse. An answer is a MID, ``value:`` and a value, or what the file shall hold instead."""
    good = {"ParseQuality": "Complete", "QuestionQuality": "Good", "Confidence": "Normal"}
    parse = {"ParseId": "P0", "AnnotatorComment": good, "Sparql": "SELECT …", "TopicEntityMid": topic}
    return {**parse, "InferentialChain": chain, "Answers": list(map(_webqsp_answer, answers)), **more}


def _webqsp_answer(answer: Any) -> Any:
    if not isinstance(answer, str):
        return answer
    if answer.startswith("value:"):
        return {"AnswerType": "Value", "AnswerArgument": answer.removeprefix("value:"), "EntityName": None}
    return {"AnswerType": "Entity", "AnswerArgument": answer, "EntityName": f"name of {answer}"}


def webqsp_question(id: str, text: str, *parses: Any, **more: Any) -> dict[str, Any]:
    """Return one item of ``Questions``."""
    texts = {"RawQuestion": text, "ProcessedQuestion": text.rstrip("?")}
    return {"QuestionId": id, **texts, "Parses": list(parses), **more}


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
