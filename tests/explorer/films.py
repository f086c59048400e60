"""A world small enough to learn in a second: films, their directors, years and one genre that is a hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kgqa_core.config import ExplorerSection
from kgqa_core.explorer.batch import question_arrays
from kgqa_core.explorer.explore import ExploreOptions, Lessons
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.explorer.train import Trainer
from kgqa_core.text.encoder import HashEncoder
from kgqa_core.types import Question
from tests.explorer.worlds import make_graph, make_question

NUM_FILMS, NUM_DIRECTORS, NUM_YEARS = 23, 7, 5
RELATIONS = ["directed by", "has genre", "release year"]
DIRECTED, GENRE, YEAR = range(3)
DIRECTOR_0, YEAR_0, DRAMA = NUM_FILMS, NUM_FILMS + NUM_DIRECTORS, NUM_FILMS + NUM_DIRECTORS + NUM_YEARS
FILMS = range(NUM_FILMS)

WHO, WHEN, SAME = (
    "who directed the film [topic]",
    "what was the release year of [topic]",
    "which films are directed by the director of [topic]",
)


def director(film: int) -> int:
    return DIRECTOR_0 + film % NUM_DIRECTORS


def year(film: int) -> int:
    return YEAR_0 + film // NUM_YEARS


TRIPLES = [
    *((film, DIRECTED, director(film)) for film in FILMS),
    *((film, YEAR, year(film)) for film in FILMS),
    *((film, GENRE, DRAMA) for film in FILMS),
]
GRAPH = make_graph(TRIPLES, num_entities=DRAMA + 1, num_relations=len(RELATIONS))

TEXT_ROW = {text: row for row, text in enumerate((WHO, WHEN, SAME))}
ENCODER = HashEncoder(61)
TEXTS = Texts(torch.tensor(ENCODER.encode(list(TEXT_ROW))), torch.tensor(ENCODER.encode(RELATIONS)))
OPTIONS = ExploreOptions(edge_budget=29)


def section(**changes: object) -> ExplorerSection:
    """Settings that learn this world quickly: full exploration, no noise."""
    chosen = {"epochs": 1, "batch_size": 11, "learning_rate": 0.01, "warmup_steps": 3, "prune_after": 0}
    plain = {"steps": 2, "edge_budget": 29, "prune_below": 0.0, "question_noise": 0.0}
    return ExplorerSection(**(plain | chosen | changes))


def questions() -> list[Question]:
    return [
        question
        for film in FILMS
        for question in (
            make_question([film], [director(film)], masked=WHO),
            make_question([film], [year(film)], masked=WHEN),
            make_question(
                [film], [other for other in FILMS if other != film and director(other) == director(film)], masked=SAME
            ),
        )
    ]


def lessons(asked: Sequence[Question] | None = None, **options: bool | float) -> Lessons:
    arrays = question_arrays(questions() if asked is None else asked, TEXT_ROW)
    return Lessons(GRAPH, arrays, TEXTS, replace(OPTIONS, **options))  # type: ignore[arg-type]


def fresh_model(seed: int = 0, *, width: int = 17) -> Explorer:
    torch.manual_seed(seed)
    return Explorer(encoding_dim=ENCODER.dim, width=width, steps=2)


def trained(seed: int = 0, *, epochs: int) -> Explorer:
    model = fresh_model(seed)
    list(Trainer(model, [lessons()], section(epochs=epochs), seed=0).steps())
    return model
