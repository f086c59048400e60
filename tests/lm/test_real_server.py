"""The HTTP client against ``transformers serve``, a server that others wrote, beside the same model in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgqa_core.errors import UnableError
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.endpoint import Endpoint
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Decoding, EndpointLmSection, Prompt
from tests.processes import free_port, serving

pytestmark = pytest.mark.slow
PROMPTS = [Prompt("who directed Heat ?"), Prompt("what is the genre ?", system="be brief")]
SHORT = Decoding(max_new_tokens=11)


@pytest.fixture(scope="module")
def endpoint(qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Serve the tiny model as the docs say; it is named, since that server lists only what came from a hub."""
    pytest.importorskip("openai", reason="transformers serve wants it: pip install 'transformers[serving]'")
    port, hub = free_port(), tmp_path_factory.mktemp("hub")
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(qwen2), "--port", str(port)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub)}
    url, draws = f"http://127.0.0.1:{port}/v1", '{"do_sample": true, "eos_token_id": [2, 0], "pad_token_id": 0}'
    named = {"url": url, "model": str(qwen2), "identity": "tiny", "context": 256}
    with pytest.MonkeyPatch.context() as patch, serving(command, port, hub / "log", env=environment):
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1")
        yield Endpoint(EndpointLmSection(kind="endpoint", extra={"generation_config": draws}, **named))


def test_it_says_what_the_model_says_here(endpoint: Endpoint, qwen2: Path) -> None:
    local = [texts[0] for texts in open_local(qwen2).generate(PROMPTS, SHORT)]
    metered = Metered(endpoint, meter=Meter())
    served = [texts[0] for texts in metered.generate(PROMPTS, SHORT)]
    assert [text.text for text in served] == [text.text for text in local]
    usage = metered.meter.usage()
    assert usage["num_tokens"] == sum(text.num_tokens for text in local)
    assert usage["num_prompt_tokens"] == sum(open_local(qwen2).count_tokens(PROMPTS))


def test_samples_are_those_of_their_seed(endpoint: Endpoint) -> None:
    drawn = {
        seed: [
            [text.text for text in own] for own in endpoint.generate(PROMPTS[:1], Decoding(11, "sample", 3, seed=seed))
        ]
        for seed in (7, 8)
    }
    assert len({text for own in drawn.values() for text in own[0]}) == 6
    again = endpoint.generate(PROMPTS[:1], Decoding(11, "sample", 3, seed=7))
    assert [[text.text for text in own] for own in again] == drawn[7]


def test_what_it_cannot_do_is_said(endpoint: Endpoint) -> None:
    with pytest.raises(UnableError, match=r"lm\.beams"):
        endpoint.generate(PROMPTS, Decoding(11, "beam", 2, 2))
    with pytest.raises(UnableError, match="does not tell"):
        endpoint.score(PROMPTS, [["a"], ["b"]])
