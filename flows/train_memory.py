"""How much memory a tuning takes, told by shapes alone: what ``kgqa lm-info --train`` prints.

One optimiser step of the largest pass is done on tensors that have shapes and types but no content (torch's
FakeTensorMode), with the model, adapter, autocast and checkpointing that the run would have. Every storage that such a
tensor holds is counted until it is freed. So no formula has to know the architecture, and a model of 7 billion
parameters needs nothing but its config.json.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from kgqa_core.config_lm import ReasonerSection
from kgqa_core.errors import InputError
from kgqa_core.lm.folders import check_causal, read_json
from kgqa_core.lm.local import with_lora

TARGETS = 128  # tokens of an example that are answers: their logits are the only ones that are made
SHARDS = (2, 4, 8)  # GPUs over which runtime.sharded might divide weights, gradients and moments


class Counted(TorchDispatchMode):
    """Counts the bytes of all storages that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self._known = 0, 0, set[int]()

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage once, whoever shares it, until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked for, and count what comes of it."""
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, Tensor):
                self.add(one)
        return found


def training_memory(folder: Path, section: ReasonerSection, *, processes: int = 1) -> dict[str, Any]:
    """Return bytes of a tuning of the model whose config.json is in ``folder``, on each of ``processes`` GPUs.

    Rows of ``max_length`` tokens are assumed, and bfloat16 products unless the section says float32. Raises InputError
    where the folder is none of a causal language model, ConfigError as a tuning would.
    """
    try:
        check_causal(folder, read_json(folder / "config.json"))
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as problem:
        raise InputError(f"{folder} has no usable config.json, which is all that an estimate needs") from problem
    half, is_lora = section.precision != "float32", section.tuning != "full"
    rows = section.micro_batch or max(1, section.batch_size // processes)
    length = min(section.max_length, int(getattr(config, "max_position_embeddings", section.max_length)))
    with torch.device("meta"):
        dtype = torch.bfloat16 if half and is_lora else torch.float32
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model = with_lora(model, section, autocast=half) if is_lora else model
    if section.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    with FakeTensorMode():
        _give_memory(model.train())
        trained = [one for one in model.parameters() if one.requires_grad]
        moments = {one: {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")} for one in trained}
        optimizer = torch.optim.AdamW(trained, fused=True)
        optimizer.state.update({one: {"step": torch.zeros(()), **own} for one, own in moments.items()})
        counted = Counted()
        for one in (*model.parameters(), *model.buffers(), *(two for own in moments.values() for two in own.values())):
            counted.add(one)
        held, ids = counted.live, torch.zeros(rows, length, dtype=torch.int64)
        with counted:
            _read(model, ids, half=half)
            activations = counted.peak - held  # with the first gradients
            if rows * processes < section.batch_size:  # later passes of a step stand beside the gradients of the first
                _read(model, ids, half=half)
            optimizer.step()
    weights, gradients = (sum(one.nbytes for one in own) for own in (model.parameters(), trained))
    found = {
        "rows_of_a_pass": rows,
        "tokens_of_a_row": length,
        "parameters": sum(map(Tensor.numel, model.parameters())),
    }
    found |= {"trained_parameters": sum(map(Tensor.numel, trained)), "weight_bytes": weights}
    found |= {"gradient_bytes": gradients, "optimiser_bytes": 2 * gradients, "activation_bytes": activations}
    found |= {"peak_bytes": counted.peak}
    if is_lora:
        return found
    passing = _sharded_pass(config, section, rows=rows, length=length, half=half)
    return found | {f"peak_bytes_if_sharded_over_{num}": passing + (weights + 3 * gradients) // num for num in SHARDS}


def _sharded_pass(config: Any, section: ReasonerSection, *, rows: int, length: int, half: bool) -> int:
    """Return the bytes that a pass of a sharded tuning adds to the shards.

    Weights are put together in the type of products, and a gradient goes as soon as it is summed. Beside the
    activations there are at most two blocks' weights, the next being fetched, and one's gradients in float32.
    """
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if half else torch.float32)
    if section.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    parts = [one for one in model.modules() if type(one).__name__ in (model._no_split_modules or ())]
    in_blocks = [sum(map(Tensor.numel, one.parameters())) for one in parts]
    others = sum(map(Tensor.numel, model.parameters())) - sum(in_blocks)  # the root's, embeddings and head
    width = 2 if half else 4
    largest = max(in_blocks, default=0)
    with FakeTensorMode():
        _give_memory(model.train())
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(lambda own: setattr(own, "grad", None))
        counted = Counted()
        for one in (*model.parameters(), *model.buffers()):
            counted.add(one)
        held, ids = counted.live, torch.zeros(rows, length, dtype=torch.int64)
        with counted:
            _read(model, ids, half=half)
    return counted.peak - held + 2 * width * largest + 4 * largest + (width + 4) * others


def _give_memory(model: nn.Module) -> None:
    """Put fake tensors of the CPU in the place of those of no device, so that autocast knows them; ties stay."""
    new: dict[int, tuple[Any, Any]] = {}
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, old in own.items():
                if old is not None and id(old) not in new:
                    made: Any = torch.empty(old.shape, dtype=old.dtype)
                    is_weight = isinstance(old, nn.Parameter)
                    new[id(old)] = old, nn.Parameter(made, requires_grad=old.requires_grad) if is_weight else made
                own[name] = None if old is None else new[id(old)][1]


def _read(model: Any, ids: Tensor, *, half: bool) -> None:
    """Do one pass, forwards and backwards."""
    targets = min(TARGETS, ids.shape[1] - 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = model(input_ids=ids, logits_to_keep=targets, use_cache=False).logits.flatten(0, 1)
    loss = cross_entropy(logits.float(), ids[:, :targets].flatten())
    del logits
    loss.backward()
