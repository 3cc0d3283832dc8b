"""The benchmark of packed sequences: every contender computes the same, and every peer has a bar."""

import pytest

from bench import _skips, packed
from bench.harness import Options, measure


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_contenders_agree_and_are_timed(is_causal: bool, backward: bool) -> None:
    _skips.skipped.clear()
    case = packed.packed_case(packed.sentence_lengths(5), is_causal, backward, ">= 1.0")
    results = measure(case, rounds=1, seconds=1e-4)
    peers = ["padded attend", "padded SDPA", "SDPA per sentence", *([] if is_causal else ["jagged SDPA"])]
    assert [(result.peer, result.bar) for result in results] == [(peer, ">= 1.0") for peer in peers]
    assert bool(_skips.skipped) == is_causal


def test_a_smoke_test_has_no_bars() -> None:
    assert {versus.bar for case in packed.cases(Options(quick=True)) for versus in case.versus} == {None}
