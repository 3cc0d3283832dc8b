"""The benchmark of maps: both implementations of every verb exist and agree."""

import pytest
import torch

import regard
from bench import maps
from bench.harness import measure
from regard.attention.native import engine

KINDS = {"plain": {}, "causal": {"is_causal": True}, "additive": {"similarity": regard.Additive(torch.ones(8))}}


@pytest.mark.skipif(engine.module is None, reason=engine.reason)
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_agrees_and_is_timed(kind: str) -> None:
    cases = list(maps.verb_cases((1, 2, 160, 8), ">= 1.0", **KINDS[kind]))
    assert len(cases) == len(maps.VERBS)
    for case in cases:
        (result,) = measure(case, rounds=1, seconds=1e-5)
        assert (result.ours, result.peer, result.bar) == ("native", "PyTorch", ">= 1.0")
