"""The section about systems: which are compared, how each is set, who answers for them, and under which limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from kgqa_core.config_base import FilePath, Section, Seeds, Share

SystemName = Literal["etd", "dualr", "rog", "eperm", "fiske", "direct", "cot", "tog", "explorer", "ours"]
SYSTEMS: tuple[SystemName, ...] = ("etd", "dualr", "rog", "eperm", "fiske", "direct", "cot", "tog", "explorer", "ours")
PlanSourceName = Literal["lm", "generator", "dense", "mixture", "random", "none"]
WITHOUT_LM = frozenset[SystemName]({"explorer"})  # they ask none
Answerer = Literal["lm", "oracle", "random", "first"]
"""Who plays the language model: the run's own; one that knows the golds but says only what its prompt shows; one that
picks at random from what its prompt shows; one that always picks the first."""


class EtdSection(Section):
    """EtD: explore, then determine by one multiple-choice call (§3.3, Table 4, appendix E)."""

    num_candidates: Annotated[int, Field(ge=1, le=26)] = 3  # N
    multiple_choice: bool = True  # False, w/o mcp: one list of names, without labels
    candidates: bool = True  # False, w/o candidates: names are not shown
    probabilities: bool = True  # False, w/o probabilities
    paths: bool = True  # False, w/o paths: no evidence chains
    renormalise: Literal["all", "shown"] = "all"  # Eq. 3 over all candidates, or over those shown
    only_candidates: bool = False  # hold the model to the labels; the paper leaves it free
    determine: Literal["text", "likelihood"] = "text"  # likelihood: the most probable label line is the choice
    answer_set: Literal["chosen", "tied"] = "chosen"  # tied: with those beyond N that tie with one chosen (ours)


class DualrSection(EtdSection):
    """DualR: EtD's way with first-and-last-layer encodings, its prompt, and a tuned ``choose`` (§4.3, Table 5)."""

    explorer: FilePath | None = None  # run configuration of an explorer on first+last encodings; None: EtD's own


class RogSection(Section):
    """RoG: plan, retrieve, reason (§4, Algorithm 1)."""

    plans: PlanSourceName = "lm"  # none: w/o planning, no path at all; random: random plans (Table 2)
    num_plans: Annotated[int, Field(ge=1)] = 3  # top-K of the beam
    reasoning: Literal["lm", "none", "vote"] = "lm"  # none: all that is reached; vote: the most often reached
    vote_top: Annotated[int, Field(ge=1)] = 5  # answers of vote
    max_paths: Annotated[int, Field(ge=1)] = 40  # reasoning paths in the prompt
    explain: bool = False  # ask for an explanation with the answers


class EpermSection(Section):
    """EPERM: retriever, evidence path finder, answer predictor (§3, Fig. 3, Tables 3-4)."""

    num_plans: Annotated[int, Field(ge=1)] = 5  # s: weighted plans of the generator
    plans: PlanSourceName = "lm"
    retriever: bool = True  # False: plans are followed in the whole neighbourhood
    retriever_width: Annotated[int, Field(ge=1)] = 3  # K of the beam of relations
    retriever_depth: Annotated[int, Field(ge=1)] | None = None  # steps; None: the explorer's
    relation_batch: Annotated[int, Field(ge=2)] = 100  # relations per call
    weighted_plans: bool = True  # False: all plans weigh alike
    entity_scores: bool = True  # False: all entities weigh alike, and none is asked about
    top_entities: Annotated[int, Field(ge=1)] = 4  # S per plan and hop
    look_ahead: bool = True  # ours: what leads nowhere along its plan is not asked about; False: as published
    max_candidates: Annotated[int, Field(ge=1)] = 20  # entities asked about per plan and hop, of the smallest ids
    num_neighbours: Annotated[int, Field(ge=0)] = 5  # triples shown around an entity
    finder: Literal["single", "batch"] = "batch"  # one call per candidate entity (EPERM), or per frontier (ours)
    max_paths: Annotated[int, Field(ge=1)] = 40
    path_scores: bool = True  # show a score after each path
    predictor: Literal["lm", "none"] = "lm"  # none: all that the paths end at (Table 4, w/o answer predictor)


class FiskeSection(Section):
    """FiSKE: clues, starting entities by name, alternating relation and entity mapping (§3, Table 6)."""

    state: bool = True  # False, w/o stateful exploration: all clues in every round
    end_flag: bool = True  # False, w/o ending flag: evidence is always given, and there is no fallback
    merge_branches: bool = (
        True  # ours: branches of equal state are asked about together; False: one by one, as published
    )
    starts: Literal["all", "proper"] = "proper"  # ours: where a clue with a capital or a digit is a name, only such
    entity_mapping: Literal["always", "late"] = "late"  # ours: only where no relation takes a clue that is left
    branches_meet: bool = True  # ours: branches of two starts complete each other; a name nearby is not the only way
    relation_batch: Annotated[int, Field(ge=1)] = 20  # relations per call
    min_relation_score: Annotated[float, Field(ge=0, le=10)] = 5.0
    max_entities: Annotated[int, Field(ge=1)] = 80  # per call
    max_starts: Annotated[int, Field(ge=1)] = 10  # starting entities
    max_rounds: Annotated[int, Field(ge=1)] | None = None  # None: as many as there are clues
    rewrite_question: bool = True  # who, where, when as which person, which place, what time (the released code)
    answer_triples: Annotated[int, Field(ge=1)] = 30  # in the answer prompt


