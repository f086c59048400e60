"""What a retraining adds around the gate: where it starts, what it releases, who is champion then, and telling that."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from typing import Any

from flows.summary import RunSummary
from kgqa_core.config import RunConfig
from kgqa_core.errors import ArtifactError
from kgqa_core.run.pipeline import Pipeline
from tasks.gate import judge, refuse
from tasks.registry import point_aliases
from tasks.release import Move, MoveKind, Releases, champion_of, releases_of
from tasks.runtime import run_as_task
from tasks.webhook import announce

_log = logging.getLogger(__name__)


def judge_release(config: RunConfig, pipeline: Pipeline, summary: RunSummary, parent: str | None) -> RunSummary:
    """Pin what a run made as a release, let the gate judge it, and move the champion where it passes.

    ``config``: as the user gave it; ``parent``: the release that its explorer started from.
    """
    releases = releases_of(config)
    challenger = releases.make(config, pipeline, parent, metadata.version("kgqa"))
    champion = releases.champion()  # which may be that one, made again after somebody deleted its folder
    before = champion.id if champion else None
    for one in filter(None, (challenger, champion)):
        with suppress(ArtifactError):  # said where it is asked or served
            releases.restore(one)
    found: dict[str, Any] = {"challenger": challenger.id, "champion": before}
    why = ""
    if challenger.id == before:
        why = f"nothing new: release {before} is the champion already"
    elif back := releases.rolled_back(challenger.id):  # else the next run would undo what somebody on call decided
        why = f"nothing new: release {challenger.id} was rolled back on {back.when} ({back.why}); kgqa promote takes it"
    if why:
        return replace(summary, gate={**found, "promoted": False, "reason": why, "markdown": f"{why}\n"})
    judged = judge(pipeline, challenger, champion, worker=run_as_task)
    kind: MoveKind = "refused" if judged.faults else "promoted"
    move = releases.move(kind, challenger.id, judged.reason, expected=before)
    _log.info("release %s is %s: %s", challenger.id, kind, judged.reason)
    found |= {"promoted": kind == "promoted" and move is not None, "reason": judged.reason, "markdown": judged.markdown}
    return replace(summary, outcomes=(*summary.outcomes, judged.outcome), gate=found)


def refuse_release(config: RunConfig, pipeline: Pipeline, summary: RunSummary, why: str) -> RunSummary:
    """End a retraining that made no release as a refusal: the champion stays."""
    before = champion_of(releases_of(config).moves())
    refused = refuse(pipeline, before, why)
    _log.info("nothing is promoted: %s", why)
    found = {"challenger": None, "champion": before, "promoted": False, "reason": why, "markdown": refused.markdown}
    return replace(summary, outcomes=(*summary.outcomes, refused.outcome), gate=found)


def move_champion(config: RunConfig, to: str | None, why: str, *, back: bool = False) -> Move | None:
    """Make a release the champion by hand, the last challenger by default, or with ``back`` the champion before.

    Returns None where it is champion already. What it needs is put back where the artifact store lost it. Raises
    InputError where there is no such release.
    """
    releases = releases_of(config)
    chosen = releases.read(to or (releases.before_champion() if back else releases.last_challenger()))
    if restored := releases.restore(chosen):
        _log.info("put back into the artifact store: %s", ", ".join(restored))
    move = releases.move("rolled back" if back else "promoted", chosen.id, why)
    tell(config)
    return move


def tell(config: RunConfig) -> None:
    """Let MLflow's aliases show the last move, and the webhook know of it, unless they do."""
    releases = releases_of(config)
    tell_aliases(config, releases)
    announce(releases)


def tell_aliases(config: RunConfig, releases: Releases) -> None:
    """Let MLflow's aliases show the last move, unless they do; an MLflow that is away is told by the next run."""
    moves = releases.moves()
    if not moves or moves[-1].told or not (config.tracking.enabled and config.tracking.register_models):
        return
    shown = -1
    while shown != len(moves):  # whoever moved the champion meanwhile may have told MLflow before this did
        shown, champion, last = len(moves), champion_of(moves), moves[-1]
        named = champion, last.to_release if last.kind == "refused" else None
        versions = [releases.read(one).explorer if one else None for one in named]
        if not point_aliases(releases.home, releases.model, *versions):
            return
        moves = releases.tell(shown)
