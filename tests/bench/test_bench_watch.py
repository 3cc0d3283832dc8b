"""The benchmark of watching, with tiny models."""

from typing import Any

import pytest
import torch

from bench import _peers, _skips, watch
from bench.harness import Options

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(name: str, implementation: str, small: bool) -> Any:
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=30_000, n_embd=8, n_layer=2, n_head=2, n_positions=64)
        return transformers.GPT2Model._from_config(config, attn_implementation=implementation).eval()

    monkeypatch.setattr(watch, "model", model)
    monkeypatch.setattr(_peers, "installed", lambda name: name != "timm")
    _skips.skipped.clear()


@pytest.mark.parametrize("name", watch.OTHERS)
def test_gemma_and_a_timm_vision_transformer_are_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if not watch.available(name):
        pytest.skip("timm is not installed")
    shape = (1, 20) if name == "Gemma-2" else (1, 3, 224, 224)
    ways = [watch.WAYS[way](name, shape, True) for way in ("watched", "sdpa")]
    assert torch.equal(*map(watch.hidden, ways)) and len(ways[0][1]) == 2  # type: ignore[index]
    if name == "Gemma-2":
        requests = [call.request for call in ways[0][1].calls]  # type: ignore[index]
        assert [r.softcap for r in requests] == [50.0, 50.0] and {r.groups for r in requests} == {2}


def test_all_variants_compute_the_same_output_and_record_every_layer() -> None:
    ways = {way: run("GPT-2", (1, 9), True) for way, run in watch.WAYS.items()}
    assert torch.equal(watch.hidden(ways["watched"]), watch.hidden(ways["sdpa"]))
    torch.testing.assert_close(watch.hidden(ways["eager"]), watch.hidden(ways["sdpa"]), atol=1e-5, rtol=1e-4)
    assert len(ways["watched"][1]) == len(ways["eager"][0].attentions) == 2  # type: ignore[index]


def test_bars_apply_to_full_sizes_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert [v.bar for case in watch.cases(Options(quick=True)) for v in case.versus] == [None] * 5
    assert "watch: timm ViT is skipped: timm is not installed" in capsys.readouterr().err
    bars = ["<= 1.03", "<= 1.03", None, ">= 1.5", ">= 3.0"]
    assert [v.bar for case in watch.cases(Options()) for v in case.versus] == bars
    assert [figure.bar for figure in watch.figures(Options())] == ["<= 0.05"]
    watch.setup("watched", "GPT-2", [1, 9], True)()


def test_without_transformers_every_model_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_peers, "installed", lambda name: False)
    assert list(watch.cases(Options())) == list(watch.figures(Options())) == []
    assert len(_skips.skipped) == len(watch.SHAPES) + len(watch.OTHERS)
