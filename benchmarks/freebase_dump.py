"""Write a Freebase-shaped dump: ``python -m benchmarks.freebase_dump OUT.nt.gz --gigabytes 1``.

Lines in the form and about in the mixture of the real dump, sorted by subject: two thirds are of relations that no
build keeps. Malformed lines are planted at known places, listed beside the dump as OUT.planted.json. The same arguments
give the same bytes; memory is flat.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from isal import igzip

from benchmarks.freebase import facts
from benchmarks.freebase.lines import NS, Writer
from benchmarks.freebase.world import World

BYTES_PER_TRIPLE = 365  # plain text of the whole dump by kept triples
HUB_RANKS = 1000  # topics that are hubs are among so many
S, P, O = f"<{NS}m.0bad1>", f"<{NS}people.person.parents>", f"<{NS}m.0bad2>"  # noqa: E741 the letters of the form

# Lines that no reader of N-Triples may take: kind -> the line without its line feed
MALFORMED: dict[str, bytes] = {
    kind: line if isinstance(line, bytes) else line.encode()
    for kind, line in {
        "no dot at the end": f"{S}\t{P}\t{O}",
        "no object": f"{S}\t{P}\t.",
        "four terms": f"{S}\t{P}\t{O}\t{O}\t.",
        "text after the dot": f"{S}\t{P}\t{O}\t.\t{O}",
        "open IRI": f"<{NS}m.0bad1\t{P}\t{O}\t.",
        "blank in an IRI": f"<{NS}m.0 bad1>\t{P}\t{O}\t.",
        "no IRI as subject": f"m.0bad1\t{P}\t{O}\t.",
        "literal as subject": f'"m.0bad1"\t{P}\t{O}\t.',
        "literal as relation": f'{S}\t"parents"\t{O}\t.',
        "open literal": f'{S}\t{P}\t"no end\t.',
        "quotation mark inside": f'{S}\t{P}\t"one" two"\t.',
        "unknown escape": f'{S}\t{P}\t"a\\qb"\t.',
        "short escape": f'{S}\t{P}\t"a\\u00G9b"\t.',
        "empty language": f'{S}\t{P}\t"word"@\t.',
        "datatype without brackets": f'{S}\t{P}\t"1964"^^xsd:gYear\t.',
        "no UTF-8": f'{S}\t{P}\t"caf'.encode() + b'\xe9"@fr\t.',
        "cut short": f"{S}\t<{NS}people.per",
    }.items()
}

# Lines that a reader must take although they look odd: they hold a triple, or nothing at all.
ODD: dict[str, bytes] = {
    "blank line": b"",
    "blanks only": b" \t ",
    "blanks for tabs": f"{S} {P} {O} .".encode(),
    "no blank before the dot": f"{S}\t{P}\t{O}.".encode(),
    "two tabs": f"{S}\t\t{P}\t{O}\t.".encode(),
    "comment after the dot": f"{S}\t{P}\t{O}\t. # so it is".encode(),
    "comment": b"# nothing here",
}


@dataclass(frozen=True, slots=True)
class Planted:
    """A line put between the others."""

    kind: str
    line: int  # from 1


@dataclass(frozen=True, slots=True)
class Dump:
    """What was written."""

    path: Path
    lines: int
    plain_bytes: int
    malformed: list[Planted]
    odd: list[Planted]  # legal, but not in the dump's own form


def write_dump(
    path: Path, *, plain_bytes: int, seed: int = 0, malformed_share: float = 0.0, odd_share: float = 0.0
) -> Dump:
    """Write a dump of about ``plain_bytes`` of text, gzipped where the name ends in .gz, and OUT.planted.json.

    Args:
        path: the file to write.
        plain_bytes: of the text; what comes out differs by a few in a hundred.
        seed: of everything drawn.
        malformed_share: malformed lines planted, by lines.
        odd_share: blank lines, blanks for tabs and such planted, by lines.
    """
    world = World(max(1000, plain_bytes // BYTES_PER_TRIPLE), seed)
    planter = _Planter(malformed_share, odd_share)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with path.open("wb") as raw:
        # No name and no time in the header: the same bytes again.
        out = igzip.IGzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        for lines, generator in _blocks(world):
            for piece in planter.plant(lines, generator):
                out.write(piece)
                size += len(piece)
        if out is not raw:
            out.close()
    dump = Dump(path, planter.lines, size, planter.malformed, planter.odd)
    listed = {"lines": dump.lines, "plain_bytes": size}
    listed |= {kind: [asdict(one) for one in getattr(dump, kind)] for kind in ("malformed", "odd")}
    planted_path(path).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return dump


def planted_path(dump: Path) -> Path:
    """Return where the planted lines of a dump are listed."""
    return dump.with_name(f"{dump.name}.planted.json")


def draw_topics(world: World, count: int, *, hub_share: float = 0.2, seed: int = 0) -> list[str]:
    """Return distinct MIDs of named entities in random order, ``hub_share`` of them among the most popular ones."""
    generator = np.random.default_rng([seed, 55])
    ranks = np.arange(world.num_entities)
    ranks = ranks[~world.is_nameless(ranks) & ~world.is_foreign(ranks)]
    num_hubs = min(int(hub_share * count), HUB_RANKS, len(ranks))
    hubs = generator.choice(ranks[: min(HUB_RANKS, len(ranks) // 2)], num_hubs, replace=False)
    others = generator.choice(np.setdiff1d(ranks, hubs), count - num_hubs, replace=False)
    labels: list[str] = world.mids(world.number_of(np.concatenate([hubs, others]))).to_pylist()
    return [labels[place] for place in generator.permutation(count)]


def draw_answers(world: World, topic: str) -> list[str]:
    """Return the MIDs at the end of one relation of a topic, itself where no triple leads from it to a node."""
    number = bisect_left(range(world.num_nodes), topic, key=lambda node: world.mids(np.array([node]))[0].as_py())
    start = number // facts.BLOCK * facts.BLOCK
    triples = facts.draw_triples(world, range(start, min(start + facts.BLOCK, world.num_nodes)))
    found = (triples.place == number - start) & (triples.tail >= 0)
    if not found.any():
        return [topic]
    asked = triples.relation == triples.relation[found][0]
    labels: list[str] = world.mids(np.unique(triples.tail[found & asked])).to_pylist()
    return labels


def write_questions(path: Path, world: World, topics: Sequence[str]) -> None:
    """Write a question for each topic (JSONL, docs/own-data.md)."""
    with path.open("w", encoding="utf-8") as out:
        for number, topic in enumerate(topics):
            asked = {"id": f"q{number}", "question": f"what is number {number} about", "topics": [topic]}
            out.write(json.dumps(asked | {"answers": draw_answers(world, topic)}) + "\n")


class _Planter:
    """Puts lines between lines and keeps count."""

    def __init__(self, malformed_share: float, odd_share: float) -> None:
        self._shares = (malformed_share, odd_share)
        self.lines = 0
        self.malformed: list[Planted] = []
        self.odd: list[Planted] = []

    def plant(self, lines: pa.Array, generator: np.random.Generator) -> Iterator[memoryview | bytes]:
        """Yield the text of lines with others planted between them."""
        offsets = np.frombuffer(lines.buffers()[1], np.int32, len(lines) + 1)
        text = memoryview(lines.buffers()[2])
        done = 0
        for before, kind in self._draw(len(lines), generator):
            yield text[offsets[done] : offsets[before]]
            self.lines += before - done + 1
            done = before
            listed = self.malformed if kind in MALFORMED else self.odd
            listed.append(Planted(kind, self.lines))
            yield (MALFORMED.get(kind) or ODD[kind]) + b"\n"
        yield text[offsets[done] : offsets[-1]]
        self.lines += len(lines) - done

    def _draw(self, count: int, generator: np.random.Generator) -> list[tuple[int, str]]:
        drawn = []
        for share, kinds in zip(self._shares, (sorted(MALFORMED), sorted(ODD)), strict=True):
            number = int(generator.binomial(count, share))
            places = generator.integers(0, count + 1, number).tolist()
            chosen = generator.integers(0, len(kinds), number).tolist()
            drawn += [(place, kinds[kind]) for place, kind in zip(places, chosen, strict=True)]
        return sorted(drawn)


def _blocks(world: World) -> Iterator[tuple[pa.Array, np.random.Generator]]:
    """Yield the lines of the dump in order, each time with the generator of what is planted among them."""
    writer = Writer(world)
    yield (
        pa.array(writer.first(), pa.string()),
        facts.stream(world, range(world.num_nodes, world.num_nodes), facts.FAULTS),
    )
    for block in facts.blocks(world):
        yield writer.block(block), facts.stream(world, block, facts.FAULTS)
    end = range(world.num_nodes + 1, world.num_nodes + 1)
    yield pa.array(writer.last(), pa.string()), facts.stream(world, end, facts.FAULTS)


def main() -> None:
    """Write one dump as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freebase_dump", description=__doc__)
    parser.add_argument("out", type=Path, help="dump to write; gzipped where it ends in .gz")
    parser.add_argument("--gigabytes", type=float, default=0.01, help="of plain text, about (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--malformed", type=float, default=0.0, metavar="SHARE", help="of malformed lines, e.g. 1e-6")
    parser.add_argument("--odd", type=float, default=0.0, metavar="SHARE", help="of lines that are legal, but odd")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="also write a question file (JSONL)")
    parser.add_argument("--topics", type=int, default=100, help="questions in it (default: %(default)s)")
    options = parser.parse_args()
    if not 0 < options.gigabytes < 1e6:
        parser.error(f"--gigabytes {options.gigabytes:g}: give a size above 0")
    shares = {"malformed_share": options.malformed, "odd_share": options.odd}
    if not all(0 <= share <= 1 for share in shares.values()):
        parser.error("--malformed and --odd are shares of the lines, between 0 and 1")
    size, topics = int(options.gigabytes * 1e9), list[str]()
    if options.questions:
        world = World(max(1000, size // BYTES_PER_TRIPLE), options.seed)
        try:
            topics = draw_topics(world, options.topics, seed=options.seed)
        except ValueError:
            parser.error(f"--topics {options.topics}: a dump of this size has not so many entities to ask about")
    dump = write_dump(options.out, plain_bytes=size, seed=options.seed, **shares)
    print(f"{dump.lines:,} lines, {dump.plain_bytes:,} bytes plain, {dump.path.stat().st_size:,} in {dump.path}")
    if options.questions:
        write_questions(options.questions, world, topics)


if __name__ == "__main__":
    main()
