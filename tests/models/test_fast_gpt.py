"""`FastGPT` has the outputs of the model, token by token, or is replaced by the model itself."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.attention.native import engine, few_rows
from regard.layers import RotaryPosition
from regard.models import GPT, GPTConfig
from regard.models.fast_gpt import FastGPT, fast_gpt

V, B, LONG = 61, 3, 37
LENGTHS = torch.tensor([7, 3, 5])
LLAMA = {"norm": "rms", "position": "rotary", "feedforward": "gated", "activation": "silu", "bias": "none"}
FORMS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": LLAMA,
    "llama, grouped heads": {**LLAMA, "kv_heads": 2},
    "llama, one key head, not tied": {**LLAMA, "kv_heads": 1, "tied": False, "rotary_base": 500.0},
    "mistral, window": {**LLAMA, "kv_heads": 2, "window": 5},
    "qwen, biases": {**LLAMA, "kv_heads": 3, "bias": "qkv"},
    "gpt2, window, relu": {"window": 4, "activation": "relu"},
    "gated gelu, all biases": {**LLAMA, "activation": "gelu", "bias": "all", "norm": "layer"},
    "without biases": {"bias": "none"},
}
every = pytest.mark.parametrize("form", FORMS)


def build(form: str, **settings: Any) -> GPT:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocabulary": V, "width": 60, "heads": 6, "hidden": 70, "layers": 3, "positions": 64}
    model = GPT(GPTConfig(**{**sizes, **FORMS[form], **settings})).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)  # biases and gains too
    return model


def fast(model: GPT) -> FastGPT:
    result = fast_gpt(model)
    assert isinstance(result, FastGPT)
    return result


def texts() -> Tensor:
    return torch.randint(V, (B, LONG), generator=torch.Generator().manual_seed(1))


def assert_equal(result: Tensor, wanted: Tensor) -> None:
    assert result.shape == wanted.shape
    assert (result - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max()))


@pytest.fixture(params=["kernels", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the kernels, and with PyTorch operators."""
    if request.param == "torch":
        monkeypatch.setattr(few_rows, "served", lambda *tensors: False)


@pytest.mark.host
@every
@torch.no_grad()
def test_every_step_equals_the_model_s(form: str, way: None) -> None:
    model, ids, rows = build(form), texts(), torch.arange(B)
    wanted = model(ids)  # (B, T, V)
    for lengths in (None, LENGTHS, torch.tensor([7, 7, 7])):
        ends = torch.full((B,), 7) if lengths is None else lengths
        state, logits = fast(model).begin(ids[:, :7], lengths, capacity=9)  # the capacity grows twice
        assert_equal(logits, wanted[rows, ends - 1])
        for step in range(28):
            assert state.lengths.tolist() == (ends + step).tolist() and state.length == int(ends.max()) + step
            logits = fast(model).step(ids[rows, ends + step], state)
            assert_equal(logits, wanted[rows, ends + step])
    assert not logits.requires_grad


@pytest.mark.parametrize("count", [1, 8, 13, 40])
@torch.no_grad()
def test_batches_of_every_size(count: int) -> None:
    model = build("llama, grouped heads")
    ids = torch.randint(V, (count, 6), generator=torch.Generator().manual_seed(1))
    wanted = model(ids)
    state, _ = fast(model).begin(ids[:, :4])
    assert_equal(fast(model).step(ids[:, 4], state), wanted[:, 4])
    assert_equal(fast(model).step(ids[:, 5], state), wanted[:, 5])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.no_grad()
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, ids = build("llama, grouped heads").to(dtype), texts()
    wanted = model(ids)
    state, logits = fast(model).begin(ids[:, :5])
    step = fast(model).step(ids[:, 5], state)
    tolerance = 1e-10 if dtype == torch.float64 else 0.1
    assert logits.dtype == dtype
    assert (logits - wanted[:, 4]).abs().max() < tolerance and (step - wanted[:, 5]).abs().max() < tolerance


