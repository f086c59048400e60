"""The recipe of the adapter that the packaged language model is shipped with: several graphs, many relation names.

It learns from MetaQA, from the demo's graph, from hard pools of WebQSP's training questions and from made-up worlds.
Relations of the first two graphs are renamed in two examples of three. WorldCup2014 is left out, and some worlds:
nothing here has seen them. Some pools hold the plans that the untuned text encoder proposes.
The tuning goes on from the adapter that is shipped now; recipe.json keeps that one's recipe under ``started_from``.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.adapter_pools import webqsp_examples, world_pools
from benchmarks.measure import data_folder
from benchmarks.worlds import FILE as WORLDS_FILE
from benchmarks.worlds import HELD_OUT, NAMES_FILE, draw_world, read_worlds, write_worlds
from kgqa_core.artifacts import hash_file, written_whole
from kgqa_core.config_base import SHIPPED
from kgqa_core.config_file import read_config
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.supervision import read_supervision
from kgqa_core.instructions.alignment import learn_wordings
from kgqa_core.instructions.examples import Source, make_examples, write_examples
from kgqa_core.instructions.render import read_prompts
from kgqa_core.instructions.types import Example
from kgqa_core.lm.gguf import FILE, SHA256, find_packaged, write_folder
from kgqa_core.lm.tune import tune
from kgqa_core.lm.tune_data import TuneJob
from kgqa_core.planners.dense import EncoderPlanner, steps_around
from kgqa_core.planners.evaluate import PATHS_FILE
from kgqa_core.questions.build import read_questions
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import encode_all, path_constraints, search_graph, taught
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.systems.answering import PlanSource
from kgqa_core.types import LabelPath, Question, Split

SYNONYMS = {
    "directed_by": "director,film.film.directed_by,wasDirectedBy,helmed by,movie.directed_by",
    "written_by": "writer,film.film.written_by,screenplay by,hasWriter,authored_by",
    "starred_actors": "cast,film.film.starring,features actor,stars,performer",
    "release_year": "year,film.film.initial_release_date,publishedInYear,came out in",
    "in_language": "language,film.film.language,spoken_language,originalLanguage",
    "has_tags": "tag,described as,keyword,film.film.subjects",
    "has_genre": "genre,film.film.genre,kindOfFilm,category",
    "has_imdb_rating": "rating,review score,film.film.rating",
    "has_imdb_votes": "popularity,votes,fame,number_of_votes",
    "acted_in": "film.actor.film,plays in,appearsIn,performed_in,role in",
    "belongs_to_genre": "genre,film.film.genre,hasGenre,category of film",
    "composed_the_music_for": "music.composer.works,composer_of,wrote score for,scored",
    "directed": "director_of,film.director.film,made,wasDirectorOf",
    "has_dialogue_in_language": "language,spoken language,film.film.language,inLanguage",
    "lasts_minutes": "running time,duration,film.film.runtime,lengthInMinutes",
    "premiered_in_year": "release year,first shown in,film.film.initial_release_date,premiere",
    "produced": "producer_of,film.producer.film,financed,isProducerOf",
    "was_filmed_in": "location,shot in,film.film.featured_film_locations,filmingPlace",
    "wrote_the_script_for": "writer_of,film.writer.film,screenwriter of,penned",
}
SAME = 1 / 3  # share of the examples that keep the relations' own names
_ASKED = re.compile(r"(^Question: .*$|^Clues:\n(?:.*\n)*?(?=(?:Entity|From): ))", re.MULTILINE)
_RELATION = re.compile(r"(?<![\w.])(" + "|".join(sorted(SYNONYMS, key=len, reverse=True)) + r")(?![\w.])")
SETTINGS = {
    "wrong_plans": 3,
    "paths_per_question": 2,
    "max_paths": 24,  # of prompts with a line for each
    "abstain": 0.03,
    "candidates": "pool",
    "meant_only": True,
    "num_candidates": 5,
}
METAQA = {  # instruction -> share of the questions
    "reason": 0.75,
    "reason_scored": 0.1,
    "choose": 0.1,
    "plan": 0.1,
    "score_relations": 0.04,
    "score_entities": 0.02,
    "enough_information": 0.06,
    "extract_clues": 0.12,
    "map_relations": 0.03,
    "map_entities": 0.04,
}
DEMO = {name: 0.8 * share for name, share in METAQA.items()}
PER_HOP: dict[str, dict[Split, int]] = {  # questions of each number of hops
    "metaqa-joint": {"train": 30, "dev": 20},
    "demo": {"train": 20, "dev": 15},
}
TUNING = {"batch_size": 8, "learning_rate": 1e-3, "epochs": 1.0, "max_length": 1536, "dev_examples": 6}
LICENCES = {
    "base: SmolLM2-135M-Instruct": "Apache-2.0",
    "MetaQA (Zhang et al., 2018)": "CC BY 3.0",
    "WebQSP (Yih et al., 2016), chains by RouterKGQA and RoG": "CC BY 4.0, MIT",
    "Freebase, names of a sample": "CC BY",
}
TAUGHT_BY = ("metaqa/kb.txt", "gold_plans/webqsp_train.jsonl", "webqsp_plans/train.jsonl", "freebase/sample.nt.gz")
WEBQSP = {"reason": 0.15, "choose": 0.01, "plan": 0.02}
WORLDS = {"reason": 0.9, "choose": 0.04, "plan": 0.15, "score_relations": 0.03}
WORLD_POOLS = 0.2  # share of their questions with a pool as of a retriever
DRAWS, WORLD_QUESTIONS = 1, 18  # of each world, and of each draw
TWO_STEPS = 0.75  # share of those that are drawn with two steps
PROPOSED = {"metaqa-joint": 0.3, "demo": 0.3, "worlds": 0.9}  # share of the questions whose plans the encoder proposes
NUM_PROPOSED = 12  # at most
PASS = 9  # each draws other questions
TAKEN = 0.5  # share of the way from the adapter before to the tuned one that is shipped: what was learned before stays


def renamed(example: Example) -> Example:
    """Return an example with its relations named anew, all of a name alike; a third keep their names.

    Words of the question stay: its line, the clues, and what is taught of them.
    """
    chance = random.Random(f"{example.instruction} {example.question_id} {len(example.target)}")
    if chance.random() < SAME or example.instruction == "extract_clues":
        return example
    names = {relation: chance.choice(given.split(",")) for relation, given in SYNONYMS.items()}
    taken = Counter(names.values())
    names = {relation: name if taken[name] == 1 else relation for relation, name in names.items()}

    def rename(text: str) -> str:
        return _RELATION.sub(lambda match: names[match[1]], text)

    parts = _ASKED.split(example.prompt)  # what is between words of the question, and those in turns
    prompt = "".join(part if place % 2 else rename(part) for place, part in enumerate(parts))
    lines = []
    for line in example.target.split("\n"):
        clue, arrow, option = line.partition(" -> ")
        lines.append(f"{clue}{arrow}{rename(option)}" if arrow else rename(line))
    return dataclasses.replace(example, prompt=prompt, target="\n".join(lines))


def graph_examples(
    conf: Path,
    shares: dict[str, float],
    per_hop: dict[Split, int],
    proposing: float,
    rename: Callable[[Example], Example] = renamed,
) -> Iterator[Example]:
    """Yield the examples of a run's questions, as many of each number of hops.

    A share of them, ``proposing``, reads the plans that the untuned text encoder proposes.
    """
    run = Pipeline(read_config(conf))
    ensure(run, ["supervision"])
    search = search_graph(run)
    section = ReasonerSection(instructions=dict.fromkeys(shares, 1.0), shares=shares, **SETTINGS)  # type: ignore[arg-type]
    source = Source(search, read_prompts(None), section, space=path_constraints(search))
    supervision = read_supervision(run.artifact("supervision").folder / PATHS_FILE)
    source = dataclasses.replace(source, known=learn_wordings((one.text, one.paths) for one in taught(run)))
    for split, most in per_hop.items():
        questions = read_questions(run.artifact("questions").folder, split)
        random.Random(f"{conf.stem} {split} {PASS if split == 'train' else ''}").shuffle(questions)
        taken: Counter[int | None] = Counter()
        chosen = []
        for question in questions:
            taken[question.hops] += 1
            if taken[question.hops] <= most:
                chosen.append(question)
        placed = list(search.place(chosen))
        proposed = propose(run, search, [one for one in placed if random.Random(f"by {one.id}").random() < proposing])
        yield from map(rename, make_examples(dataclasses.replace(source, proposed=proposed), placed, supervision))


def propose(run: Pipeline, search: SearchGraph, questions: list[Question]) -> dict[str, list[LabelPath]]:
    """Return the plans that the untuned text encoder proposes for each question, best first."""
    planner = EncoderPlanner(partial(encode_all, run), steps_around(path_constraints(search)), search.max_hops)
    plans = PlanSource(planner).prepare(questions, NUM_PROPOSED)
    return {one.id: [plan.path for plan in found or ()] for one, found in zip(questions, plans, strict=True)}


def world_examples(out: Path) -> Iterator[Example]:
    """Yield the examples of ``DRAWS`` draws of each made-up world but those that are held out."""
    drawn = [
        (f"{name}-{PASS}-{draw}", draw_world(relations, f"{name} {PASS} {draw}", WORLD_QUESTIONS, TWO_STEPS))
        for name, relations in read_worlds().items()
        for draw in range(DRAWS)
        if name not in HELD_OUT
    ]
    for conf in write_worlds(out, iter(drawn), "train"):
        per_hop: dict[Split, int] = {"train": WORLD_QUESTIONS, "dev": 3}
        yield from graph_examples(conf, WORLDS, per_hop, PROPOSED["worlds"], lambda example: example)
    for _, world in drawn:
        yield from world_pools(world, read_prompts(None), WORLD_POOLS)


def write_data(data: Path, out: Path) -> dict[str, int]:
    """Write all examples; return how many there are of each instruction, train and dev."""

    def examples() -> Iterator[Example]:
        for name, shares in (("metaqa-joint", METAQA), ("demo", DEMO)):
            yield from graph_examples(Path(f"conf/{name}.yaml"), shares, PER_HOP[name], PROPOSED[name])
        yield from world_examples(out.with_name("worlds"))
        yield from webqsp_examples(data, read_prompts(None), WEBQSP, PASS)

    return write_examples(examples(), out)


def run(home: Path) -> None:
    """Make the examples, tune on them, and put the adapter where the package has it."""
    base, examples, data = home / "smollm2", home / "examples.parquet", data_folder()
    if not base.exists():
        write_folder(find_packaged(), base)
    counts = write_data(data, examples)
    section = ReasonerSection(**TUNING)  # type: ignore[arg-type]
    start = home / "start"  # a copy: SHIPPED is written over at the end, and a killed training begins with it again
    if not start.exists():
        with written_whole(start) as copy:
            shutil.copytree(SHIPPED, copy)
    job = TuneJob(
        base=base, adapter=start, examples=(examples,), section=section, out=home / "out", journal=home / "journal"
    )
    report = tune(job, on_point=lambda *point: print(*point, flush=True))
    before = json.loads((start / "recipe.json").read_text(encoding="utf-8"))
    told = {
        "base": {"file": FILE, "sha256": SHA256},
        "taught_by": {name: hash_file(data / name) for name in TAUGHT_BY}
        | {"demo": "the dataset of this package", "worlds": hash_file(WORLDS_FILE), "names": hash_file(NAMES_FILE)},
        "licences": LICENCES,
        "examples": counts,
        "graph_settings": SETTINGS,
        "questions_per_hop": PER_HOP,
        "proposed": {"shares": PROPOSED, "most": NUM_PROPOSED},
        "shares": {"metaqa": METAQA, "demo": DEMO, "webqsp": WEBQSP, "worlds": WORLDS},
        "tuning": section.model_dump(mode="json"),
        "report": report.model_dump(mode="json", exclude={"folder"}),
        "taken": TAKEN,
        "command": "python -m benchmarks shipped_adapter",
        "started_from": {"sha256": hash_file(start / "adapter_model.safetensors"), "recipe": before},
    }
    ship(start, report.folder, SHIPPED, told)
    shutil.rmtree(start)  # the next tuning goes on from this one's


def ship(start: Path, adapter: Path, out: Path, recipe: dict[str, object]) -> None:
    """Write what lies between two adapters in bfloat16, without what depends on the machine, and how it was made.

    Weights between those before and after a tuning keep more of what was known before (Wortsman et al., 2022, WiSE-FT).
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    before, after = (load_file(one / "adapter_model.safetensors") for one in (start, adapter))
    tensors = {
        name: torch.lerp(before[name].float(), tuned.float(), TAKEN).to(torch.bfloat16) for name, tuned in after.items()
    }
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = "HuggingFaceTB/SmolLM2-135M-Instruct"
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (out / "recipe.json").write_text(json.dumps(recipe, indent=2, sort_keys=True) + "\n", encoding="utf-8")
