"""The movie-like graph: who made which film, and what each film is like. Long-tailed as real ones are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgqa_core.embedded.draw import Draw
from kgqa_core.embedded.names import GENRES, NameMaker

DIRECTED = "directed"
WROTE = "wrote_the_script_for"
ACTED = "acted_in"
COMPOSED = "composed_the_music_for"
PRODUCED = "produced"
GENRE = "belongs_to_genre"
YEAR = "premiered_in_year"
PLACE = "was_filmed_in"
LANGUAGE = "has_dialogue_in_language"
MINUTES = "lasts_minutes"
RELATIONS = (DIRECTED, WROTE, ACTED, COMPOSED, PRODUCED, GENRE, YEAR, PLACE, LANGUAGE, MINUTES)

NUM_FILMS = 1000
NUM_ACTORS, NUM_DIRECTORS, NUM_WRITERS, NUM_COMPOSERS = 1150, 240, 260, 130
NUM_ACTING_DIRECTORS, NUM_WRITING_DIRECTORS = 60, 90  # people who are both
NUM_STUDIOS, NUM_PLACES, NUM_LANGUAGES = 64, 120, 18
FIRST_YEAR, LAST_YEAR = 1961, 2022
NUM_SHARED_TITLES, NUM_SHARED_PERSON_NAMES, NUM_FILMS_NAMED_AFTER_PEOPLE = 14, 9, 3

Triple = tuple[str, str, str]
"""head label, relation label, tail label"""


@dataclass(frozen=True)
class MovieGraph:
    """A generated graph; entities are known by label, e.g. ``film_0012``."""

    names: dict[str, str]  # label -> name, sorted by label; several labels may share a name
    triples: tuple[Triple, ...]  # sorted, without repetition
    steps: dict[str, dict[str, tuple[str, ...]]]  # relation or ~relation -> label -> labels reached, sorted


@dataclass(frozen=True)
class _Pools:
    """Labels by role; the order is the rank in popularity."""

    films: list[str]
    actors: list[str]
    directors: list[str]
    writers: list[str]
    composers: list[str]
    studios: list[str]
    genres: list[str]
    places: list[str]
    languages: list[str]


def make_graph(seed: int) -> MovieGraph:
    """Return the graph that belongs to ``seed``: about 3,000 entities and 13,000 triples of 10 relations."""
    names, pools = _make_entities(Draw(seed, "entities"))
    triples = tuple(sorted(_make_triples(pools, Draw(seed, "triples"))))
    used = sorted({label for head, _, tail in triples for label in (head, tail)})
    return MovieGraph(
        names={label: names.get(label, label.partition("_")[2]) for label in used},  # years and minutes: the number
        triples=triples,
        steps=_index_steps(triples),
    )


def follow(graph: MovieGraph, topic: str, chain: Sequence[str], *, banned: Iterable[str] = ()) -> frozenset[str]:
    """Return the labels that ``chain`` leads to from ``topic``; no step arrives at ``topic`` or at ``banned`` ones."""
    closed = {topic, *banned}
    reached = {topic}
    for step in chain:
        targets = graph.steps[step]
        reached = {tail for label in reached for tail in targets.get(label, ()) if tail not in closed}
    return frozenset(reached)


def _make_entities(draw: Draw) -> tuple[dict[str, str], _Pools]:
    """Return label -> name of everything that has a name of its own, and the labels by role."""
    maker = NameMaker(draw, taken=GENRES)
    num_people = NUM_ACTORS + NUM_DIRECTORS - NUM_ACTING_DIRECTORS + NUM_WRITERS - NUM_WRITING_DIRECTORS + NUM_COMPOSERS
    people = _label("person", maker.people(num_people))
    places = _label("place", maker.places(NUM_PLACES))
    films = _label("film", maker.films(NUM_FILMS, places=list(places.values())))
    studios = _label("studio", maker.studios(NUM_STUDIOS))
    languages = _label("language", maker.languages(NUM_LANGUAGES))
    genres = _label("genre", GENRES)
    _share_names(films, people, draw)
    order = draw.shuffle(list(people))
    actors, others = order[:NUM_ACTORS], order[NUM_ACTORS:]
    num_new_directors = NUM_DIRECTORS - NUM_ACTING_DIRECTORS
    num_new_writers = NUM_WRITERS - NUM_WRITING_DIRECTORS
    directors = draw.shuffle(others[:num_new_directors] + draw.shuffle(actors)[:NUM_ACTING_DIRECTORS])
    new_writers = others[num_new_directors : num_new_directors + num_new_writers]
    pools = _Pools(
        films=list(films),
        actors=actors,
        directors=directors,
        writers=draw.shuffle(new_writers + draw.shuffle(directors)[:NUM_WRITING_DIRECTORS]),
        composers=others[num_new_directors + num_new_writers :],
        studios=list(studios),
        genres=draw.shuffle(list(genres)),
        places=list(places),
        languages=list(languages),
    )
    return films | people | places | studios | languages | genres, pools


def _label(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Return label -> name with labels ``kind_0000``, ``kind_0001``..."""
    return {f"{kind}_{number:04d}": name for number, name in enumerate(names)}


