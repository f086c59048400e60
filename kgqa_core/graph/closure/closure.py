"""From coded parts to a graph folder: what the topics' k-hop closure holds, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kgqa_core.graph.closure.options import ClosureLimits, ClosureOptions, ClosureReport


def build_from_dump(
    dumps: Sequence[Path],
    topics: Sequence[str],
    out_dir: Path,
    *,
    options: ClosureOptions = ClosureOptions(),
    limits: ClosureLimits = ClosureLimits(),
) -> ClosureReport:
    """Write the graph of the topics' closure to ``out_dir``, a folder that ``open_graph`` opens.

    Args:
        dumps: folders of coded parts (schemas.DUMP_*), one per dump file.
        topics: labels of the topic entities.
        out_dir: gets the graph, and closure.json, hubs.parquet, topics.parquet, aliases.parquet, types.parquet.
        options: what is in the graph.
        limits: how it is built.

    Raises:
        InputError: the dumps hold no triple, or none of the topics.
    """
    raise NotImplementedError
