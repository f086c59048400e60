"""Run benchmarks: ``python -m benchmarks [NAME ...]``; all by default, each in its section of docs/results.md."""

from __future__ import annotations

import argparse
import signal
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType

from benchmarks import measure
from kgqa_core.config_file import machine_paths

BENCHMARKS = (
    "published",
    "metaqa",
    "wc2014",
    "small_files",
    "repeat",
    "merged",
    "plain",
    "inference",
    "scatter",
    "scaling",
    "freebase_build",
    "freebase_expand",
    "linking",
    "paraphrases",
    "choosing",
    "worlds",
    "orders",
    "supervision",
    "execute_plans",
    "harness",
    "journey",
    "killed_evaluation",
    "systems",
    "deletion",
    "gold_chains",
    "webqsp_folds",
    "lora",
    "transfer",
    "memory",
    "sweeps",
    "lm_gpu",
    "gate",
    "papers",
    "shipped_adapter",
)  # modules of this package, each with run(home)
ASKED_FOR = ("shipped_adapter",)  # not among all: it writes into the package


def stop(number: int, frame: FrameType | None) -> None:
    """End what was started, and then this process: SIGTERM reaches this one alone."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended just now
            child.terminate()
    raise SystemExit(128 + number)


def main() -> None:
    """Run the named benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help=", ".join(BENCHMARKS))
    default = Path(machine_paths(Path())["KGQA_HOME"]) / "bench"
    parser.add_argument("--home", type=Path, default=default, help="artifacts of the runs (default: %(default)s)")
    parser.add_argument(
        "--small",
        action="store_true",
        help="only see that it works, in a minute or so: those that time anything take their SMALL size, and what is "
        "found goes to HOME/results-small.md",
    )
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    if options.small:
        measure.RESULTS = options.home / "results-small.md"
    for name in options.names or [one for one in BENCHMARKS if one not in ASKED_FOR]:
        module = import_module(f"benchmarks.{name}")
        if options.small and hasattr(module, "SMALL"):
            module.run(options.home, module.SMALL)
        else:
            module.run(options.home)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    main()
