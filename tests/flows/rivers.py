"""A run of one's own small graph, from the command line: in real processes, or in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import Result

from tests.conftest import kgqa, write_jsonl

RIVERS = [f"River {letter}" for letter in "ABCDEFGHIJKLM"]
FLOWS_THROUGH = {river: (f"Town {number % 7}", f"Town {(3 * number + 1) % 7}") for number, river in enumerate(RIVERS)}
SPLITS = {"train": RIVERS[:9], "dev": RIVERS[9:11], "test": RIVERS[11:]}
CONFIG = """
dataset:
  name: rivers
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions}
encoder: {kind: hash, dim: 16}
explorer: {steps: 2, edge_budget: 10, epochs: 2}
"""


@dataclass(frozen=True)
class Run:
    """A run configuration with a home of its own, on a Prefect server."""

    folder: Path
    server: str = ""

    @property
    def conf(self) -> str:
        return str(self.folder / "rivers.yaml")

    @property
    def environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
        given = {"PREFECT_API_URL": self.server} if self.server else {}
        return {**ours, **given, "KGQA_HOME": str(self.folder / "home")}

    def kgqa(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done

    def kgqa_here(self, *arguments: str, code: int = 0) -> Result:
        """The same in this process: to start one takes far longer than what only reads a run."""
        done = kgqa(*arguments, env={"KGQA_HOME": str(self.folder / "home")})
        assert done.exit_code == code, done.stderr
        return done


def write_run(folder: Path, server: str = "") -> Run:
    lines = sorted({f"{river}\tflows_through\t{town}" for river, towns in FLOWS_THROUGH.items() for town in towns})
    (folder / "triples.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split, rivers in SPLITS.items():
        rows = [
            {"question": f"which towns does {river} flow through?", "answers": FLOWS_THROUGH[river], "hops": 1}
            for river in rivers
        ]
        write_jsonl(folder / "questions" / f"{split}.jsonl", rows)
    (folder / "rivers.yaml").write_text(CONFIG, encoding="utf-8")
    return Run(folder, server)
