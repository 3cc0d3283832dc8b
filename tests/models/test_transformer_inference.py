"""The Transformer for search: step by step what the Transformer itself gives, and itself where it would not be."""

from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.data import BOS
from regard.models import Transformer, TransformerConfig, beam, greedy
from regard.models.transformer_inference import Inference, swift

SOURCE, TARGET, B, K = 11, 13, 3, 2
LENGTHS = torch.tensor([7, 4, 1])
VARIANTS: dict[str, dict[str, Any]] = {
    "before": {"norm_first": True},
    "after": {"norm_first": False},
    "rotary": {"position": "rotary"},
    "learned, gelu": {"position": "learned", "activation": "gelu", "positions": 40},
    "additive": {"similarity": "additive"},
    "bilinear": {"similarity": "bilinear", "norm_first": False},
    "cosine, one block": {"similarity": "cosine", "decoder_layers": 1},
}
every = pytest.mark.parametrize("name", VARIANTS)


def build(name: str) -> Transformer:
    torch.manual_seed(0)
    sizes = {"width": 8, "heads": 2, "hidden": 16, "encoder_layers": 1, "decoder_layers": 2}
    model = Transformer(TransformerConfig(SOURCE, TARGET, **{**sizes, **VARIANTS[name]})).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)  # biases and gains too
    return model


def source() -> torch.Tensor:
    return torch.randint(4, SOURCE, (B, 7), generator=torch.Generator().manual_seed(1))


@every
@torch.no_grad()
def test_every_step_equals_the_model_s(name: str) -> None:
    # past the room first set aside; one hypothesis each, then two, then a sentence leaves
    model, drawn = build(name), torch.Generator().manual_seed(2)
    fast = swift(model)
    assert isinstance(fast, Inference)
    states = [one.begin(one.encode(source(), LENGTHS)) for one in (model, fast)]
    tokens = torch.full((B,), BOS)
    for step in range(36):
        (wanted, states[0]), (found, states[1]) = (
            one.step(tokens, state) for one, state in zip((model, fast), states, strict=True)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        if step == 0:
            rows, stay = torch.arange(B).repeat_interleave(K), None
        elif step == 20:
            rows, stay = torch.tensor([4, 4, 1, 0]), torch.tensor([2, 0])
        elif step % 3 == 1:
            rows, stay = torch.arange(len(found)).view(-1, K).flip(1).flatten(), None
        else:
            rows = None
        if rows is not None:
            for state in states:
                state.reorder(rows, stay)
        tokens = torch.randint(4, TARGET, (len(found) if rows is None else len(rows),), generator=drawn)


@every
def test_searches_find_the_same(name: str) -> None:
    model = build(name)
    wanted, found = (greedy(one, source(), LENGTHS, longest=12) for one in (model, swift(model)))
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    wanted, found = ([best[0] for best in beam(one, source(), LENGTHS, longest=12)] for one in (model, swift(model)))
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert [one.score for one in found] == pytest.approx([one.score for one in wanted], rel=1e-5)


def test_a_model_that_somebody_looks_into_stays_as_it_is() -> None:
    model = build("before")
    block = model.decoder[0]
    hook = block.cross_attention.query.register_forward_hook(lambda *_: None)
    assert swift(model) is model
    hook.remove()
    assert isinstance(swift(model), Inference)
    with regard.watch(model):
        assert swift(model) is model
    with torch.autocast("cpu"):
        assert swift(model) is model


def test_exchanged_parts_are_called() -> None:
    model = build("before")
    block = model.decoder[0]
    kept = block.feedforward
    block.feedforward = nn.Sequential(kept)
    assert swift(model) is model
    block.feedforward = kept

    class Louder(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    kept.up = Louder(8, 16).double()
    assert swift(model) is model
    other: Any = object.__new__(type("Other", (Transformer,), {}))
    nn.Module.__init__(other)
    other.weight = nn.Parameter(torch.zeros(1))
    assert swift(other) is other


def test_it_is_for_inference_alone() -> None:
    fast = swift(build("before"))
    assert fast.eval() is fast and not fast.training
    with pytest.raises(AssertionError, match="inference"):
        fast.train(True)
