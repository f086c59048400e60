"""Roles: each prompt is asked of the model of its instruction's role, and adapters share one base in memory."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path

import pytest

from kgqa_core.config_lm import Price
from kgqa_core.errors import InputError, KgqaError
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.call_store import CallStore
from kgqa_core.lm.calls import ROLE_OF, Meter, Metered, RoleModels
from kgqa_core.lm.local import open_adapters, open_local
from kgqa_core.lm.types import Decoding, Prompt
from tests.lm.test_calls import FakeModel
from tests.lm.tiny_models import make_adapter, make_any

ASKED, OPTIONS = [Prompt("the plan is"), Prompt("x")], [["drama", "Heat"], ["Heat"]]


def named(name: str) -> FakeModel:
    model = FakeModel()
    model.name = name
    return model


def test_every_instruction_has_a_role() -> None:
    wordings = {"reason_scored", "choose_unlabelled"}  # of reason and choose
    files = {name.partition(".")[0] for name in read_prompts(None)} - wordings
    assert ROLE_OF.keys() == files


def test_calls_are_kept_counted_and_paid_under_the_name_of_who_plays_the_role(tmp_path: Path) -> None:
    planner, answerer, meter = named("planner"), named("answerer"), Meter()
    price = Price(input=1_000_000, output=0, as_of=date(2026, 1, 2))
    with CallStore(tmp_path) as store:
        roles = RoleModels(
            {
                "plan": Metered(planner, meter=meter, store=store, max_calls=3, system="rog"),
                "reason": Metered(answerer, meter=meter, store=store, max_calls=3, system="rog", price=price),
            }
        )
        prompts = [Prompt("same", question_id="q", instruction=name) for name in ("reason", "plan", "choose")]
        texts = roles.generate(prompts, Decoding(max_new_tokens=5))
        assert roles.score(prompts[:1], [["a"]]) == [[-math.inf]]  # the budget is that of all roles together
    assert roles.name == "plan: planner, reason: answerer"
    assert [one[0].problem for one in texts] == [""] * 3
    rows = meter.take().to_pylist()
    assert [(row["model"], row["instruction"], row["num_calls"]) for row in rows] == [
        ("answerer", "choose", 1),
        ("answerer", "reason", 1),
        ("planner", "plan", 1),
    ]
    spent = {row["model"]: row["money"] for row in rows if row["instruction"] in ("plan", "reason")}
    assert spent["planner"] is None and spent["answerer"] > 0
    with pytest.raises(KgqaError, match=r"'direct' is asked of role 'direct', and only plan, reason were opened"):
        roles.generate([Prompt("x", instruction="direct")])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_of_one_base_share_it_and_answer_as_alone(qwen2: Path, tmp_path: Path, dtype: str) -> None:
    adapters = [make_adapter(qwen2, tmp_path / "one"), None, make_adapter(qwen2, tmp_path / "two", seed=4)]
    shared = open_adapters(qwen2, adapters, dtype=dtype)  # type: ignore[arg-type]
    alone = [open_local(qwen2, adapter=adapter, dtype=dtype) for adapter in adapters]
    assert len({id(model.model) for model in shared}) == 1
    assert [model.name for model in shared] == [model.name for model in alone]  # so their calls are one another's
    assert len({model.name for model in shared}) == 3
    close = 1e-3 if dtype == "float32" else 0.2
    known = [model.score(ASKED, OPTIONS)[0] for model in alone]
    assert all(known[0] != pytest.approx(other, abs=0.3) for other in known[1:])
    for number in (0, 1, 2, 1, 0, 2, 2):
        assert shared[number].score(ASKED, OPTIONS)[0] == pytest.approx(known[number], abs=close)
    if dtype == "float32":
        texts = [[text.text for (text,) in model.generate(ASKED, Decoding(max_new_tokens=5))] for model in shared]
        assert texts == [[text.text for (text,) in one.generate(ASKED, Decoding(max_new_tokens=5))] for one in alone]


def test_an_adapter_of_another_base_is_named(qwen2: Path, gpt2: Path, tmp_path: Path) -> None:
    one, other = make_adapter(qwen2, tmp_path / "one"), make_adapter(gpt2, tmp_path / "other")
    for adapters in ([one, other], [other, None]):
        with pytest.raises(InputError, match=f"{other}.*is for another base"):
            open_adapters(qwen2, adapters)


def test_an_adapter_that_enlarges_the_vocabulary_gets_a_base_of_its_own(tmp_path: Path) -> None:
    import transformers

    base = make_any(tmp_path / "base", "llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens([f"<path{number}>" for number in range(7)])
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(len(tokenizer))
    import peft

    config = peft.LoraConfig(r=3, task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "larger", save_embedding_layers=True)
    tokenizer.save_pretrained(tmp_path / "larger")
    own, plain, other = open_adapters(base, [tmp_path / "larger", None, make_adapter(base, tmp_path / "lora")])
    assert own.model is not plain.model and plain.model is other.model
    for model, adapter in ((own, tmp_path / "larger"), (plain, None), (other, tmp_path / "lora")):
        alone = open_local(base, adapter=adapter).score(ASKED, OPTIONS)
        assert model.score(ASKED, OPTIONS)[0] == pytest.approx(alone[0], abs=1e-3)
