"""The regular expressions of an adapter, tried in a process that can be ended: peft would not come back from some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kgqa_core.errors import InputError, shorten

SECONDS = 20  # that they may take, over all modules of a model
_MATCH = """import json, re, sys
patterns, names = json.load(sys.stdin)
[re.match(rf"(.*\\.)?({pattern})$", name) for pattern in patterns for name in names]"""


def try_patterns(told: dict[str, Any], names: list[str], adapter: Path) -> None:
    """Raise InputError where those of an adapter_config.json take for ever on the names of a model's modules."""
    asked = {key: value or () for key, value in told.items() if key.endswith(("_modules", "_pattern"))}
    patterns = [one for value in asked.values() for one in ([value] if isinstance(value, str) else value)]
    given = json.dumps([patterns, names]).encode()
    try:
        subprocess.run([sys.executable, "-Ic", _MATCH], input=given, timeout=SECONDS, capture_output=True, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"adapter_config.json of {adapter} has a regular expression that takes more than {SECONDS} seconds: "
            f"{shorten(', '.join(map(str, patterns)))}. Name the modules themselves in target_modules"
        ) from error
