"""Language models behind one interface: in folders and GGUF files, behind a URL, made here; their tuning and cost."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: no model hub is ever asked
