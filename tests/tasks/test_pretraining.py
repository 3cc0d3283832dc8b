"""The pretraining task: the loss covers masked positions only, and resuming a run is exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from regard.models.bert import Bert, BertConfig
from regard.models.bert_heads import MaskedTokens, Pretraining
from regard.tasks.pretraining import Pretrain
from regard.training import Interrupted, Silent, Training, fit, seed_all
from regard.training.recipes.pretrain_bert import Plain, Prepared, prepare
from tests.tasks.sample_texts import write_plain
from tests.training.test_loop import same_runs


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plain, Prepared]:
    folder = tmp_path_factory.mktemp("plain")
    config = Plain((write_plain(folder / "text", 120),), hold_out=0.2, documents="line", longest=24, tokens=200)
    return config, prepare(config, folder / "run", 80, seed=0, say=lambda _: None)


@pytest.fixture(params=[False, True], ids=["masked", "pairs"])
def make(request: pytest.FixtureRequest, prepared: tuple[Plain, Prepared]) -> Callable[[], Pretrain]:
    """Return a function that builds the task from scratch, as a restarted process does."""
    config, data = prepared

    def build() -> Pretrain:
        seed_all(0)
        sizes = BertConfig(vocabulary=len(data.words), width=16, heads=2, hidden=32, layers=1, positions=25)
        model = Pretraining(Bert(sizes)) if request.param else MaskedTokens(Bert(sizes, pooler=False))
        batches = data.batches(dataclasses.replace(config, next_sentence=request.param), seed=3)
        return Pretrain(model, data.words, *batches)

    return build


def test_the_loss_covers_the_masked_positions_only(make: Callable[[], Pretrain]) -> None:
    task = make()
    task.model.eval()
    batch = next(task.batches(1, start=2, rank=0, world=1))
    loss = task.loss(batch)
    logits = task.model(batch.ids, batch.lengths, batch.segments)
    tokens = logits[0] if task.next is not None else logits
    wanted = F.cross_entropy(tokens[batch.chosen], batch.wanted, reduction="sum")
    if task.next is not None:
        wanted = wanted + len(batch.wanted) * F.cross_entropy(logits[1], batch.other)
    torch.testing.assert_close(loss.total, wanted)
    assert loss.count == int(batch.chosen.sum())


def test_shares_of_a_batch_add_up(make: Callable[[], Pretrain]) -> None:
    task = make()
    task.model.eval()
    whole = task.loss(next(task.batches(0, start=1, rank=0, world=1)))
    shares = [task.loss(next(task.batches(0, start=1, rank=rank, world=2))) for rank in (0, 1)]
    torch.testing.assert_close(sum(share.total for share in shares), whole.total)
    assert sum(share.count for share in shares) == whole.count
    empty = task.loss(next(task.batches(0, start=1, rank=999, world=1000)))
    empty.total.backward()
    assert empty.count == 0 and empty.total == 0


def test_it_learns_and_evaluates_with_the_same_masks(make: Callable[[], Pretrain], tmp_path: Path) -> None:
    task = make()
    task.model.eval()
    with torch.no_grad():
        before, again = task.evaluate(), task.evaluate()
    assert before == again
    settings = Training(steps=60, learning_rate=1e-2, warmup=5, save_seconds=1e6)
    outcome = fit(task, settings, tmp_path / "run", display=Silent())
    assert outcome.best is not None and outcome.best < before["loss"] - 0.4
    shown, ours, wanted = task.samples()[0]
    assert "[MASK]" in shown and "[MASK]" not in wanted and ours != shown
    if task.next is not None:
        assert 0 <= before["next_accuracy"] <= 1


def test_an_interrupted_run_ends_bit_identical(make: Callable[[], Pretrain], tmp_path: Path) -> None:
    config = Training(steps=14, warmup=0.2, log_every=2, evaluate_every=7, save_every=3, save_seconds=0.0)
    fit(make(), config, tmp_path / "whole", display=Silent())
    with pytest.raises(Interrupted):
        fit(Broken(make(), 5), config, tmp_path / "broken", display=Silent())
    fit(make(), config, tmp_path / "broken", display=Silent())
    assert same_runs(tmp_path / "whole", tmp_path / "broken")


class Broken:
    """A task that receives Ctrl-C at batch `after`."""

    def __init__(self, task: object, after: int) -> None:
        self.task, self.left = task, after

    def __getattr__(self, name: str) -> object:
        return getattr(self.task, name)

    def loss(self, batch: object) -> object:
        import os
        import signal

        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)
        return self.task.loss(batch)  # type: ignore[attr-defined]


def test_model_and_batches_must_fit(prepared: tuple[Plain, Prepared]) -> None:
    config, data = prepared
    bert = Bert(BertConfig(vocabulary=len(data.words), width=8, heads=2, hidden=8, layers=1))
    with pytest.raises(ValueError, match=r"model \(Pretraining\) must be a Pretraining for batches of pairs"):
        Pretrain(Pretraining(bert), data.words, *data.batches(config, 0))


def test_data_of_other_settings_are_prepared_again(tmp_path: Path) -> None:
    text = write_plain(tmp_path / "text", 40)
    config = Plain((text,), hold_out=0.2, documents="line", longest=24)
    lengths = [
        int(
            prepare(
                dataclasses.replace(config, longest=longest), tmp_path / "run", 60, 0, lambda _: None
            ).train.lengths.max()
        )
        for longest in (24, 12)
    ]
    assert lengths[0] > 10 >= lengths[1]
    (tmp_path / "run/config.json").write_text("{}")  # the run has started: other settings are refused
    with pytest.raises(ValueError, match=r"settings of .*run \(longest\) must be those its data were prepared with"):
        prepare(config, tmp_path / "run", 60, 0, lambda _: None)


def test_too_little_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("One line. And no more.")
    with pytest.raises(ValueError, match="held-out text must hold at least one passage; got 0 documents kept"):
        prepare(Plain((tmp_path / "text",), hold_out=0.01), tmp_path / "run", 60, 0, lambda _: None)
