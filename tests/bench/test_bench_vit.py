"""The benchmark of the Vision Transformer, with a small model."""

import pytest
import torch

from bench import vit
from bench.harness import Options, measure


def test_contenders_agree_and_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vit, "CONFIG", vit.ViTConfig(classes=3, image=(8, 8), width=8, heads=2, hidden=16, layers=2))
    monkeypatch.setattr(vit, "QUICK", 2)
    [case] = vit.cases(Options(quick=True))
    if len(case.contenders) < 2:
        pytest.skip("no peer is installed")
    results = measure(case, rounds=2, seconds=1e-4)
    assert len(results) == len(case.contenders) and results[0].bar is None
    monkeypatch.setattr(vit, "BATCH", 2)
    [case] = vit.cases(Options())
    assert [versus.bar for versus in case.versus][:2] == [vit.BAR, None]


def test_a_missing_peer_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(vit, "load", absent)
    [case] = vit.cases(Options(quick=True))
    assert list(case.contenders) == ["regard"] and not case.versus


def test_training_steps_reduce_the_loss() -> None:
    torch.manual_seed(0)
    model = vit.ViT(vit.ViTConfig(classes=3, image=(8, 8), width=8, heads=2, hidden=16, layers=2))
    step = vit.our_step(model, torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
    first = step()
    for _ in range(60):
        last = step()
    assert last < first
