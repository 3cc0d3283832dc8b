"""The joined steps of a generation with a cache equal the map of a single pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.lens import recorders

T, START = 9, 4


class Decoder(nn.Module):
    """A layer of attention with a cache."""

    def __init__(self, cache: str, window: int | None = None) -> None:
        super().__init__()
        self.cache, self.window = cache, window
        self.buffer = torch.zeros(1, 2, T + 3, 4)
        self.keys = torch.zeros(1, 2, 0, 4)
        self.filled = 0

    def forward(self, q: Tensor) -> Tensor:
        new = q.shape[-2]
        if self.cache == "static":
            self.buffer[..., self.filled : self.filled + new, :] = q
            self.filled += new
            at = torch.arange(self.filled - new, self.filled)[:, None]
            return F.scaled_dot_product_attention(q, self.buffer, self.buffer, torch.arange(T + 3) <= at)
        self.keys = torch.cat([self.keys, q], -2)
        if self.window and new == 1:
            self.keys = self.keys[..., -self.window :, :]
        mask: Any = None
        if self.window and new > 1:
            mask = regard.masks.sliding(new, left=self.window - 1, right=0)
        elif self.cache == "padded":
            mask = torch.arange(self.keys.shape[-2]) <= torch.arange(new)[:, None] + self.keys.shape[-2] - new
            mask = mask & (torch.arange(self.keys.shape[-2]) > 0)
        causal = mask is None and new > 1
        return F.scaled_dot_product_attention(q, self.keys, self.keys, mask, is_causal=causal)


def steps(model: nn.Module, x: Tensor, cut: list[int]) -> Any:
    with torch.no_grad(), regard.watch(model) as seen:
        for start, stop in pairwise(cut):
            model(x[..., start:stop, :])
    return seen


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 2, T, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("cut", [[0, START, *range(START + 1, T + 1)], [0, *range(1, T + 1)]])
def test_a_growing_cache_is_one_causal_map(x: Tensor, cut: list[int]) -> None:
    seen = steps(Decoder("grows"), x, cut)
    _, expected = regard.attend(x, x, x, is_causal=True, return_map=True)
    assert len(seen) == 1 and seen.kinds == ["causal"] and seen.calls[0].request.mask.dense is None
    torch.testing.assert_close(seen[0].dense(), expected.dense())
    assert seen.calls[0].request.mask.offset == 0


@pytest.mark.parametrize("first", [2, START])
def test_a_window_that_drops_keys_is_one_map_over_all_keys(x: Tensor, first: int) -> None:
    seen = steps(Decoder("grows", window=3), x, [0, first, *range(first + 1, T + 1)])
    _, expected = regard.attend(x, x, x, is_causal=True, window=(2, None), return_map=True)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].dense(), expected.dense())


def test_a_preallocated_cache(x: Tensor) -> None:
    seen = steps(Decoder("static"), x, [0, START, *range(START + 1, T + 1)])
    _, expected = regard.attend(x, x, x, is_causal=True, return_map=True)
    assert len(seen) == 1 and seen[0].shape == (1, 2, T, T + 3)
    torch.testing.assert_close(seen[0].dense()[..., :T], expected.dense())
    assert not seen[0].dense()[..., T:].any()


def test_masks_that_are_not_a_band(x: Tensor) -> None:
    seen = steps(Decoder("padded"), x, [0, START, *range(START + 1, T + 1)])
    _, expected = regard.attend(x, x, x, torch.arange(T) > 0, is_causal=True, return_map=True)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].dense(), expected.dense())


def test_unrelated_calls_are_not_joined(x: Tensor) -> None:
    model = Decoder("grows")
    with torch.no_grad(), regard.watch(model) as seen:
        for _ in range(2):  # twice the same, from the beginning
            model.keys = torch.zeros(1, 2, 0, 4)
            model(x)
        model.keys = model.keys.flip(-2)  # as when beams change their places
        model(x[..., :1, :])
    assert seen.names == ["Decoder", "Decoder#2", "Decoder#3"]


class Beams:
    """Sequences of a few tokens whose keys and queries depend on the token alone, so that many of them are equal.

    Each call appends a token to every sequence, after the sequences may have been exchanged; what is compared are the
    joined maps with weights computed from the sequence of each batch entry.
    """

    def __init__(self, kind: str, batch: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.kind, self.window = kind, 2
        self.keys, self.queries = torch.randn(2, 2, 5, 4, generator=self.random)  # (tokens, heads, width) of each
        self.ids = torch.zeros(batch, 0, dtype=torch.long)
        self.cache = torch.zeros(batch, 5, 0, 4)
        self.buffer = torch.zeros(batch, 5, 16, 4)
        self.calls: list[tuple[int, int]] = []
        """First position of the queries and of the keys of each call."""
        self.shared = torch.randn(1, 5, 3, 4, generator=self.random).expand(batch, -1, -1, -1)

    def __call__(self, model: nn.Module, count: int, order: Tensor) -> None:
        self.ids, self.cache, self.buffer = self.ids[order], self.cache[order], self.buffer[order]
        start, batch = self.ids.shape[1], len(self.ids)
        tokens = torch.randint(0, 2, (batch, count), generator=self.random)
        self.ids = torch.cat([self.ids, tokens], 1)
        q, k = self.queries[tokens].transpose(1, 2), self.keys[tokens].transpose(1, 2)  # (B, heads, count, width)
        first, mask = 0, torch.arange(start + count) <= torch.arange(start, start + count)[:, None]
        if self.kind == "shared":
            k, mask = self.shared, None
        elif self.kind == "static":
            self.buffer[..., start : start + count, :] = k
            k, mask = self.buffer, torch.nn.functional.pad(mask, (0, 16 - start - count))
        else:
            self.cache = torch.cat([self.cache, k], -2)
            if self.kind == "window":
                self.cache = self.cache[..., -self.window - count + 1 :, :]
                first = start + count - self.cache.shape[-2]
                at = torch.arange(start, start + count)[:, None]
                mask = mask[:, first:] & (torch.arange(first, start + count) > at - 2)
            k = self.cache
        self.calls.append((start, first))
        model(q, k, mask)

    def expected(self, calls: range) -> Tensor:
        """The weights of these calls as one map, (B, heads, queries, keys)."""
        (start, first), stop = self.calls[calls.start], [*self.calls, (self.length, 0)][calls.stop][0]
        q = self.queries[self.ids[:, start:stop]].transpose(1, 2)
        if self.kind == "shared":
            return (q @ self.shared.mT / 2).softmax(-1)
        k = self.keys[self.ids[:, first:stop]].transpose(1, 2)
        row, col = torch.arange(start, stop)[:, None], torch.arange(first, stop)
        allowed = (col <= row) & ((col > row - 2) if self.kind == "window" else True)
        return (q @ k.mT / 2).masked_fill(~allowed, -torch.inf).softmax(-1)

    @property
    def length(self) -> int:
        return self.ids.shape[1]


class Attends(nn.Module):
    def forward(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, mask)


@pytest.mark.parametrize("kind", ["grows", "window", "static", "shared"])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_beams_that_are_exchanged_are_never_joined(kind: str, batch: int) -> None:
    """Every map belongs to one sequence, even if batch entries were exchanged between calls."""
    joined = 0
    for seed in range(25):
        beams, model, sizes = Beams(kind, batch, seed), Attends(), []
        with torch.no_grad(), regard.watch(model) as seen:
            for _ in range(6):
                order = torch.arange(batch)
                if int(torch.randint(0, 2, (), generator=beams.random)):
                    order = torch.randint(0, batch, (batch,), generator=beams.random)
                count = 2 if not sizes else int(torch.randint(1, 3, (), generator=beams.random))
                before = len(seen)
                beams(model, count, order)
                sizes.append(count)
                if len(seen) == before:  # it was joined: so far the map is that of the sequences as they are now
                    joined += 1
                rows, calls = seen.calls[-1].request.queries, len(sizes)
                while rows > 0:
                    calls -= 1
                    rows -= sizes[calls]
                assert rows == 0
                expected = beams.expected(range(calls, len(sizes)))
                result = seen[-1].dense()[..., : expected.shape[-1]]
                torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)
        assert not seen.missed
    ambiguous = batch > 1 if kind == "shared" else batch > 2 and kind == "window"  # two tokens: some entries are equal
    assert joined > 20 or ambiguous


def test_a_cache_that_is_cropped_and_refilled_is_not_joined(x: Tensor) -> None:
    """Assisted generation does this when candidates are rejected. Their rows belong to no sequence."""
    model = Decoder("grows")
    with torch.no_grad(), regard.watch(model) as seen:
        model(x[..., :4, :])
        model.keys = model.keys[..., :3, :]
        model(x[..., 5:7, :])  # another token in the place of the fourth
        model.keys = model.keys[..., :4, :]
        model(x[..., 6:8, :])  # the same token again, and one more
    assert [m.shape[-2] for m in seen] == [4, 2, 2]


def test_another_pass_over_the_same_keys_is_not_joined(x: Tensor) -> None:
    """Equal keys in other memory are another pass; one query at a time over the same memory is a step."""
    model, query = Attends(), x[..., :3, :]
    with torch.no_grad(), regard.watch(model) as seen:
        model(query, x.clone(), None)
        model(query, x.clone(), None)
        model(query[..., :1, :], x, None)
        model(query[..., 1:2, :], x, None)
        model(query, x, None)
    assert [m.shape[-2] for m in seen] == [3, 3, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_keys_are_compared_bit_by_bit(x: Tensor, dtype: torch.dtype) -> None:
    for value, other in ((0.0, -0.0), (1.0, 1.0 + torch.finfo(dtype).eps), (torch.nan, torch.nan)):
        model, k = Attends(), x.to(dtype).clone()
        k[0, 1, 2, 3] = value
        grown = k.clone()
        grown[0, 1, 2, 3] = other
        with torch.no_grad(), regard.watch(model) as seen:
            model(k[..., :4, :], k[..., :4, :], None)
            model(grown[..., 4:5, :], grown[..., :5, :], None)
        assert len(seen) == (1 if value != value else 2)


def test_a_mask_that_is_overwritten_by_the_next_step(x: Tensor) -> None:
    """A static mask that is filled in place through `.data`, which is not detected."""
    model, mask, keys = Attends(), torch.zeros(1, T, dtype=torch.bool), torch.zeros(1, 2, T, 4)
    with torch.no_grad(), regard.watch(model) as seen:
        for t in range(T):
            mask.data[:, : t + 1] = True
            keys[..., t, :] = x[..., t, :]
            model(x[..., t : t + 1, :], keys, mask.clone() if t == 0 else mask)
    expected = regard.attend(x, x, x, is_causal=True, return_map=True)[1]
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].dense(), expected.dense())


def test_lengths_that_are_incremented_in_place(x: Tensor) -> None:
    class Counts(nn.Module):
        def forward(self, q: Tensor, lengths: Tensor) -> Tensor:
            return regard.attend(q, x, x, lengths=lengths)

    lengths = torch.tensor([2])
    with torch.no_grad(), regard.watch(model := Counts()) as seen:
        model(x[..., :3, :], lengths)
        lengths.data += 3
    assert not seen[0].dense()[..., 2:].any()


def test_a_sink_that_differs_is_another_map(x: Tensor) -> None:
    from regard.lens.recorded_call import Record
    from regard.lens.recorders import stored_request

    def attends(q: Tensor, k: Tensor, sink: Tensor | None) -> Tensor:
        if torch.overrides.has_torch_function_variadic(q, k):
            return torch.overrides.handle_torch_function(attends, (q, k), q, k, sink)
        return q

    class Sinks(nn.Module):
        def forward(self, q: Tensor, k: Tensor, sink: Tensor | None) -> Tensor:
            return attends(q, k, sink)

    def recorder(q: Tensor, k: Tensor, sink: Tensor | None) -> Record:
        return Record(stored_request(regard.attention.request.Request.of(q, k, k)), sink)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recorders.RECORDERS, attends, recorder)
        sinks = [torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1), None]
        with torch.no_grad(), regard.watch(model := Sinks()) as seen:
            for t, sink in enumerate(sinks):
                model(x[..., t + 1 : t + 2, :], x[..., : t + 2, :], sink)
    assert [m.shape[-2] for m in seen] == [2, 1, 1]
