"""What each token of a vocabulary adds to a text, in bytes: byte-level BPE, SentencePiece, and tokens as they are."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from kgqa_core.errors import InputError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # how SentencePiece writes a blank


class TokenTexts:
    """The texts of a vocabulary, looked up from the text's side.

    Special tokens are left out: they are no text. Where a byte has both a token of its own and a fallback token
    (``<0x41>``), the fallback is left out: no tokenizer would give it.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Read a transformers tokenizer. Raises InputError for a kind whose tokens are no pieces of the text."""
        decoders = _decoders(tokenizer)
        if decoders & {"WordPiece", "CTC", "BPEDecoder"}:
            raise InputError(
                f"Generation cannot be constrained with this tokenizer (decoder {', '.join(sorted(decoders))}): its "
                "tokens are not pieces of the text. Use a model with a byte-level or SentencePiece tokenizer"
            )
        byte_level = "ByteLevel" in decoders
        pieces = not byte_level and bool(decoders & {"ByteFallback", "Metaspace", "Replace"} or not decoders)
        # SentencePiece puts a blank before a text and takes it away again: the first token may begin with one.
        self.drops_first_blank = pieces
        known = tokenizer.added_tokens_decoder
        special = {*tokenizer.all_special_ids, *(number for number, token in known.items() if token.special)}
        added = set(known) | set(tokenizer.get_added_vocab().values())
        self.ids: dict[bytes, list[int]] = {}
        fallback: dict[bytes, int] = {}
        for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            if number in special or not token:
                continue
            if number in added:
                self.ids.setdefault(token.encode(), []).append(number)
            elif byte_level:
                text = _from_byte_level(token)
                self.ids.setdefault(text, []).append(number)
            elif pieces and (found := _BYTE.fullmatch(token)):
                fallback[bytes([int(found[1], 16)])] = number
            else:
                self.ids.setdefault(token.replace(_SPACE, " ").encode() if pieces else token.encode(), []).append(
                    number
                )
        for text, number in fallback.items():
            self.ids.setdefault(text, [number])
        self.starts = {text[:end] for text in self.ids for end in range(1, len(text))}  # of longer tokens


def _decoders(tokenizer: Any) -> set[str]:
    """Return the types of decoders that a tokenizer turns tokens into text with; none for one without a backend."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return set()  # a SentencePiece model read by Python
    decoder = json.loads(backend.to_str())["decoder"]
    if decoder is None:
        return {"Fuse"}  # tokens as they are
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {str(part["type"]) for part in parts}


@cache
def _byte_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Bytes that print stand for themselves, the others are counted on from 256.
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printed)]
    return {chr(byte): byte for byte in printed} | {chr(256 + at): byte for at, byte in enumerate(others)}


def _from_byte_level(token: str) -> bytes:
    letters = _byte_letters()
    if all(letter in letters for letter in token):
        return bytes(letters[letter] for letter in token)
    return token.encode()  # added to the vocabulary as it is
