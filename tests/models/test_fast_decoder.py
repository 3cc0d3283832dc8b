"""The Transformer for search: step by step what the Transformer itself gives, and itself where it would not be."""

from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.attention.native import engine
from regard.data import BOS
from regard.models import Transformer, TransformerConfig, beam, greedy
from regard.models.beam_search import _closed
from regard.models.fast_decoder import ROOM, Inference, _State, swift

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("each", [1, 4])
def test_rows_go_on_where_they_are(each: int, dtype: torch.dtype) -> None:
    # what they hold is what copies of whole rows would hold, through any mix of parents while sentences leave
    random = torch.Generator().manual_seed(each)
    sentences = 23
    state = _State(torch.arange(sentences), [torch.arange(sentences)[:, None] * 1.0])
    copies: list[torch.Tensor] = []
    for step in range(3 * ROOM):
        rows = sentences * each
        state.extend(torch.zeros(rows, 6, dtype=dtype), 2)
        state.written[0][:, step] = torch.randn(rows, 2, 2, 3, generator=random, dtype=torch.float32).to(dtype)
        copies = [held.clone() for held in [*copies, state.written[0][:, step]]]
        state.length += 1
        stay = torch.arange(sentences)
        if step % 5 == 4:
            stay = torch.tensor(
                _closed(torch.randperm(sentences, generator=random)[: sentences - 1].sort()[0].tolist())
            )
        parents = torch.randint(0, each, (len(stay), each), generator=random)
        chosen = (stay[:, None] * each + parents).flatten()
        state.reorder(chosen, None if len(stay) == sentences else stay)
        copies, sentences = [held[chosen] for held in copies], len(stay)
        assert torch.equal(state.written[0][:, : step + 1], torch.stack(copies, 1))
        assert torch.equal(state.read[0][:, 0].long(), state.lengths)


def test_only_what_differs_is_copied() -> None:
    if engine.module is None:
        pytest.skip(f"native: {engine.reason}")
    state = _State(torch.tensor([5, 5]), [torch.zeros(2, 5, 2, 1, 1)])
    for _ in range(3):
        state.extend(torch.zeros(4, 1), 1)
        state.written[0][:, state.length] = torch.arange(4.0).view(4, 1, 1, 1)
        state.length += 1
    place = state.written[0].data_ptr()
    state.reorder(torch.tensor([1, 1, 2, 3]))
    assert state.written[0].data_ptr() == place and state.written[0][0, :3, 0].flatten().tolist() == [1, 1, 1]
    state.written[0][0, 0] = 9  # both rows of the first sentence hold the same from here on: nothing is to be copied
    state.reorder(torch.tensor([1, 0, 3, 2]))
    assert state.written[0][:, 0, 0].flatten().tolist() == [9, 1, 3, 2]


@pytest.mark.parametrize("laid", [False, True])
@torch.no_grad()
def test_weights_laid_anew_give_the_same_numbers(laid: bool) -> None:
    model = build("before")
    fast = swift(model, laid=laid)
    states = [one.begin(one.encode(source(), LENGTHS)) for one in (model, fast)]
    wanted, found = (
        one.step(torch.full((B,), BOS), state)[0] for one, state in zip((model, fast), states, strict=True)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@every
def test_searches_find_the_same(name: str) -> None:
    model = build(name)
    wanted, found = (greedy(one, source(), LENGTHS, longest=12) for one in (model, swift(model)))
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    wanted, found = ([best[0] for best in beam(one, source(), LENGTHS, longest=12)] for one in (model, swift(model)))
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert [one.score for one in found] == pytest.approx([one.score for one in wanted], rel=1e-5)


def test_hooks_and_autocast_run_the_model_itself_and_watching_does_not() -> None:
    model = build("before")
    block = model.decoder[0]
    hook = block.cross_attention.query.register_forward_hook(lambda *_: None)
    assert swift(model) is model
    hook.remove()
    assert isinstance(swift(model), Inference)
    with regard.watch(model):
        assert isinstance(swift(model), Inference)
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
