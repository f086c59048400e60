"""Language models behind one interface: folders, GGUF files, HTTP endpoints, the embedded and the packaged model; their tuning and cost."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: no model hub is ever asked
