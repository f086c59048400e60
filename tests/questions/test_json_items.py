"""Large JSON arrays are read item by item, and a file that is none says where it stops being one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.questions import jsonl as module
from kgqa_core.questions.jsonl import json_items

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=7,
)


def read(path: Path, text: str | bytes, key: str | None = None) -> list[tuple[int, Any]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return [(number, json.loads(item)) for number, item in json_items(path, key=key)]


@given(st.lists(json_values, max_size=5), st.integers(1, 40), st.sampled_from([None, 1]))
def test_items_are_what_a_plain_reader_says(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], block: int, indent: int | None
) -> None:
    """Whatever the size of the blocks that are read, and wherever they cut a number, a text or a character."""
    path = tmp_path_factory.mktemp("json") / "items.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        assert read(path, json.dumps(values, indent=indent, ensure_ascii=False)) == list(enumerate(values, 1))
        whole = {"Version": "1.0", "Questions": values, "after": [{}]}
        assert read(path, json.dumps(whole, indent=indent), "Questions") == list(enumerate(values, 1))


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert read(tmp_path / "items.json", b"\xef\xbb\xbf[1]\n") == [(1, 1)]


BAD = {
    '[{"a": 1},\n {"a": }]': (2, 8, "Expecting value"),
    '[{"a": 1},\n {"a": 2}': (2, 10, "the file ends too early"),  # truncated between items
    '[{"a": 1},\n {"a": "half of a te': (2, 8, "Unterminated string"),  # truncated inside one
    '{"a": 1}\n{"a": 2}': (1, 1, "'[' expected, '{' found"),  # JSON lines
    "[1, 2]\n[3]": (2, 1, "something follows the end"),
    "[1 2]": (1, 4, "']' expected, '2' found"),
    "": (1, 1, "the file ends too early"),
}


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("block", [3, 2**20])
def test_a_bad_file_is_an_error_with_its_place(
    tmp_path: Path, text: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    line, character, reason = BAD[text]
    with pytest.raises(InputError) as error:
        read(tmp_path / "bad.json", text)
    assert f"bad.json, line {line}, character {character}: " in str(error.value)
    assert reason in str(error.value)


def test_deep_nesting_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1, character 2: not the expected JSON"):
        read(tmp_path / "deep.json", "[" * 100_000)


def test_a_file_without_the_field_or_not_utf8_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no field 'Questions': is this the right file"):
        read(tmp_path / "other.json", '{"Version": "1.0"}', "Questions")
    with pytest.raises(InputError, match=r"'\{' expected, '\[' found"):
        read(tmp_path / "array.json", "[]", "Questions")
    with pytest.raises(InputError, match=r"latin.json: not UTF-8 after line 1"):
        read(tmp_path / "latin.json", b'["a",\n"\xe9"]')
    with pytest.raises(InputError, match=r"gone.json does not exist"):
        list(json_items(tmp_path / "gone.json"))
