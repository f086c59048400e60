"""Language models behind one interface: local folders, HTTP endpoints, the embedded model; their tuning and cost."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: no model hub is ever asked
