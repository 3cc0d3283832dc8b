"""The language model: outputs of each form, padding, caches and error messages."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.models import GPT, GPTConfig

SMALL = GPTConfig(vocabulary=53, width=42, heads=3, hidden=37, layers=2, positions=31)
FORMS: dict[str, GPTConfig] = {
    "gpt2": SMALL,
    "llama": GPTConfig.llama(vocabulary=53, width=42, heads=3, kv_heads=1, hidden=37, layers=2, positions=31),
    "window": replace(SMALL, window=4, position="rotary"),
    "mixed": replace(SMALL, norm="rms", feedforward="gated", bias="qkv", tied=False, kv_heads=1),
}
each = pytest.mark.parametrize("form", FORMS)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def random(config: GPTConfig) -> GPT:
    """All weights random, so that none can hide."""
    torch.manual_seed(0)
    model = GPT(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, float("norm.weight" in name), 0.2)
    return model


def texts(*shape: int) -> Tensor:
    return torch.randint(53, shape, generator=torch.Generator().manual_seed(1))


def written_out(model: GPT, ids: Tensor) -> Tensor:
    """The logits of one text (T,), from the equations and with explicit weights."""
    config, count = model.config, len(ids)
    x = model.tokens.weight[ids]
    if model.positions is not None:
        x = x + model.positions.weight[:count]
    distance = torch.arange(count)[:, None] - torch.arange(count)
    allowed = (distance >= 0) & (distance < (config.window or count))
    for block in model.blocks:
        y, attention = block.around_attention.norm(x), block.attention
        q, k, v = (
            layer(y).unflatten(-1, (-1, 14)).transpose(0, 1)
            for layer in (attention.query, attention.key, attention.value)
        )
        k, v = (z.repeat_interleave(config.heads // len(z), 0) for z in (k, v))
        if attention.position is not None:
            q, k = rotated(q), rotated(k)
        scores = (q @ k.mT / math.sqrt(14)).masked_fill(~allowed, -math.inf)
        x = x + attention.out((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        y, layer = block.around_feedforward.norm(x), block.feedforward
        if config.feedforward == "gated":
            x = x + layer.down(layer.activation(layer.gate(y)) * layer.up(y))
        else:
            x = x + layer.down(layer.activation(layer.up(y)))
    return model.norm(x) @ model.vocabulary.weight.T


def rotated(x: Tensor) -> Tensor:
    """Multiply channels i and i + 7, as real and imaginary part, by exp(i p θᵢ)."""
    angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(7) / 7)
    turned = torch.complex(x[..., :7], x[..., 7:]) * torch.polar(torch.ones(()), angle)
    return torch.cat((turned.real, turned.imag), -1)


@each
def test_the_output_equals_the_equations(form: str) -> None:
    model, ids = random(FORMS[form]), texts(3, 11)
    expected = torch.stack([written_out(model, row) for row in ids])
    torch.testing.assert_close(model(ids), expected, **CLOSE)


@each
def test_padding_changes_nothing_and_gets_zeros(form: str) -> None:
    model, ids, lengths = random(FORMS[form]), texts(4, 11), [11, 0, 6, 1]
    logits, maps = model(ids, lengths, return_maps=True)
    for row, length in enumerate(lengths):
        if length:
            alone, alone_maps = model(ids[row : row + 1, :length], return_maps=True)
            torch.testing.assert_close(logits[row, :length], alone[0], **CLOSE)
            for m, one in zip(maps, alone_maps, strict=True):
                torch.testing.assert_close(m.dense()[row, :, :length, :length], one.dense()[0], **CLOSE)
        assert not logits[row, length:].any()
    assert torch.equal(logits, model(ids.masked_fill(torch.arange(11) >= torch.tensor(lengths)[:, None], 7), lengths))


@each
@pytest.mark.parametrize("chunks", [[1] * 11, [4, 1, 1, 5], [9, 2]])
def test_cached_tokens(form: str, chunks: list[int]) -> None:
    model, ids, position, caches = random(FORMS[form]), texts(3, 11), 0, None
    expected, expected_maps = model(ids, return_maps=True)
    caches = model.caches(capacity=3)
    with torch.no_grad():
        for part in ids.split(chunks, 1):
            logits, maps = model(part, caches=caches, return_maps=True)
            end = position + part.shape[1]
            torch.testing.assert_close(logits, expected[:, position:end], **CLOSE)
            for m, whole in zip(maps, expected_maps, strict=True):
                torch.testing.assert_close(m.dense(), whole.dense()[:, :, position:end, :end], **CLOSE)
            position = end
    assert [cache.length for cache in caches] == [11, 11]


@each
def test_no_token_sees_a_later_one_or_one_before_the_window(form: str) -> None:
    model, ids = random(FORMS[form]), texts(1, 11)
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 53
    differs = (model(ids) - model(changed)).abs().amax(-1)[0] > 1e-4
    reached = 5 + 2 * 3 + 1 if form == "window" else 11  # each of two blocks passes on what is 3 tokens before
    assert differs.tolist() == [5 <= t < reached for t in range(11)]


def test_compile_affects_training() -> None:
    """`hidden` is not `forward`: its blocks have to be compiled."""
    model = GPT(GPTConfig(vocabulary=11, width=12, heads=3, layers=2, positions=8))
    ids = torch.arange(10).view(2, 5)
    wanted, graphs = model.hidden(ids), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    model.compile(backend=backend)
    torch.testing.assert_close(model.hidden(ids), wanted, rtol=1e-5, atol=1e-6)
    assert graphs


def test_initialization_of_gpt2() -> None:
    torch.manual_seed(0)
    model = GPT(replace(SMALL, width=96, hidden=400, layers=8, vocabulary=997, tied=False))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            ends_a_branch = name.endswith(("attention.out.weight", "feedforward.down.weight"))
            expected = 0.02 / math.sqrt(16) if ends_a_branch else 0.02
            assert abs(parameter.std() / expected - 1) < 0.05 and abs(parameter.mean()) < 0.05 * expected * 3, name


def test_the_first_loss_is_that_of_equal_probabilities() -> None:
    torch.manual_seed(0)
    ids = texts(8, 31)
    for config in FORMS.values():
        loss = F.cross_entropy(GPT(config)(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        assert abs(float(loss.detach()) - math.log(53)) < 0.1


def test_dropout_is_applied_in_training_only() -> None:
    model = random(replace(SMALL, dropout=0.5))
    ids = texts(2, 11)
    assert torch.equal(model(ids), model(ids))
    assert not torch.equal(model.train()(ids), model(ids))


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_layer_is_tied_or_not(tied: bool) -> None:
    model = GPT(replace(SMALL, tied=tied))
    assert (model.vocabulary.weight is model.tokens.weight) == tied


def test_rotary_angles_are_those_of_llama_checkpoints() -> None:
    """float32 as in transformers: at position 4,000 float64 differs by more than 1e-4."""
    position = GPT(FORMS["llama"]).blocks[0].attention.position
    x = torch.ones(1, 1, 14)
    frequency = 1.0 / (10000.0 ** (torch.arange(0, 14, 2).float() / 14))
    angle = torch.tensor(4000.0) * frequency
    expected = torch.cat((angle.cos() - angle.sin(), angle.cos() + angle.sin()))
    assert torch.equal(position(x, 4000)[0, 0], expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": 0}, "gpt: vocabulary (0) must be at least 1."),
        ({"heads": 4}, "gpt: width (42) must be divisible by heads (4); try 40 or 44."),
        ({"kv_heads": 2}, "gpt: kv_heads (2) must divide heads (3)."),
        ({"window": 0}, "gpt: window (0) must be at least 1."),
        ({"norm": "batch"}, "gpt: norm ('batch') must be one of layer, rms."),
        ({"activation": "bend"}, "gpt: activation ('bend') must be one of gelu, gelu_new, "),
        ({"rotary_base": 1.0}, "gpt: rotary_base (1.0) must be more than 1; the papers use 10000."),
        ({"rotary_factor": 0.0}, "gpt: rotary_factor (0.0) must be more than 0: frequencies are divided by it."),
        ({"rotary_bands": (4.0, 1.0, 9)}, "gpt: rotary_bands ((4.0, 1.0, 9)) must be (low, high, length) with"),
        ({"epsilon": 0.0}, "gpt: epsilon (0.0) must be more than 0; 1e-5 is typical."),
        ({"dropout": 1.0}, "gpt: dropout (1.0) must lie in [0, 1)"),
        ({"width": 45, "position": "rotary"}, "gpt: width / heads (15) must be even for rotary positions"),
        ({"width": 3 * 2**14, "positions": 2**24}, "gpt: sizes must give a model of at most 20,000,000,000 parameters"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        GPT(replace(SMALL, **settings))


def test_all_invalid_settings_are_reported_at_once() -> None:
    assert len(replace(SMALL, width=0, window=-1, norm="", rotary_factor=-1.0).errors()) == 4


def test_invalid_inputs() -> None:
    model = GPT(SMALL)
    with pytest.raises(ValueError, match=r"gpt: ids \(53\) must lie in 0…52, below vocabulary \(53\)\."):
        model(torch.full((1, 3), 53))
    with pytest.raises(ValueError, match=r"gpt: ids \(-1\) must lie in 0…52"):
        model(torch.full((1, 3), -1))
    with pytest.raises(ValueError, match=r"gpt: ids \(1×32\) must end within positions \(31\); got 0 cached"):
        model(texts(1, 32))
    caches = model.caches()
    with torch.no_grad():
        model(texts(1, 30), caches=caches)
    with pytest.raises(ValueError, match=r"ids \(1×2\) must end within positions \(31\); got 30 cached"):
        model(texts(1, 2), caches=caches)
    with pytest.raises(ValueError, match=r"gpt: caches \(1\) must be 2, one per block.*got 1 caches"):
        model(texts(1, 2), caches=caches[:1])
    with pytest.raises(ValueError, match=r"gpt: caches \(0\) must be 2, one per block.*got 0 caches"):
        model(texts(1, 2), caches=[])
    with pytest.raises(ValueError, match=r"must be 2, one per block, and come without lengths; got lengths 1\."):
        model(texts(1, 2), [2], caches=model.caches())
    with pytest.raises(ValueError, match=r"gpt: lengths \(3\) must lie in 0…2"):
        model(texts(1, 2), [3])
