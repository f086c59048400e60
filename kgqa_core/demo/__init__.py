"""The demo's dataset: an invented graph of films with questions, as the files that a user would bring.

``data`` holds ``triples.tsv`` (head, relation and tail label), ``names.tsv`` (label and name; several labels may share
one) and ``questions/{train,dev,test}.jsonl`` in the format of own data. docs/datasets.md says what is in them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kgqa_core.errors import ArtifactError

DATA = Path(__file__).parent / "data"


def copy_demo(out_dir: Path) -> None:
    """Write the dataset's files into ``out_dir``, a stage's work folder; ArtifactError where that cannot be written."""
    try:
        for source in (path for path in DATA.rglob("*") if path.is_file()):
            target = out_dir / source.relative_to(DATA)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except OSError as error:
        raise ArtifactError(
            f"the demo's dataset cannot be written to {out_dir}: {error}. Free some space or give another folder"
        ) from error
