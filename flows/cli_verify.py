"""``kgqa verify``: is every byte of the artifacts as it was written?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from flows.cli_output import print_json
from flows.cli_session import Json, open_run, working
from kgqa_core.artifacts import MANIFEST, inspect_artifact
from kgqa_core.errors import ArtifactError, counted

RELEASES = "releases/"  # in a home; how the names of their artifacts begin


def verify(
    conf: Annotated[
        Path | None, typer.Argument(metavar="CONF", help="Only what this run configuration used last.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove damaged artifacts: the next run makes them again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every byte of the artifacts of this home, and compare it with the hashes taken when it was written.

    Without CONF also what releases hold and the artifacts do not: damaged files of theirs stay.

    \b
    Examples:
      kgqa verify
      kgqa verify conf/demo.yaml --remove
    """
    from kgqa_core.config_file import home_here
    from kgqa_core.run.pipeline import PROGRESS

    pipeline = None if conf is None else open_run(conf, None)
    root = pipeline.store.root if pipeline else home_here() / "artifacts"
    used = pipeline.used() if pipeline else None
    folders = sorted(path.parent for path in root.glob(f"*/*/{MANIFEST}") if not path.parent.suffix)
    folders = [folder for folder in folders if used is None or folder.name in used]
    if used is None:  # most files of releases are links to these
        kept = root.parent.glob(f"{RELEASES}[!.]*/[!.]*/artifacts/*/*/{MANIFEST}")
        folders += [one.parent for one in sorted(kept) if not _is_one_file(one, root / Path(*one.parts[-3:]))]
    damaged: dict[str, list[str]] = {}
    num_files = num_bytes = 0
    with working("verifying"):
        for number, folder in enumerate(folders, 1):
            artifact, faults = inspect_artifact(folder, whole=True)
            if artifact:
                num_files += len(artifact.files)
                num_bytes += sum(entry.bytes for entry in artifact.files)
            if faults:
                is_stored = folder.is_relative_to(root)
                damaged[str(folder.relative_to(root if is_stored else root.parent))] = faults
                if remove and is_stored:
                    shutil.rmtree(folder)
            if told := PROGRESS.get():
                told("verifying artifacts", number, len(folders))
    lost = {name: faults for name, faults in damaged.items() if not remove or name.startswith(RELEASES)}
    if as_json:
        print_json({"artifacts": len(folders), "files": num_files, "bytes": num_bytes, "damaged": damaged})
    else:
        read = f"{counted(len(folders), 'artifact')} of {root.parent}, {counted(num_files, 'file')}, "
        read += f"{num_bytes / 1e6:,.1f} MB read"
        removed = f", {len(damaged) - len(lost)} removed" if remove and damaged else ""
        typer.echo(f"{read}: {len(damaged) or 'none'} damaged{removed}")
    if lost:
        first, files = next(iter(lost.items()))
        more = f", and {counted(len(lost) - 1, 'more artifact')} (--json lists them)" if len(lost) > 1 else ""
        again = "Removed (--remove), they are made again by the next run, unless their source has changed since"
        if first.startswith(RELEASES):
            again = (
                "The next run puts back what it makes again. Else take another release: kgqa promote CONF --to RELEASE"
            )
        raise ArtifactError(f"damaged: {first}: {', '.join(files[:3])}{more}. {again}")


def _is_one_file(first: Path, second: Path) -> bool:
    return second.exists() and first.samefile(second)
