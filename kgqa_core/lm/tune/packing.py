"""Whether a model keeps packed examples apart: asked of the model itself, since architectures differ."""

from __future__ import annotations

from typing import Any

import torch

LENGTH = 8  # tokens of each of the two examples that are packed


@torch.no_grad()
def packs_cleanly(model: Any, *, tolerance: float = 1e-2) -> bool:
    """Say whether the second of two packed examples has the logits that it has alone, to ``tolerance`` of their spread.

    The first example is given twice, with different tokens: what leaks from it would show.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    many = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    first, other, second = (torch.randint(many, (1, LENGTH), generator=generator).to(device) for _ in range(3))
    positions = torch.arange(LENGTH, device=device)[None]
    alone = model(input_ids=second, use_cache=False).logits.float()
    packed = []
    try:
        for before in (first, other):
            ids, places = torch.cat([before, second], dim=1), torch.cat([positions, positions], dim=1)
            packed.append(model(input_ids=ids, position_ids=places, use_cache=False).logits[:, LENGTH:].float())
    except TypeError:  # knows no positions
        return False
    finally:
        model.train(was_training)
    spread = float(alone.std())
    return all(float((one - alone).abs().max()) <= tolerance * spread for one in packed)
