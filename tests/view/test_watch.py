"""Watching: every call is seen under its name, and the model's result is what it would have been, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.view.seen import Patches


class Attention(nn.Module):
    """A plain user of scaled_dot_product_attention."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.out(context.transpose(1, 2).flatten(-2))

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, _ = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if mask is None else mask
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)


class Stack(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))


def test_a_user_of_sdpa_is_seen_by_name_and_its_result_untouched(x: Tensor) -> None:
    model = Stack()
    plain = model(x)
    with regard.watch(model) as seen:
        watched = model(x)
    assert torch.equal(plain, watched)
    assert seen.names == ["blocks.0", "blocks.1", "blocks.2"] and seen.kinds == ["causal"] * 3
    torch.testing.assert_close(seen["blocks.0"].dense(), model.blocks[0].weights(x))
    assert len(seen) == 3 and seen[-1].shape == (2, 3, 7, 7) and "blocks.1" in seen and "blocks" in seen
    assert "blocks.9" not in seen
    with pytest.raises(KeyError, match=r"'blocks' must name one module; got blocks.0"):
        seen["blocks"]
    with pytest.raises(KeyError, match=r"must name a module that attended; got blocks.0"):
        seen["head"]


def test_a_capture_tells_the_same_later(x: Tensor, tmp_path: Path) -> None:
    model = Stack()
    with regard.watch(model) as seen:
        model(x)
    seen.tokens(query=list("abcdefg"))
    seen.image = torch.zeros(4, 6, 3, dtype=torch.uint8)
    seen.patches = Patches(2, 3, 1)
    loaded = regard.load_capture(seen.save(tmp_path / "x.safetensors"))
    assert loaded.names == seen.names and loaded.kinds == seen.kinds and loaded.patches == Patches(2, 3, 1)
    assert loaded.image is not None and loaded.image.shape == (4, 6, 3)
    for one, other in zip(seen, loaded, strict=True):
        assert torch.equal(one.dense(), other.dense()) and other.key_tokens == list("abcdefg")
