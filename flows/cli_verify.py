"""``kgqa verify``: is every byte of the artifacts as it was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_output import print_json
from flows.cli_session import Json, open_run, working


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

    \b
    Examples:
      kgqa verify
      kgqa verify conf/demo.yaml --remove
    """
    import shutil

    from kgqa_core.artifacts import MANIFEST, inspect_artifact
    from kgqa_core.config_file import home_here
    from kgqa_core.errors import ArtifactError
    from kgqa_core.run.pipeline import PROGRESS

    pipeline = None if conf is None else open_run(conf, None)
    root = pipeline.store.root if pipeline else home_here() / "artifacts"
    used = pipeline.used() if pipeline else None
    folders = sorted(path.parent for path in root.glob(f"*/*/{MANIFEST}") if not path.parent.suffix)
    folders = [folder for folder in folders if used is None or folder.name in used]
    damaged: dict[str, list[str]] = {}
    num_files = num_bytes = 0
    with working("verifying"):
        for number, folder in enumerate(folders, 1):
            artifact, faults = inspect_artifact(folder, whole=True)
            if artifact:
                num_files += len(artifact.files)
                num_bytes += sum(entry.bytes for entry in artifact.files)
            if faults:
                damaged[str(folder.relative_to(root))] = faults
                if remove:
                    shutil.rmtree(folder)
            if told := PROGRESS.get():
                told("verifying artifacts", number, len(folders))
    if as_json:
        print_json({"artifacts": len(folders), "files": num_files, "bytes": num_bytes, "damaged": damaged})
    else:
        read = f"{len(folders)} artifacts under {root}, {num_files} files, {num_bytes / 1e6:,.1f} MB read"
        typer.echo(f"{read}: {len(damaged) or 'none'} damaged" + (" and removed" if damaged and remove else ""))
    if damaged and not remove:
        first, files = next(iter(damaged.items()))
        more = f", and {len(damaged) - 1} more artifacts (--json lists them)" if len(damaged) > 1 else ""
        raise ArtifactError(
            f"damaged: {first}: {', '.join(files[:3])}{more}. Removed (--remove), they are made again by the next run, "
            "unless their source has changed since"
        )
