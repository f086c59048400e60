"""Odd characters in labels and names, written so that lines and markers stay whole: ``\\u{HEX}``, and read back."""

from __future__ import annotations

import re

BREAKS = (
    r"^\s+|\s+\Z"  # blanks at the ends: parsing strips them
    r"|[\x00-\x1f\x7f\x85\u2028\u2029]+"  # line breaks and control characters
    r"|\\(?=u\{)"  # what looks like one of our escapes
)
_ONE_LINE = re.compile(BREAKS)
_ESCAPE = re.compile(r"\\u\{([0-9a-fA-F]{1,6})\}")


def escape(text: str, unsafe: re.Pattern[str] = _ONE_LINE) -> str:
    """Return ``text`` on one line and without blanks at its ends; most texts are unchanged."""
    return unsafe.sub(lambda found: escape_all(found[0]), text)


def escape_all(text: str) -> str:
    """Return every character of ``text`` escaped."""
    return "".join(f"\\u{{{ord(char):x}}}" for char in text)


def unescape(text: str) -> str:
    """Return what ``escape`` was given; what is no escape of a character stays as it is."""
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    code = int(found[1], 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else found[0]
