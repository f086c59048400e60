"""The same seed gives the same bytes, everywhere and for ever, unless VERSIONS says otherwise."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.embedded import generate
from kgqa_core.errors import ArtifactError
from kgqa_core.run.pipeline import VERSIONS

GOLDEN: dict[str, Any] = {
    "version": 1,
    "names.tsv": "89524df6132c142460d3bfb3b85a9d0886ca6875ae5ac62168ed8bd0dbc11ebb",
    "questions/dev.jsonl": "73ad2b67d4d3006a6c2d4144f05c2a68c9273cfe5af4c344f968055ab26c8499",
    "questions/test.jsonl": "74e99fc1695fe6ef9adb04d79390f56ba8fc3a785b16910372b65c1859fbaaa2",
    "questions/train.jsonl": "a901e5b3c3a991796da2143af43c6c6e89df79a7dbc199314d1f4cc97cdd8f56",
    "triples.tsv": "36aa1af0e7cdbd47edd6372fff6a5839aa9eb9fd0f2644b8d6a87ef99b7227ef",
}


def hash_files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_files_of_seed_0_are_those_of_this_version(files: Any) -> None:
    found = {"version": VERSIONS["dataset"], **hash_files(files.folder)}
    assert found == GOLDEN, (
        'the generator\'s output changed: raise VERSIONS["dataset"] and put the new hashes into GOLDEN'
    )


def test_another_process_with_another_hash_seed_writes_the_same_bytes(files: Any, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kgqa_core.embedded import generate; "
        "generate(Path(sys.argv[1]), seed=0); assert not {'numpy', 'torch', 'pyarrow'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    assert hash_files(tmp_path) == hash_files(files.folder)


@pytest.mark.parametrize("seed", [1, 2, 1_000_003])
def test_another_seed_gives_another_dataset_of_the_same_size(files: Any, tmp_path: Path, seed: int) -> None:
    generate(tmp_path, seed=seed)
    found, golden = hash_files(tmp_path), hash_files(files.folder)
    assert found.keys() == golden.keys()
    assert not set(found.values()) & set(golden.values())
    for split, records in files.questions.items():
        assert (tmp_path / f"questions/{split}.jsonl").read_bytes().count(b"\n") == len(records)


def test_writing_again_replaces_the_files(files: Any, tmp_path: Path) -> None:
    generate(tmp_path, seed=1)
    generate(tmp_path, seed=0)
    assert hash_files(tmp_path) == hash_files(files.folder)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(ArtifactError, match="taken"):
        generate(tmp_path / "taken", seed=0)