class TogSection(Section):
    """Think-on-Graph: a beam of relations and entities, pruned by the model (Sun et al., 2024)."""

    width: Annotated[int, Field(ge=1)] = 3
    depth: Annotated[int, Field(ge=1)] = 3
    entity_prune: Literal["lm", "none"] = "lm"  # none: entities in order of id, without a call
    max_entities: Annotated[int, Field(ge=1)] = 20  # candidates per relation that the model sees
    unsure: Literal["alone", "reason"] = "alone"  # at the last step: as published, without the paths; or on them


class OursSection(Section):
    """Ours: explorer and planner fused, the language model only where the two disagree."""

    planner: Literal["generator", "dense", "mixture"] = "dense"  # a generator costs a call for every question
    num_plans: Annotated[int, Field(ge=1)] = 3


class OracleSection(Section):
    """A stand-in for a large model: answers from its prompt alone, right with probability 1 - error."""

    error: Share = 0.0  # e
    knows: Share = 0.0  # share of the questions that it can answer without any fact in the prompt
    fill_budget: bool = False  # name as many relations as it may, those that are not right with low scores
    seed: Annotated[int, Field(ge=0)] = 0


class VariantSection(Section):
    """A system under other settings, as a row of its own: an ablation, or one point of a sweep."""

    system: SystemName
    settings: dict[str, Any] = Field(default_factory=dict)  # over those of the system's section
    answered_by: Annotated[tuple[Answerer, ...], Field(strict=False, min_length=1)] | None = None  # None: as all


VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/-]{0,59}$")]  # a legal name in MLflow


class SystemsSection(Section):
    """The comparison of systems: ``kgqa evaluate --systems``."""

    run: Annotated[tuple[SystemName, ...], Field(strict=False)] = SYSTEMS
    answered_by: Annotated[tuple[Answerer, ...], Field(strict=False, min_length=1)] = ("lm",)
    variants: dict[VariantName, VariantSection] = Field(default_factory=dict)  # further rows, by name
    topics: Literal["gold", "linked"] = "gold"  # linked: topic entities from the text alone, for every system
    pool: Literal["none", "hard"] = "none"  # hard: the gold plan and two wrong ones that exist, in place of retrieval
    num_questions: Annotated[int, Field(ge=1)] | None = None  # asked at most, drawn by seed; None: all
    draw: Annotated[int, Field(ge=0)] = 0  # the seed of that draw
    seeds: Seeds | None = None  # each system answers once per seed; None: those of the explorer
    max_calls: Annotated[int, Field(ge=1)] | None = 30  # per question and system (FiSKE §4.1); None: no limit
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None  # of a text at most; None: what each instruction may need
    chunk: Annotated[int, Field(ge=1)] = 256  # questions answered together: what a killed run loses at most
    max_traces: Annotated[int, Field(ge=0)] = 50  # questions per system whose calls MLflow shows, failures first
    oracle: OracleSection = OracleSection()
    etd: EtdSection = EtdSection()
    dualr: DualrSection = DualrSection()
    rog: RogSection = RogSection()
    eperm: EpermSection = EpermSection()
    fiske: FiskeSection = FiskeSection()
    tog: TogSection = TogSection()
    ours: OursSection = OursSection()

    @model_validator(mode="after")
    def _variants_fit(self) -> SystemsSection:
        if not self.run and not self.variants:
            raise ValueError("run: name at least one system, or a variant")
        for row in self.variants:
            if row in SYSTEMS or "-seed" in row:
                raise ValueError(f"variants.{row}: a variant has a name of its own, without '-seed'")
            if self.variants[row].system == "ours" and self.variants[row].settings:
                raise ValueError(f"variants.{row}: what ours fuses is chosen once for a run; set systems.ours")
            self.as_row(row)
        return self

    def rows(self) -> dict[str, tuple[SystemName, tuple[Answerer, ...]]]:
        """Return the rows of the comparison by name: which system each is, and who answers for it."""
        found: dict[str, tuple[SystemName, tuple[Answerer, ...]]] = {
            name: (name, self.answered_by) for name in self.run
        }
        found |= {row: (one.system, one.answered_by or self.answered_by) for row, one in self.variants.items()}
        return found

    def is_answered_by(self, who: Answerer) -> bool:
        """Say whether somebody answers for any system that asks a language model."""
        return any(who in answerers for name, answerers in self.rows().values() if name not in WITHOUT_LM)

    def as_row(self, row: str) -> SystemsSection:
        """Return this section with the settings that a row has its system under."""
        variant = self.variants.get(row)
        if variant is None:
            return self
        own: Section | None = getattr(self, variant.system, None)
        if own is None and variant.settings:
            raise ValueError(f"variants.{row}.settings: {variant.system} has no settings")
        if own is None:
            return self
        try:
            changed = type(own).model_validate({**own.model_dump(), **variant.settings})
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = ".".join(map(str, ("variants", row, "settings", *first["loc"])))
            legal = ", ".join(type(own).model_fields)
            raise ValueError(f"{where}: {first['msg']}. Settings of {variant.system}: {legal}") from None
        return self.model_copy(update={variant.system: changed})
