"""The translation task: a loss without padding, and metrics of the translated texts."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from regard.data import load_vocabulary
from regard.tasks.bleu import bleu
from regard.tasks.translation import Translate, exact


def test_the_loss_is_the_cross_entropy_without_padding(task: Translate) -> None:
    batch = max(task.batches(0, start=0, rank=0, world=1), key=lambda batch: batch.padding)
    assert batch.padding > 0  # otherwise the test would check nothing
    loss = task.loss(batch)
    logits = task.model(batch.source, batch.source_lengths, batch.target[:, :-1], batch.target_lengths)
    wanted = F.cross_entropy(logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(loss.total, wanted)
    assert loss.count == int(batch.target_lengths.sum()) and loss.extras == {"padding": batch.padding}


def test_shares_of_a_batch_add_up(task: Translate) -> None:
    whole = task.loss(next(task.batches(0, start=3, rank=0, world=1)))
    shares = [task.loss(next(task.batches(0, start=3, rank=rank, world=2))) for rank in (0, 1)]
    torch.testing.assert_close(sum(share.total for share in shares), whole.total)
    assert sum(share.count for share in shares) == whole.count


def test_an_empty_share_has_no_loss_and_zero_gradients(task: Translate) -> None:
    world = 100_000
    empty = next(task.batches(0, start=0, rank=world - 1, world=world))
    loss = task.loss(empty)
    loss.total.backward()
    assert len(empty) == 0 and loss.count == 0 and loss.total == 0
    assert all(p.grad is not None and not p.grad.any() for p in task.model.parameters())
    task.model.zero_grad()


def test_training_improves_the_metrics(trained: Translate) -> None:
    with torch.no_grad():
        figures = trained.evaluate()
    assert figures["loss"] < 0.2 and figures["bleu"] > 90
    source, ours, wanted = trained.samples()[0]
    assert (source, wanted) == trained.texts[0] and ours


def test_vocabularies_are_saved(task: Translate, tmp_path: Path) -> None:
    task.save(tmp_path)
    text = "the dog sees a bird"
    source = load_vocabulary(tmp_path / "source.json")
    assert source.encode(text) == task.translator.source.encode(text)
    assert len(load_vocabulary(tmp_path / "target.json")) == len(task.translator.target)


def test_exact_match_and_bleu() -> None:
    assert exact(["a", "b"], ["a", "c"]) == 0.5
    score, signature = bleu(["the cat sat on the mat"], ["The cat sat on the mat"])
    assert score < 100 and "case:mixed" in signature and "tok:13a" in signature


def test_no_held_out_pairs_are_refused(task: Translate) -> None:
    with pytest.raises(ValueError, match=r"texts \(0 pairs\) must hold at least one pair"):
        Translate(task.translator, task.train, task.valid, [])
