"""``-m kgqa_core.lm.tune JOB.json [OWNER]``: one of several processes that tune together."""

from __future__ import annotations

import sys
from pathlib import Path

from kgqa_core.lm.tune.launch import do_job

if __name__ == "__main__":
    do_job(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