def _share_names(films: dict[str, str], people: dict[str, str], draw: Draw) -> None:
    """Make homonyms: pairs of films, pairs of people, and films named after a person."""
    titles, persons = draw.shuffle(list(films)), draw.shuffle(list(people))
    for _ in range(NUM_SHARED_TITLES):
        films[titles.pop()] = films[titles.pop()]
    for _ in range(NUM_FILMS_NAMED_AFTER_PEOPLE):
        films[titles.pop()] = people[persons.pop()]
    for _ in range(NUM_SHARED_PERSON_NAMES):
        people[persons.pop()] = people[persons.pop()]


def _make_triples(pools: _Pools, draw: Draw) -> set[Triple]:
    """Return all triples; everybody has one film at least, and the popular ones have many."""
    films = pools.films
    triples: set[Triple] = set()
    for people, relation, most, head_start in (
        (pools.directors, DIRECTED, (1, 1, 1, 1, 1, 1, 1, 1, 2), 12),
        (pools.writers, WROTE, (1, 1, 1, 2), 14),
        (pools.actors, ACTED, (2, 3, 4, 4, 5, 5, 6, 7), 9),
        (pools.composers, COMPOSED, (1,), 8),
        (pools.studios, PRODUCED, (1, 1, 1, 1, 1, 2), 5),
    ):
        counts = [draw.pick(most) for _ in films]
        for film, members in zip(films, _cast(people, counts, head_start, draw), strict=True):
            triples |= {(person, relation, film) for person in members}
    triples |= _make_double_roles(triples, draw)
    for film in films:
        triples |= {(film, GENRE, draw.pick_ranked(pools.genres, head_start=2)) for _ in range(draw.pick((1, 1, 2)))}
        triples |= {
            (film, PLACE, draw.pick_ranked(pools.places, head_start=10)) for _ in range(draw.pick((1, 1, 1, 2)))
        }
        triples.add((film, LANGUAGE, draw.pick_ranked(pools.languages, head_start=1)))
        if draw.chance(7):
            triples.add((film, LANGUAGE, draw.pick(pools.languages)))
        year = max(draw.between(FIRST_YEAR, LAST_YEAR), draw.between(FIRST_YEAR, LAST_YEAR))  # recent years have more
        triples.add((film, YEAR, f"year_{year}"))
        triples.add((film, MINUTES, f"minutes_{60 + draw.between(8, 50) + draw.between(0, 50)}"))
    return triples


def _cast(people: Sequence[str], counts: Sequence[int], head_start: int, draw: Draw) -> list[set[str]]:
    """Return one set of people per film, of up to the given sizes: everybody once, the other places by popularity."""
    waiting = draw.shuffle(people)
    members: list[set[str]] = [set() for _ in counts]
    order = draw.shuffle(range(len(counts)))
    for seat in range(max(counts)):
        for film in order:
            if seat < counts[film]:
                take = waiting.pop() if waiting else draw.pick_ranked(people, head_start=head_start)
                members[film].add(take)
    return members


def _make_double_roles(triples: set[Triple], draw: Draw) -> set[Triple]:
    """Return parallel edges: some directors also wrote their film, and a few also play in it."""
    extra: set[Triple] = set()
    for head, relation, tail in sorted(triples):
        if relation == DIRECTED:
            if draw.chance(22):
                extra.add((head, WROTE, tail))
            if draw.chance(6):
                extra.add((head, ACTED, tail))
    return extra


def _index_steps(triples: Iterable[Triple]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return relation -> head -> tails and ~relation -> tail -> heads."""
    steps: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for head, relation, tail in triples:
        steps[relation][head].append(tail)
        steps[f"~{relation}"][tail].append(head)
    return {step: {label: tuple(sorted(ends)) for label, ends in ends_of.items()} for step, ends_of in steps.items()}
