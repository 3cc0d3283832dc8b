"""Steps of a fast decoder are recorded together, and never joined wrongly or changed without notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.lens import Seen
from regard.lens.decoding_steps import DecodingSteps
from regard.models import GPT, GPTConfig
from regard.models.fast_gpt import FastGPT
from regard.models.gpt_state import GPTState

WITHIN = 1e-5
LAYERS, PROMPT, TOKENS = 3, 5, 17
NAMES = [f"blocks.{index}.attention" for index in range(LAYERS)]


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.llama(vocabulary=53, width=24, heads=6, kv_heads=2, layers=LAYERS, positions=64)).eval()


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(53, (2, TOKENS), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The result of each attempt to record a step together with the previous ones."""
    results: list[bool] = []
    extend = DecodingSteps.extend

    def recorded(self: DecodingSteps, *args: Any) -> bool:
        results.append(extend(self, *args))
        return results[-1]

    monkeypatch.setattr(DecodingSteps, "extend", recorded)
    return results


def run(fast: FastGPT, state: GPTState, ids: Tensor, start: int, stop: int) -> list[Tensor]:
    return [fast.step(ids[:, position], state) for position in range(start, stop)]


@torch.no_grad()
def check(model: GPT, ids: Tensor, seen: Seen, names: list[str] = NAMES, first: int = 0) -> None:
    """Compare maps with those of the model for the whole text, from query `first` on."""
    expected = model(ids, return_maps=True)[1]
    for name in names:
        whole = expected[NAMES.index(name.split("#")[0])].dense()[:, :, first:]
        assert seen[name].shape == whole.shape
        assert float((seen[name].dense() - whole).abs().max()) <= WITHIN


@pytest.mark.parametrize("capacity", [64, 8])
@torch.no_grad()
def test_steps_are_recorded_together(model: GPT, ids: Tensor, capacity: int, extended: list[bool]) -> None:
    fast = FastGPT(model)
    state, _ = fast.begin(ids[:, :PROMPT], capacity=capacity)
    alone = run(fast, state, ids, PROMPT, TOKENS)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT], capacity=capacity)
        watched = run(fast, state, ids, PROMPT, TOKENS)
    assert seen.names == NAMES and not seen.missed
    assert all(torch.equal(a, b) for a, b in zip(watched, alone, strict=True))
    refused = TOKENS - PROMPT - sum(extended)
    assert refused == (1 if capacity == 64 else 3)  # the first step, and the first with each larger memory
    check(model, ids, seen)


@torch.no_grad()
def test_a_map_that_was_looked_at_is_continued(model: GPT, ids: Tensor, extended: list[bool]) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        early = seen[NAMES[1]].dense()
        run(fast, state, ids, 9, TOKENS)
    assert seen.names == NAMES and extended.count(False) == 1
    assert early.shape[-2:] == (9, 9)
    check(model, ids, seen)
    assert torch.allclose(seen[NAMES[1]].dense()[:, :, :9, :9], early, atol=WITHIN)


@torch.no_grad()
def test_a_map_that_was_looked_at_before_the_second_step_is_continued(model: GPT, ids: Tensor) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, PROMPT + 1)
        assert [call.source is not None for call in seen.calls] == [True] * LAYERS  # changes nothing yet
        run(fast, state, ids, PROMPT + 1, TOKENS)
    check(model, ids, seen)


@torch.no_grad()
def test_a_map_taken_early_does_not_change(model: GPT, ids: Tensor) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        early = seen[NAMES[0]]
        run(fast, state, ids, 9, TOKENS)
    assert early.shape[-2:] == (9, 9)
    whole = model(ids[:, :9], return_maps=True)[1][0]
    assert torch.allclose(early.dense(), whole.dense(), atol=WITHIN)


@torch.no_grad()
def test_only_selected_layers_are_recorded(model: GPT, ids: Tensor, extended: list[bool]) -> None:
    fast = FastGPT(model)
    with regard.watch(model, layers=[0, 2]) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, TOKENS)
    assert seen.names == [NAMES[0], NAMES[2]] and extended.count(True) == TOKENS - PROMPT - 1
    check(model, ids, seen, [NAMES[0], NAMES[2]])


