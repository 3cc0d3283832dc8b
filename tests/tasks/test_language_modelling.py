"""Language modelling: loss and metrics against the logits, exact resume, samples that do not disturb training."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.data import ByteSubwords, Characters, Corpus
from regard.data.text_chunks import encode_chunks
from regard.data.token_windows import TokenWindows
from regard.models import GPT, GPTConfig, LastTokenClassifier
from regard.tasks.language_model import LanguageModel
from regard.tasks.language_modelling import LanguageModelling
from regard.training import Interrupted, Silent, Training, fit, seed_all
from tests.tasks.test_pretraining import Broken
from tests.training.test_loop import same_runs

TEXT = "".join(f"the {a} sees a {b}.\n" for a in ("cat", "dog", "bird") for b in ("mouse", "house", "tree", "月亮"))


@pytest.fixture(params=[GPTConfig, GPTConfig.llama], ids=["gpt2", "llama"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., LanguageModelling]:
    """Return a function that builds the task from scratch, as a restarted process does."""
    letters = Characters.train([TEXT])
    train = Corpus.write_flat(tmp_path / "train", encode_chunks([TEXT] * 3, letters))
    valid = Corpus.write_flat(tmp_path / "valid", encode_chunks([TEXT[:150]], letters))

    def build(**options: int) -> LanguageModelling:
        seed_all(0)
        config = request.param(
            vocabulary=len(letters), width=16, heads=2, layers=2, hidden=32, positions=24, dropout=0.1
        )
        windows = TokenWindows(train.ids[0], 16, 8, seed=3)
        return LanguageModelling(LanguageModel(GPT(config), letters), windows, valid, **options)

    return build


def test_the_loss_is_the_cross_entropy_of_the_next_tokens(make: Callable[..., LanguageModelling]) -> None:
    task = make()
    task.model.eval()
    batch = next(task.batches(1, start=2, rank=0, world=1))
    loss = task.loss(batch)
    logits = task.model(batch.ids)
    torch.testing.assert_close(
        loss.total, F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
    )
    assert loss.count == batch.targets.numel() == 8 * 16


def test_shares_of_a_batch_add_up(make: Callable[..., LanguageModelling]) -> None:
    task = make()
    task.model.eval()
    whole = task.loss(next(task.batches(0, start=1, rank=0, world=1)))
    shares = [task.loss(next(task.batches(0, start=1, rank=rank, world=3))) for rank in range(3)]
    torch.testing.assert_close(sum(share.total for share in shares), whole.total)
    assert sum(share.count for share in shares) == whole.count
    empty = task.loss(next(task.batches(0, start=1, rank=999, world=1000)))
    empty.total.backward()
    assert empty.count == 0 and empty.total == 0


@torch.no_grad()
def test_metrics_of_the_held_out_text(make: Callable[..., LanguageModelling]) -> None:
    task = make()
    task.model.eval()
    metrics = task.evaluate()
    ids = torch.from_numpy(task.valid.astype(np.int64))
    total = sum(
        float(
            F.cross_entropy(task.model(ids[None, start : start + 16])[0, : len(ids) - 1 - start], ids[start + 1 :][:16])
        )
        * len(ids[start + 1 :][:16])
        for start in range(0, len(ids) - 1, 16)
    )
    loss = total / (len(ids) - 1)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert metrics["bits_per_character"] == pytest.approx(loss / math.log(2), rel=1e-5), "a token is a character"
    assert metrics == task.evaluate()
    bounded = make(most_tokens=40)
    bounded.model.eval()
    assert bounded.evaluate()["loss"] != pytest.approx(loss, rel=1e-6)


def test_bits_per_character_count_characters_not_tokens(tmp_path: Path) -> None:
    subwords = ByteSubwords.train([TEXT * 5], 300)
    valid = Corpus.write_flat(tmp_path / "valid", encode_chunks([TEXT], subwords))
    model = GPT(GPTConfig(vocabulary=len(subwords), width=8, heads=2, layers=1)).eval()
    task = LanguageModelling(LanguageModel(model, subwords), TokenWindows(valid.ids[0], 8, 2), valid)
    with torch.no_grad():
        metrics = task.evaluate()
    ratio = len(subwords.encode(TEXT)) / len(TEXT)
    assert ratio < 0.8
    assert metrics["bits_per_character"] == pytest.approx(metrics["loss"] / math.log(2) * ratio)


def test_it_memorizes_a_small_text(make: Callable[..., LanguageModelling], tmp_path: Path) -> None:
    task = make()
    settings = Training(steps=150, learning_rate=1e-2, warmup=10, save_seconds=1e6)
    outcome = fit(task, settings, tmp_path / "run", display=Silent())
    assert outcome.best is not None and outcome.best < 0.75
    prompt, ours, real = task.samples()[0]
    assert (prompt + real).replace("\n  ", "\n") == TEXT[:16], "the prompt and the real continuation fill the context"
    assert len(ours.replace("\n  ", "\n")) == 11
    language = task.language
    assert language.perplexity(TEXT) < 3 < 20 < language.perplexity(TEXT[::-1])


def test_samples_do_not_disturb_training(make: Callable[..., LanguageModelling]) -> None:
    task = make()
    task.model.eval()
    before = torch.get_rng_state()
    with torch.no_grad():
        first = task.samples()
        torch.rand(3)
        assert task.samples() == first
    torch.set_rng_state(before)
    task.samples()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupted_run_ends_bit_identical(make: Callable[..., LanguageModelling], tmp_path: Path) -> None:
    config = Training(steps=14, warmup=0.2, log_every=2, evaluate_every=7, save_every=3, save_seconds=0.0)
    fit(make(), config, tmp_path / "whole", display=Silent())
    with pytest.raises(Interrupted):
        fit(Broken(make(), 5), config, tmp_path / "broken", display=Silent())  # type: ignore[arg-type]
    fit(make(), config, tmp_path / "broken", display=Silent())
    assert same_runs(tmp_path / "whole", tmp_path / "broken")


def test_a_language_model_scores_texts(make: Callable[..., LanguageModelling]) -> None:
    language = make().language
    language.model.eval()
    logits, maps = language.logits("the cat"), language.maps("the cat")
    ids = language.vocabulary.encode("the cat")
    loss = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    assert language.perplexity("the cat") == pytest.approx(math.exp(loss), rel=1e-5)
    assert [m.shape for m in maps] == [(2, 7, 7)] * 2 and maps[0].key_tokens == list("the cat")
    assert float(maps[0][0, 3, 4:].sum()) == 0, "no token attends to a later one"
    with pytest.raises(ValueError, match=r"text \(25 tokens\) must have 1 to 24 tokens, the context of the model"):
        language.logits("a" * 25)
    with pytest.raises(ValueError, match=r"text \(0 tokens\) must have 1 to 24 tokens"):
        language.maps("")
    with pytest.raises(ValueError, match=re.escape("language: text ('a') must have at least 2 tokens; got 1.")):
        language.perplexity("a")
    language.model.vocabulary.weight.data.mul_(1e5)  # e to the power of this loss is more than the largest float
    assert 1e300 < language.perplexity("the cat") < math.inf


def test_a_held_out_text_of_one_token_is_refused(tmp_path: Path) -> None:
    letters = Characters.train([TEXT])
    valid = Corpus.write_flat(tmp_path / "valid", encode_chunks(["t"], letters))
    model = GPT(GPTConfig(vocabulary=len(letters), width=8, heads=2, layers=1))
    with pytest.raises(ValueError, match=r"held-out text \(1 tokens\) must have at least 2\. Give --valid FILE"):
        LanguageModelling(LanguageModel(model, letters), TokenWindows(np.arange(20), 8, 2), valid)


@torch.no_grad()
def test_a_classifier_reads_the_last_token() -> None:
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocabulary=30, width=12, heads=3, layers=2, positions=9))
    model = LastTokenClassifier(gpt, ["bad", "good", "odd"]).eval()
    ids, lengths = torch.randint(30, (4, 9)), torch.tensor([9, 1, 5, 9])
    logits, maps = model(ids, lengths, return_maps=True)
    for row, length in enumerate(lengths.tolist()):
        alone = model.classes(gpt.hidden(ids[row : row + 1, :length])[0, -1])
        torch.testing.assert_close(logits[row], alone, rtol=1e-4, atol=1e-5)
    assert [m.shape for m in maps] == [(4, 3, 9, 9)] * 2
    torch.testing.assert_close(model(ids), model(ids, [9] * 4))
    with pytest.raises(ValueError, match=r"ids \(2×9\) must hold no empty text; got lengths \[3, 0\]"):
        model(ids[:2], [3, 0])
    with pytest.raises(ValueError, match=r"last token classifier: classes \(\['a', 'a'\]\) must be at least one"):
        LastTokenClassifier(gpt, ["a", "a"])
