"""A made-up Freebase as text: the lines of the dump, noise included, block by block of subjects."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.freebase import facts
from benchmarks.freebase.facts import BLOCK
from benchmarks.freebase.vocabulary import LANGUAGES, Ints, Literals, Phrases
from benchmarks.freebase.world import World

NS = "http://rdf.freebase.com/ns/"
KEYS = "http://rdf.freebase.com/key/"
RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
RDFS_LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
SAME_AS = "http://www.w3.org/2002/07/owl#sameAs"
NAME, ALIAS, TYPE = f"{NS}type.object.name", f"{NS}common.topic.alias", f"{NS}type.object.type"
KEY_SPACES = ("wikipedia.en", "wikipedia.en_id", "wikipedia.de", "authority.musicbrainz", "en", "wikidata")
TITLES_PER_ENTITY, KEYS_PER_TITLE = 2, 2
# Noise: relation and share of the entities that have it. Objects: a node that is near, a popular entity, a page.
NEAR = (("common.topic.article", 0.7), ("common.topic.notable_for", 0.9), ("common.topic.image", 0.2))
POPULAR = (("common.topic.notable_types", 0.9), ("type.object.attribution", 0.1))
POPULAR += (("freebase.valuenotation.is_reviewed", 0.05),)
PAGES = ((f"{NS}common.topic.topic_equivalent_webpage", 2.0), (f"{NS}common.topic.official_website", 0.1))
PAGES += ((SAME_AS, 0.05),)
DESCRIPTION_SHARE, DESCRIPTION_WORDS = 0.2, 14  # times three
Lines = list[tuple[Ints, Ints | int, pa.Array]]  # places of subjects, rows of predicates, objects


class Writer:
    """The dump of a world: ``first``, then a ``block`` after the other, then ``last``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._phrases = Phrases(world.seed)
        self._literals = pa.array(Literals(world.num_literals, world.seed).forms)
        schema = world.schema
        noise = [NAME, ALIAS, TYPE, RDF_TYPE, RDFS_LABEL, f"{NS}type.object.key", f"{NS}common.topic.description"]
        noise += [f"{NS}{relation}" for relation, _ in (*NEAR, *POPULAR)] + [relation for relation, _ in PAGES]
        noise += [f"{KEYS}{space}" for space in KEY_SPACES]
        self._row = {relation: len(schema.relations) + row for row, relation in enumerate(noise)}
        predicates = [f"{NS}{label}" for label in schema.relations] + noise
        self._predicates = pa.array([f">\t<{label}>\t" for label in predicates])
        self._types = pa.array([f"<{NS}{label}>" for label in schema.types])
        self._tags = pa.array([f'"@{language}' for language in ("en", *LANGUAGES)])

    def block(self, block: range) -> pa.Array:
        """Return the lines of a block of nodes, each with its line feed, those of a subject in any order."""
        lines: Lines = [*self._facts(block), *self._names(block)]
        generator = facts.stream(self._world, block, facts.NOISE)
        rank = self._world.rank_of(np.arange(block.start, block.stop))
        lines += self._noise(np.flatnonzero(rank < self._world.num_entities), generator)
        place = np.concatenate([one[0] for one in lines])
        relation = np.concatenate([np.broadcast_to(one[1], len(one[0])) for one in lines])
        order = np.argsort((place << 32) | generator.integers(0, 1 << 32, len(place)))
        subjects = self._mids(np.arange(block.start, block.stop), "")
        return pc.binary_join_element_wise(
            subjects.take(pa.array(place[order])),
            self._predicates.take(pa.array(relation[order])),
            pa.concat_arrays([one[2] for one in lines]).take(pa.array(order)),
            "\t.\n",
            "",
        )

    def first(self) -> list[str]:
        """Return the lines about relations whose labels come before those of nodes."""
        return _schema_lines(label for label in self._world.schema.relations if label < "g.")

    def last(self) -> list[str]:
        """Return the lines about relations whose labels come after those of nodes; none lie between g. and m."""
        return _schema_lines(label for label in self._world.schema.relations if label > "m.")

    def _facts(self, block: range) -> Lines:
        triples = facts.draw_triples(self._world, block)
        literal = triples.tail < 0
        place, types = facts.draw_types(self._world, block)
        objects = self._types.take(pa.array(types))
        return [
            (triples.place[~literal], triples.relation[~literal], self._mids(triples.tail[~literal])),
            (
                triples.place[literal],
                triples.relation[literal],
                self._literals.take(pa.array(-1 - triples.tail[literal])),
            ),
            (place, self._row[TYPE], objects),
            (place, self._row[RDF_TYPE], objects),
        ]

    def _names(self, block: range) -> Lines:
        names = facts.draw_names(self._world, block)
        tags = self._tags.take(pa.array(names.language))
        objects = _join('"', self._phrases.labels(names.language, names.words), tags)
        label = ~names.is_alias
        rows = np.where(names.is_alias, self._row[ALIAS], self._row[NAME])
        return [
            (names.place, rows, objects),
            (names.place[label], self._row[RDFS_LABEL], objects.filter(pa.array(label))),
        ]

    def _noise(self, entities: Ints, generator: np.random.Generator) -> Lines:
        """Return keys, pages, references and descriptions of entities.

        They repeat one another as the real ones do: a title is in two keys and a page, an article's MID is near its
        topic's, a few types are notable. So text packs about as well.
        """
        row, here = self._row, np.arange(len(entities))
        titles = self._draw_text(TITLES_PER_ENTITY * len(entities), "_", generator)
        key = np.repeat(np.arange(len(titles)), KEYS_PER_TITLE)
        place, text = entities[key // TITLES_PER_ENTITY], titles.take(pa.array(key))
        space = generator.integers(0, len(KEY_SPACES), len(key))
        slashed = pa.array([f'"/{name.replace(".", "/")}/' for name in KEY_SPACES]).take(pa.array(space))
        lines: Lines = [
            (place, row[f"{KEYS}{KEY_SPACES[0]}"] + space, _join('"', text, '$0028film$0029"')),
            (place, row[f"{NS}type.object.key"], _join(slashed, text, '"')),
        ]
        for relation, share in NEAR:
            chosen = entities[_some(here, share, generator)]
            first = generator.integers(0, max(1, self._world.num_nodes - BLOCK))
            near = np.minimum(chosen + first + generator.integers(0, 4, len(chosen)), self._world.num_nodes - 1)
            lines.append((chosen, row[f"{NS}{relation}"], self._mids(near)))
        for relation, share in POPULAR:
            chosen = entities[_some(here, share, generator)]
            popular = (generator.random(len(chosen)) ** 3 * min(500, self._world.num_entities)).astype(np.int64)
            lines.append((chosen, row[f"{NS}{relation}"], self._mids(self._world.number_of(popular))))
        for relation, share in PAGES:
            chosen = _some(here, share, generator)
            pages = titles.take(pa.array(chosen * TITLES_PER_ENTITY))
            lines.append((entities[chosen], row[relation], _join("<http://en.wikipedia.org/wiki/", pages, ">")))
        chosen = _some(here, DESCRIPTION_SHARE, generator)
        words = [self._draw_text(len(chosen), " ", generator) for _ in range(DESCRIPTION_WORDS)]
        text = pc.binary_join_element_wise(*words[:5], r"\n\"", *words[5:], r"\" \u2014", " ")
        lines.append((entities[chosen], row[f"{NS}common.topic.description"], _join('"', text, '"@en')))
        return lines

    def _draw_text(self, count: int, separator: str, generator: np.random.Generator) -> pa.Array:
        return self._phrases.english(generator.integers(0, 1 << 30, (count, 3)), separator)

    def _mids(self, numbers: Ints, end: str = ">") -> pa.Array:
        return _join(f"<{NS}", self._world.mids(numbers), end)


def _schema_lines(relations: Iterable[str]) -> list[str]:
    return [
        f"<{NS}{label}>\t<{predicate}>\t<{NS}{tail}>\t.\n"
        for label in sorted(relations)
        for predicate, tail in ((f"{NS}type.property.schema", label.rpartition(".")[0]), (RDF_TYPE, "type.property"))
    ]


def _join(before: pa.Array | str, text: pa.Array, after: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(before, text, after, "")


def _some(entities: Ints, share: float, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return entities, each as often as its luck says, ``share`` times on average."""
    times = (share + generator.random(len(entities))).astype(np.int64)
    return np.repeat(entities, times)