@pytest.mark.parametrize("options", [{"keep": "copy"}, {"heads": [4, 1]}, {"keep": torch.float64}])
@torch.no_grad()
def test_converted_tensors_are_recorded_call_by_call(model: GPT, ids: Tensor, options: Any) -> None:
    fast = FastGPT(model)
    with regard.watch(model, **options) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, TOKENS)
    assert seen.names == NAMES and not seen.missed
    expected = model(ids, return_maps=True)[1]
    for m, other in zip(seen, expected, strict=True):
        heads = options.get("heads", range(6))
        assert torch.allclose(m.dense().float(), other.dense()[:, list(heads)], atol=WITHIN)


@torch.no_grad()
def test_two_generations_are_recorded_apart(model: GPT, ids: Tensor) -> None:
    """Their steps alternate, so that no map may contain steps of both."""
    fast, other = FastGPT(model), ids.flip(1)
    with regard.watch(model) as seen:
        one, _ = fast.begin(ids[:, :PROMPT])
        two, _ = fast.begin(other[:, :PROMPT])
        for position in range(PROMPT, 9):
            fast.step(ids[:, position], one)
            fast.step(other[:, position], two)
        run(fast, one, ids, 9, TOKENS)
    assert not seen.missed
    expected = [m.dense() for m in model(ids, return_maps=True)[1]]
    rows = sum(m.shape[-2] for m in seen.filter(name=f"{NAMES[0]}*"))
    assert rows == 9 + TOKENS  # every query of both is in some map
    last = seen.filter(name=f"{NAMES[0]}*")[-1].dense()
    assert torch.allclose(last, expected[0][:, :, -last.shape[-2] :], atol=WITHIN)


@torch.no_grad()
def test_another_call_of_the_model_is_recorded_apart(model: GPT, ids: Tensor) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        model(ids[:, :4])
        run(fast, state, ids, 9, TOKENS)
    assert not seen.missed
    shapes = [m.shape[-2:] for m in seen.filter(name=f"{NAMES[0]}*")]
    assert shapes == [(9, 9), (4, 4), (TOKENS - 9, TOKENS)]
    check(model, ids[:, :9], seen)
    check(model, ids, seen, [f"{name}#3" for name in NAMES], first=9)


@torch.no_grad()
def test_a_step_that_was_not_seen_begins_another_map(model: GPT, ids: Tensor) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        with torch._C.DisableTorchFunction():
            fast.step(ids[:, 9], state)
        run(fast, state, ids, 10, TOKENS)
    assert [m.shape[-2:] for m in seen.filter(name=f"{NAMES[0]}*")] == [(9, 9), (TOKENS - 10, TOKENS)]
    check(model, ids[:, :9], seen)
    check(model, ids, seen, [f"{name}#2" for name in NAMES], first=10)


@torch.no_grad()
def test_a_noticed_write_copies_the_keys_of_all_steps(model: GPT, ids: Tensor) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        for key, _ in state.caches.values():
            key[:, :, 8:9].zero_()  # a key that only the last recorded step added
    assert not seen.missed
    check(model, ids[:, :9], seen)


@torch.no_grad()
def test_an_unnoticed_write_raises(model: GPT, ids: Tensor) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        with torch._C.DisableTorchFunction():
            state.caches[model.blocks[1].attention][0][:, :, 2].zero_()
        run(fast, state, ids, 9, TOKENS)
    check(model, ids, seen, [NAMES[0]])
    assert seen.names == [*NAMES, f"{NAMES[1]}#2"] and seen[-1].shape[-2:] == (TOKENS - 9, TOKENS)
    with pytest.raises(RuntimeError, match=r"a tensor of blocks\.1\.attention .* overwritten in place"):
        seen[NAMES[1]].dense()


@torch.no_grad()
def test_a_copy_of_overwritten_keys_is_reported_as_missed(model: GPT, ids: Tensor) -> None:
    """A write that is noticed after one that was not must not make the map valid again."""
    fast = FastGPT(model)
    with pytest.warns(UserWarning, match="overwritten in place"), regard.watch(model) as seen:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        key = state.caches[model.blocks[1].attention][0]
        with torch._C.DisableTorchFunction():
            key[:, :, 2].zero_()
        key.zero_()
    assert seen.names == [NAMES[0], NAMES[2]] and len(seen.missed) == 1


@torch.no_grad()
def test_watches_may_be_nested(model: GPT, ids: Tensor) -> None:
    fast = FastGPT(model)
    with regard.watch(model) as outer:
        state, _ = fast.begin(ids[:, :PROMPT])
        run(fast, state, ids, PROMPT, 9)
        with regard.watch(model) as inner:
            run(fast, state, ids, 9, TOKENS)
    check(model, ids, outer)
    check(model, ids, inner, first=9)
