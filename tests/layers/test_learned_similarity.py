"""Learned similarities: parameters of the layer, passed to the operator."""

import re

import pytest
import torch
from torch import nn

import regard
from regard.layers import LearnedSimilarity
from regard.layers.learned_similarity import additive, bilinear, resolve_similarity, stored_similarity

H, D = 3, 5


def test_shapes_and_starts() -> None:
    assert additive(D).weight.shape == (D,) and additive(D, H).weight.shape == (H, D)
    assert bilinear(D).weight.shape == (D, D) and bilinear(D, H).weight.shape == (H, D, D)
    assert additive(D, H).weight.abs().max() <= D**-0.5
    q, k, v = torch.randn(2, H, 7, D), torch.randn(2, H, 11, D), torch.randn(2, H, 11, D)
    start = regard.attend(q, k, v, similarity=bilinear(D, H)())
    torch.testing.assert_close(start, regard.attend(q, k, v))


def test_names_become_parameters() -> None:
    for name, kind in (("additive", regard.Additive), ("bilinear", regard.Bilinear)):
        kept = stored_similarity("layer", name, D, H)
        assert isinstance(kept, LearnedSimilarity) and isinstance(resolve_similarity(kept), kind)
        assert [n for n, _ in kept.named_parameters()] == ["weight"]
        assert resolve_similarity(kept).weight is kept.weight
    assert resolve_similarity(stored_similarity("layer", "cosine", D)) == "cosine"


def test_a_given_tensor_is_kept_with_its_wish_for_gradients() -> None:
    parameter, plain = nn.Parameter(torch.randn(D, D)), torch.randn(D)
    kept = stored_similarity("layer", regard.Bilinear(parameter, scale=0.25), D)
    assert kept.weight is parameter and resolve_similarity(kept).scale == 0.25
    frozen = stored_similarity("layer", regard.Additive(plain), D)
    assert torch.equal(frozen.weight, plain) and not frozen.weight.requires_grad


def test_callables_pass() -> None:
    layer = nn.Bilinear(2, 2, 1)
    assert resolve_similarity(stored_similarity("layer", layer, D)) is layer


@pytest.mark.parametrize("wrong", ["euclid", 3])
def test_error_messages(wrong: object) -> None:
    with pytest.raises(
        ValueError,
        match=re.escape(
            f"layer: similarity ({wrong!r}) must be one of dot, scaled_dot, cosine, additive, bilinear, Additive(w), "
            f"Bilinear(W) or a callable f(q, k); got {type(wrong).__name__}."
        ),
    ):
        stored_similarity("layer", wrong, D)