@every
@torch.no_grad()
def test_a_state_can_be_truncated_and_reordered(form: str) -> None:
    model, ids, rows = build(form), texts(), torch.arange(B)
    one, wanted = fast(model), model(ids)
    state, _ = one.begin(ids[:, :9])
    for _ in range(3):
        one.step(torch.zeros(B, dtype=torch.long), state)
    state.truncate(9)
    assert_equal(one.step(ids[:, 9], state), wanted[:, 9])
    state.truncate(torch.tensor([4, 10, 7]))
    ends = torch.tensor([4, 10, 7])
    assert_equal(one.step(ids[rows, ends], state), wanted[rows, ends])
    state.reorder(torch.tensor([2, 0, 2, 1]))
    order, ends = torch.tensor([2, 0, 2, 1]), torch.tensor([8, 5, 8, 11])
    assert state.lengths.tolist() == ends.tolist() and state.length == 11
    assert_equal(one.step(ids[order, ends], state), wanted[order, ends])
    state.reorder(torch.tensor([0]))
    assert_equal(one.step(ids[2:, 9], state), wanted[2:, 9])
    state.truncate(0)
    for position in range(3):
        logits = one.step(ids[:1, position], state)
    assert_equal(logits, wanted[:1, 2])


@torch.no_grad()
def test_logits_and_states_are_independent() -> None:
    model, ids = build("llama"), texts()
    one = fast(model)
    first, other = one.begin(ids[:, :5])[0], one.begin(ids[:, 5:10])[0]
    kept = one.step(ids[:, 5], first)
    copied = kept.clone()
    one.step(ids[:, 10], other)
    one.step(ids[:, 6], first)
    assert torch.equal(kept, copied)  # the next step does not overwrite it
    assert_equal(kept, model(ids[:, :6])[:, 5])


def test_modes_of_autograd_do_not_matter() -> None:
    model, ids = build("gpt2"), texts()
    with torch.inference_mode():
        state, _ = fast(model).begin(ids[:, :5])
        state.reorder(torch.tensor([0, 1, 2]))
    logits = fast(model).step(ids[:, 5], state)
    with torch.inference_mode():
        last = fast(model).step(ids[:, 6], state)
    assert not logits.requires_grad and not last.is_inference()
    assert_equal(last, model(ids[:, :7])[:, 6].detach())


def test_a_state_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        one = fast(build("llama"))
        state, _ = one.begin(texts()[:, :5])
        one.step(texts()[:, 5], state)
        key = weakref.ref(next(iter(state.caches.values()))[0])
        del state
        assert key() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("form", ["llama, grouped heads", "mistral, window", "gpt2"])
