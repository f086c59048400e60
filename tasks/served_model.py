"""The explorer as an MLflow model: this file is logged with every version and executed where one is loaded.

Beside it travel the weights and ``served.json``. kgqa itself is installed on the serving machine, and the graph is
found there by its content hash, under ``KGQA_HOME``. docs/serving.md tells more.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import ModelSignature, set_model
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.types.schema import Array, ColSpec, DataType, Object, Property, Schema

# Every version carries this file: what it imports of kgqa has to stay where it is.
from kgqa_core.ask import Answer, Answerer, Asked
from kgqa_core.config_file import home_folder
from kgqa_core.served import open_served

EXPLORER = "explorer"  # the artifact: a folder that kgqa_core.run.ask wrote
ENCODER_PATH = "encoder_path"  # the one setting at load: the folder of a local text encoder, where it is another

CANDIDATE = Object(
    [
        Property("name", DataType.string),
        Property("label", DataType.string),
        Property("score", DataType.double),
        Property("is_answer", DataType.boolean),
        Property("path", DataType.string),
    ]
)
SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec(DataType.string, "question"), ColSpec(DataType.string, "topic", required=False)]),
    outputs=Schema(
        [
            ColSpec(DataType.string, "question"),
            ColSpec(Array(DataType.string), "topics"),
            ColSpec(Array(CANDIDATE), "candidates"),
            ColSpec(DataType.string, "error"),
            ColSpec(Array(DataType.string), "nearest"),
        ]
    ),
)


class ServedExplorer(PythonModel):
    """Answers questions with ranked entities and the paths that they rest on."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open explorer, graph and text encoder; raises an error that names what is missing."""
        encoder_path = (context.model_config or {}).get(ENCODER_PATH)
        self.answerer: Answerer = open_served(
            Path(context.artifacts[EXPLORER]), home_folder(), encoder_path=Path(encoder_path) if encoder_path else None
        )
        # The first question loads or compiles the walk, for seconds: now, and not while somebody waits for an answer.
        self.answerer.ask("ready?", self.answerer.system.graph.label_of(0))

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Answer each row; a row that cannot be asked says why and leaves the others alone.

        Args:
            model_input: ``question`` (text) and, where it is known, ``topic`` (label or name of the topic entity).
            params: none are known.
        """
        asked = [Asked(_text(row.get("question")), _text(row.get("topic"))) for row in model_input.to_dict("records")]
        return [_row(answer) for answer in self.answerer.ask_all(asked)]


def _text(value: Any) -> str:
    """Return a cell as text, empty where there is none; MLflow's server makes "None" of the null of a JSON row."""
    return "" if value is None or pd.isna(value) or value == "None" else str(value)


def _row(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON has it, so that it is the same in Python and over HTTP."""
    return {
        "question": answer.question,
        "topics": list(answer.topics),
        "candidates": [asdict(candidate) for candidate in answer.candidates],
        "error": answer.error,
        "nearest": list(answer.nearest),
    }


set_model(ServedExplorer())
