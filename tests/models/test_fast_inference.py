"""Fast inference of BERT and the Transformer has the outputs of the model, or is replaced by the model itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.data import BOS
from regard.models import Bert, Transformer, TransformerConfig, beam, greedy
from regard.models.fast_inference import FastDecoder, FastEncoder, fast_decoder
from tests.models.test_bert import CONFIG, V, W

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
    fast = fast_decoder(model)
    assert isinstance(fast, FastDecoder)
    states = [one.begin(one.encode(source(), LENGTHS)) for one in (model, fast)]
    tokens = torch.full((B,), BOS)
    for step in range(36):
        (expected, states[0]), (result, states[1]) = (
            one.step(tokens, state) for one, state in zip((model, fast), states, strict=True)
        )
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)
        if step == 0:
            rows, stay = torch.arange(B).repeat_interleave(K), None
        elif step == 20:
            rows, stay = torch.tensor([4, 4, 1, 0]), torch.tensor([2, 0])
        elif step % 3 == 1:
            rows, stay = torch.arange(len(result)).view(-1, K).flip(1).flatten(), None
        else:
            rows = None
        if rows is not None:
            for state in states:
                state.reorder(rows, stay)
        tokens = torch.randint(4, TARGET, (len(result) if rows is None else len(rows),), generator=drawn)


@pytest.mark.parametrize("packed", [False, True])
@torch.no_grad()
def test_packed_weights_give_the_same_numbers(packed: bool) -> None:
    model = build("before")
    fast = fast_decoder(model, packed=packed)
    states = [one.begin(one.encode(source(), LENGTHS)) for one in (model, fast)]
    expected, result = (
        one.step(torch.full((B,), BOS), state)[0] for one, state in zip((model, fast), states, strict=True)
    )
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)


@every
def test_searches_find_the_same(name: str) -> None:
    model = build(name)
    expected, result = (greedy(one, source(), LENGTHS, longest=12) for one in (model, fast_decoder(model)))
    assert [one.tokens for one in result] == [one.tokens for one in expected]
    expected, result = (
        [best[0] for best in beam(one, source(), LENGTHS, longest=12)] for one in (model, fast_decoder(model))
    )
    assert [one.tokens for one in result] == [one.tokens for one in expected]
    assert [one.score for one in result] == pytest.approx([one.score for one in expected], rel=1e-5)


def test_hooks_and_autocast_run_the_model_itself_and_watching_does_not() -> None:
    model = build("before")
    block = model.decoder[0]
    hook = block.cross_attention.query.register_forward_hook(lambda *_: None)
    assert fast_decoder(model) is model
    hook.remove()
    assert isinstance(fast_decoder(model), FastDecoder)
    with regard.watch(model):
        assert isinstance(fast_decoder(model), FastDecoder)
    with torch.autocast("cpu"):
        assert fast_decoder(model) is model


def test_exchanged_parts_are_called() -> None:
    model = build("before")
    block = model.decoder[0]
    kept = block.feedforward
    block.feedforward = nn.Sequential(kept)
    assert fast_decoder(model) is model
    block.feedforward = kept

    class Louder(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    kept.up = Louder(8, 16).double()
    assert fast_decoder(model) is model
    other: Any = object.__new__(type("Other", (Transformer,), {}))
    nn.Module.__init__(other)
    other.weight = nn.Parameter(torch.zeros(1))
    assert fast_decoder(other) is other


def test_training_mode_is_refused() -> None:
    fast = fast_decoder(build("before"))
    assert fast.eval() is fast and not fast.training
    with pytest.raises(AssertionError, match="inference"):
        fast.train(True)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("lengths", [[5], [1], [7, 7, 7, 3, 3, 1], [3, 7, 3], [19, 1]])
def test_the_encoder_gives_the_same_numbers(activation: str, lengths: list[int]) -> None:
    bert = Bert(replace(CONFIG, activation=activation)).eval().double()
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(1, V, (sum(lengths),))
    result = FastEncoder(bert)(ids, lengths)
    assert result.shape == (sum(lengths), W) and not result.requires_grad
    for text, hidden in zip(ids.split(lengths), result.split(lengths), strict=True):
        torch.testing.assert_close(hidden, bert(text[None])[0].detach(), rtol=1e-9, atol=1e-10)


def test_the_encoder_leaves_the_model_alone() -> None:
    bert = Bert(CONFIG).eval()
    before = {name: value.clone() for name, value in bert.state_dict().items()}
    encode, ids = FastEncoder(bert), torch.randint(1, V, (9,))
    first = encode(ids, [5, 4])
    assert torch.equal(encode(ids, [5, 4]), first)
    assert all(torch.equal(value, before[name]) for name, value in bert.state_dict().items())
    bert(ids[None]).sum().backward()  # its parameters are no inference tensors


def test_the_encoder_takes_lengths_of_all_ids() -> None:
    with pytest.raises(AssertionError, match="5 tokens in lengths, 4 ids"):
        FastEncoder(Bert(CONFIG))(torch.ones(4, dtype=torch.long), [5])


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_packed_weights_of_the_encoder_give_the_same_numbers(activation: str) -> None:
    bert, lengths = Bert(replace(CONFIG, activation=activation)).eval(), [7, 3, 1, 7]
    ids = torch.randint(1, V, (sum(lengths),))
    torch.testing.assert_close(FastEncoder(bert, packed=True)(ids, lengths), FastEncoder(bert)(ids, lengths))
