"""Kinds of language model: each entry of the table opens, and one of your own is one new file and one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from kgqa_core.config_base import open_entry
from kgqa_core.config_lm import BACKENDS
from kgqa_core.lm.types import EndpointLmSection, FolderLmSection, ModelSection
from tests.conftest import PROJECT, TINY_RUN

ECHO = '''
"""A model that says what it is told."""

from typing import Literal

from kgqa_core.lm.types import ModelSection
from kgqa_core.lm.types import Generation


class EchoSection(ModelSection):
    kind: Literal["echo"]
    times: int = 1

    def open(self, weights, machine):
        return Speaker(self.times)

    def facts(self, weights, machine):
        return {"kind": "echo", "times": self.times}


class Speaker:
    name = "echo-v1"

    def __init__(self, times):
        self.times = times

    def generate(self, prompts, decoding=None):
        return [[Generation(prompt.text * self.times)] for prompt in prompts]
'''
USE = """
import sys
from pathlib import Path
from flows.cli_lm import model_facts
from kgqa_core.config_lm import BACKENDS  # the line that its author adds to the table stands in its place here
from kgqa_core.config_file import read_config
from kgqa_core.run.open import open_players
from kgqa_core.run.pipeline import Pipeline

pipeline = Pipeline(read_config(Path(sys.argv[1]), ["lm={kind: echo, times: 2}", "systems={run: [direct]}"]))
(spec,) = [spec for spec in pipeline.specs.values() if spec.stage == "system"]
assert spec.section["lm"] == {"kind": "echo", "times": 2}, spec.section
assert model_facts(pipeline) == {"kind": "echo", "times": 2}
assert open_players(pipeline, 0, ["plan"])["plan"].model.name == "echo-v1"
assert not {"torch", "transformers", "httpx"} & set(sys.modules)
"""


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_kind_of_the_table_opens_and_says_what_it_is(kind: str) -> None:
    section = open_entry(BACKENDS, kind, what="kind of lm")
    assert issubclass(section, ModelSection)
    assert get_args(section.model_fields["kind"].annotation) == (kind,)
    assert section.open is not ModelSection.open or section.open_each is not ModelSection.open_each
    # Of a folder, lm-info looks at the files; of what is elsewhere, only the section knows.
    assert issubclass(section, FolderLmSection) or section.facts is not ModelSection.facts


def test_a_new_kind_of_language_model_is_one_file_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "echo_backend.py").write_text(ECHO, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(TINY_RUN, encoding="utf-8")
    table = PROJECT / "kgqa_core" / "config_lm.py"
    head, brace, tail = table.read_text("utf-8").partition("BACKENDS = {")
    line = '\n    "echo": "echo_backend:EchoSection",'
    # The table with its new line, in the place of ours.
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_loader('kgqa_core.config_lm', loader=None)\n"
        "module = sys.modules['kgqa_core.config_lm'] = importlib.util.module_from_spec(spec)\n"
        f"exec(compile({head + brace + line + tail!r}, 'config_lm.py', 'exec'), module.__dict__)\n{USE}"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT)])}
    command = [sys.executable, "-c", code, str(tmp_path / "run.yaml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_recipe_of_an_endpoint_says_who_is_asked_and_what_is_told() -> None:
    def recipe(**settings: Any) -> dict[str, Any]:
        return EndpointLmSection(kind="endpoint", **{"url": "http://127.0.0.1:8000/v1", **settings}).recipe()

    other = {"url": "http://127.0.0.1:8001/v1"}
    assert recipe(**other) != recipe()  # whichever model is served there
    assert recipe(model="m", **other) == recipe(model="m") and recipe(identity="lab", **other) == recipe(identity="lab")
    assert recipe(model="m", log_probs=False) != recipe(model="m")  # how sure a model is follows from them
