"""The benchmark of language models, with a small model and without nanoGPT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench import language
from bench.harness import Options
from regard.data import Characters, Corpus
from regard.data.text_chunks import encode_chunks

NANOGPT = '''
from dataclasses import dataclass
import torch

@dataclass
class GPTConfig:
    block_size: int; vocab_size: int; n_layer: int; n_head: int; n_embd: int; dropout: float; bias: bool

class GPT(torch.nn.Module):
    """Predicts a token from the one before it."""
    def __init__(self, config):
        super().__init__()
        self.table = torch.nn.Embedding(config.vocab_size, config.vocab_size)
    def configure_optimizers(self, decay, rate, betas, device):
        return torch.optim.AdamW([{"params": list(self.parameters()), "weight_decay": decay}], lr=rate, betas=betas)
    def forward(self, ids, targets):
        logits = self.table(ids)
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
'''


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "to be, or not to be: that is the question. " * 9
    letters = Characters.train([text])
    parts = (("train", text), ("valid", text[:90]))
    corpora = [Corpus.write_flat(tmp_path / name, encode_chunks([part], letters)) for name, part in parts]
    monkeypatch.setattr(language, "shakespeare", lambda: (letters, *corpora))
    (tmp_path / "model.py").write_text(NANOGPT)
    monkeypatch.setenv("REGARD_NANOGPT", str(tmp_path))
    language.nanogpt.cache_clear()


def test_both_learn_and_are_evaluated_on_the_same_windows() -> None:
    losses = [language.our_loss(language.QUICK, steps) for steps in (1, 200)]
    assert losses[1] < losses[0] - 0.5
    theirs = language.Theirs(language.QUICK, fused=True)
    assert sum(theirs.step() for _ in range(3)) > 0
    ids = torch.from_numpy(language.shakespeare()[2].ids[0].astype("int64"))[:89]
    expected = theirs.plain(ids[None, :-1], ids[None, 1:])[1].item()
    assert theirs.held_out_loss() == pytest.approx(expected, rel=1e-5)


def test_contenders_and_bars() -> None:
    [case] = language.cases(Options(quick=True))
    assert [name for name in case.contenders if "compiled" not in name] == [
        "regard",
        "regard, bfloat16",
        "nanoGPT",
        "nanoGPT, fused AdamW",
    ]
    for name in ("regard", "regard, bfloat16", "nanoGPT", "nanoGPT, fused AdamW"):
        case.contenders[name]()
    assert [figure.bar for figure in language.figures(Options())] == ["<= 1.88", None, None]


def test_a_missing_clone_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_NANOGPT", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match=r"REGARD_NANOGPT \(.*none\) must be a folder with the model\.py of nanoGPT"):
        language.nanogpt()