@torch.no_grad()
def test_watching_records_every_call_and_does_not_change_the_output(form: str, lengths: Tensor | None) -> None:
    model, ids, rows = build(form), texts(), torch.arange(B)
    one, ends = fast(model), torch.full((B,), 7) if lengths is None else lengths

    def run() -> list[Tensor]:
        state, logits = one.begin(ids[:, :7], lengths)
        return [logits, *(one.step(ids[rows, ends + step], state) for step in range(9))]

    alone = run()
    with regard.watch(model) as seen:
        watched = run()
    assert seen.missed == []
    assert all(torch.equal(a, b) for a, b in zip(watched, alone, strict=True))
    names = {f"blocks.{index}.attention" for index in range(3)}
    assert {name.split("#")[0].split("@")[0] for name in seen.names} == names
    maps = model(ids, return_maps=True)[1]
    if lengths is not None:
        return
    with regard.watch(model) as model_seen:
        caches = model.caches()
        model(ids[:, :7], caches=caches)
        for step in range(9):
            model(ids[:, 7 + step : 8 + step], caches=caches)
    assert list(model_seen.names) == list(seen.names)
    for index, (mine, theirs) in enumerate(zip(seen, model_seen, strict=True)):
        assert mine.shape == theirs.shape == (B, 6, 16, 16)
        torch.testing.assert_close(mine.dense(), theirs.dense(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mine.dense(), maps[index].dense()[..., :16, :16], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_watched_maps_are_unchanged_by_later_steps() -> None:
    """Later steps overwrite positions that a recorded call refers to, after the state was truncated."""
    model, ids = build("llama"), texts()
    one = fast(model)
    state, _ = one.begin(ids[:, :7])
    with regard.watch(model) as seen:
        one.step(ids[:, 7], state)
        state.truncate(3)
        for position in range(3, 8):
            one.step(ids[:, position] * 0, state)
    assert seen.missed == []
    wanted = model(ids[:, :8], return_maps=True)[1][0].dense()[:, :, 7:]
    torch.testing.assert_close(seen["blocks.0.attention"].dense()[..., :1, :8], wanted, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_watched_maps_do_not_change_with_later_steps() -> None:
    """Steps reuse their buffers and write keys unseen, while a map refers to the keys before them."""
    model, ids = build("llama, one key head, not tied"), texts()
    one = fast(model)
    state, _ = one.begin(ids[:, :7], capacity=10)
    one.step(ids[:, 7], state)
    with regard.watch(model) as seen:
        one.step(ids[:, 8], state)
    one.step(ids[:, 9], state)
    wanted = model(ids[:, :9], return_maps=True)[1]
    for mine, whole in zip(seen, wanted, strict=True):
        torch.testing.assert_close(mine.dense(), whole.dense()[:, :, 8:], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_watched_maps_survive_padding_that_is_overwritten() -> None:
    """Equal lengths shorter than the prompts: steps overwrite the keys of padding, to which the map refers."""
    model, ids = build("llama, grouped heads"), texts()
    one = fast(model)
    with regard.watch(model) as seen:
        state, _ = one.begin(ids[:, :7], torch.full((B,), 5), capacity=8)
        one.step(ids[:, 8] * 0, state)
    assert seen.missed == []
    wanted = model(ids[:, :7], return_maps=True)[1][0].dense()
    torch.testing.assert_close(seen["blocks.0.attention"].dense()[..., :7, :7], wanted, rtol=1e-4, atol=1e-6)


class Count(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_a_dispatch_mode_sees_operators() -> None:
    model, ids = build("llama"), texts()
    one, wanted = fast(model), model(ids)
    state, _ = one.begin(ids[:, :5])
    one.step(ids[:, 5], state)
    with Count() as count:
        assert fast_gpt(model) is model
        logits = one.step(ids[:, 6], state)
    assert count.calls > 3 * 10
    assert_equal(logits, wanted[:, 6])
    assert_equal(one.step(ids[:, 7], state), wanted[:, 7])


def test_hooks_and_autocast_run_the_model_itself() -> None:
    model = build("llama")
    hook = model.blocks[0].attention.query.register_forward_hook(lambda *_: None)
    assert fast_gpt(model) is model
    hook.remove()
    with regard.watch(model):
        assert isinstance(fast_gpt(model), FastGPT)
    with torch.autocast("cpu"):
        assert fast_gpt(model) is model
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert fast_gpt(model) is model
    finally:
        everywhere.remove()
    assert isinstance(fast_gpt(model), FastGPT)


EXCHANGED = ["wrapped part", "subclass", "forward", "operator", "similarity", "pairs", "bias", "no gain"]
EXCHANGED += ["parametrized", "biases", "norm after"]


def _exchange(model: GPT, name: str) -> None:
    attention, feedforward = model.blocks[1].attention, model.blocks[1].feedforward
    if name == "wrapped part":
        model.blocks[1].feedforward = nn.Sequential(feedforward)
    elif name == "subclass":
        feedforward.up.__class__ = type("Louder", (nn.Linear,), {})
    elif name == "forward":
        feedforward.forward = lambda x: x
    elif name == "operator":
        attention.attend = partial(regard.attend, softcap=5.0)
    elif name == "similarity":
        attention.similarity = "cosine"
    elif name == "pairs":
        attention.position = RotaryPosition(layout="interleaved")
    elif name == "bias":
        model.vocabulary = nn.Linear(60, V)
    elif name == "no gain":
        model.norm = nn.RMSNorm(60, elementwise_affine=False)
    elif name == "parametrized":
        nn.utils.parametrizations.weight_norm(feedforward.up)
    elif name == "biases":
        attention.query = nn.Linear(60, 60)
    elif name == "norm after":
        model.blocks[1].around_attention.norm_first = False


@pytest.mark.parametrize("name", EXCHANGED)
def test_exchanged_parts_are_called(name: str) -> None:
    model = build("llama")
    _exchange(model, name)
    assert fast_gpt(model) is model


def test_training_mode_is_refused() -> None:
    one = fast(build("llama", dropout=0.5).train())
    assert one.eval() is one and not one.training
    with pytest.raises(AssertionError, match="inference"):
        one.train(True)
    ids = texts()
    assert torch.equal(one.begin(ids)[1], one.begin(ids)[1])


@torch.no_grad()
def test_errors_name_the_values() -> None:
    model, ids = build("llama", positions=8), texts()
    one = fast(model)
    with pytest.raises(ValueError, match=r"gpt: ids \(3×0\) must hold a token of each text; got lengths \[0, 0, 0\]"):
        one.begin(ids[:, :0])
    with pytest.raises(ValueError, match=r"must hold a token of each text; got lengths \[2, 0, 1\]"):
        one.begin(ids[:, :5], torch.tensor([2, 0, 1]))
    with pytest.raises(ValueError, match=r"gpt: ids \(3×9\) must end within positions \(8\)"):
        one.begin(ids[:, :9])
    state, _ = one.begin(ids[:, :7])
    with pytest.raises(ValueError, match=r"gpt: tokens \(2\) must be 3, one per text of the state"):
        one.step(ids[:2, 0], state)
    with pytest.raises(ValueError, match=r"gpt: lengths \(8\) must lie in 0…\[7, 7, 7\]"):
        state.truncate(8)
    with pytest.raises(ValueError, match=r"gpt: lengths \(\[-1, 2, 3\]\) must lie in"):
        state.truncate(torch.tensor([-1, 2, 3]))
    one.step(ids[:, 7], state)
    with pytest.raises(ValueError, match=r"tokens \(3\) must end within positions \(8\); got 8 tokens before them"):
        one.step(ids[:, 8], state)


@torch.no_grad()
def test_a_window_with_rotary_positions_has_no_limit() -> None:
    short, long = build("mistral, window", positions=8), build("mistral, window", positions=64)
    long.load_state_dict(short.state_dict())
    ids, one = texts(), fast(short)
    assert one.longest is None and fast(long).longest is None and fast(build("llama")).longest == 64
    state, _ = one.begin(ids[:, :8])
    for position in range(8, 30):
        logits = one.step(ids[:, position], state)
    assert_equal(logits, long(ids)[:, 29])


@pytest.mark.skipif(engine.module is None, reason="there are no native kernels here")
@torch.no_grad()
def test_a_step_allocates_only_the_logits() -> None:
    model, ids = build("llama, grouped heads"), texts()
    one = fast(model)
    state, _ = one.begin(ids[:, :7], capacity=LONG)
    one.step(ids[:, 7], state)
    assert state.bound is not None
    x, blocks = state.bound.x, state.bound.blocks
    memory = [cache.data_ptr() for pair in state.caches.values() for cache in pair]
    for position in range(8, 20):
        one.step(ids[:, position], state)
    assert state.bound[0] is x and state.bound[1] is blocks
    assert memory == [cache.data_ptr() for pair in state.caches.values() for cache in pair]
