"""The benchmark of generation, with a small model."""

import pytest
import torch

from bench import generate
from bench.harness import Options, measure
from regard.models.fast_gpt import fast_gpt

pytest.importorskip("transformers")


def test_contenders_agree_and_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "TRIAL", 2)
    cases = list(generate.cases(Options(quick=True)))
    names = [case.name for case in cases]
    assert names == ["step against reading memory"] * 2 + ["generate, watched", "generate", "generate"]
    for case in (cases[0], cases[2], cases[4]):
        [result] = measure(case, rounds=2, seconds=1e-4)
        assert result.median > 0 and result.bar is None


def test_bytes_are_those_of_the_weights_and_the_cache() -> None:
    case = next(iter(generate.cases(Options(quick=True))))
    model = generate.build(quick=True)
    weights = sum(parameter.numel() for parameter in model.parameters())
    keys = 27 + generate.STEPS // 2  # half of the new tokens are there when the steps begin
    assert case.bytes["ours"] == 4 * generate.STEPS * (weights + 2 * 2 * 2 * 10 * keys)


def test_the_peer_has_the_weights_of_the_model() -> None:
    model = generate.build(quick=True)
    ids = torch.randint(499, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(generate.transformers_model(model)(ids).logits, model(ids), rtol=1e-4, atol=1e-5)
        wanted = model(torch.cat((ids, generate.generate(fast_gpt(model), ids, 3)[:, :2]), 1))[:, -3:].argmax(-1)
    assert torch.equal(generate.generate(fast_gpt(model), ids, 3), wanted)
