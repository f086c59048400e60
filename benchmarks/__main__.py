"""Run benchmarks: ``python -m benchmarks [NAME ...]``; all by default."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import metaqa, published, repeat
from kgqa_core.config_file import machine_paths

BENCHMARKS = {"published": published.run, "metaqa": metaqa.run, "repeat": repeat.run}


def main() -> None:
    """Run the named benchmarks, each in its own section of docs/results.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help=", ".join(BENCHMARKS))
    default = Path(machine_paths(Path())["KGQA_HOME"]) / "bench"
    parser.add_argument("--home", type=Path, default=default, help="artifacts of the runs (default: %(default)s)")
    options = parser.parse_args()
    for name in options.names or BENCHMARKS:
        BENCHMARKS[name](options.home)


main()
