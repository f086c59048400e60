"""No reply of a server, whatever it holds, breaks those who read it."""

from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.lm.endpoint import read_completion, read_echo
from kgqa_core.lm.endpoint_http import error_of

FIELDS = ["choices", "index", "message", "content", "text", "refusal", "finish_reason", "logprobs", "logprob"]
FIELDS += ["token_logprobs", "usage", "prompt_tokens", "completion_tokens", "error", "detail"]
OBJECTS = st.sampled_from(FIELDS) | st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(OBJECTS, inner, max_size=5),
    max_leaves=25,
)
CHOICE = JSON | st.dictionaries(OBJECTS, JSON, max_size=5)
REPLY = st.fixed_dictionaries({"choices": st.lists(CHOICE, min_size=1, max_size=3)}, optional={"usage": CHOICE})


@given(JSON | REPLY)
def test_no_json_whatsoever_breaks_the_readers(content: object) -> None:
    if (completion := read_completion(content, stop=("\n",))) is not None:
        for generation in completion[0]:
            assert generation.text.encode() is not None
            assert not generation.problem or not generation.text
    read_echo(content)
    error_of(content)
