"""The text classification task."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from regard.data.wordpiece import WordPiece
from regard.models.bert import Bert, BertConfig
from regard.models.bert_heads import SequenceClassifier
from regard.tasks.text_classification import Classify, layer_rates
from regard.tasks.text_classifier import Classifier
from regard.training import Interrupted, Silent, Training, fit, seed_all
from regard.training.recipes.train_text_classifier import Prepared, Texts, prepare
from tests.tasks.sample_texts import write_labelled
from tests.tasks.test_pretraining import Broken
from tests.training.test_loop import same_runs


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("labelled")
    config = Texts(write_labelled(folder / "a.tsv", 120), hold_out=0.25, longest=9)
    return prepare(config, folder / "run", lambda texts: WordPiece.train(texts, 80), seed=0, say=lambda _: None)


@pytest.fixture
def make(prepared: Prepared) -> Callable[..., Classify]:
    """Return a function that builds the task from scratch, as a restarted process does."""

    def build(**options: float) -> Classify:
        seed_all(0)
        sizes = BertConfig(vocabulary=len(prepared.words), width=16, heads=2, hidden=32, layers=2, positions=24)
        model = SequenceClassifier(Bert(sizes), prepared.labels)
        return Classify(Classifier(model, prepared.words, 9), *prepared.batches(100, seed=3), **options)

    return build


def test_the_loss_is_the_cross_entropy_of_the_labels(make: Callable[..., Classify]) -> None:
    task = make(smoothing=0.1)
    task.model.eval()
    batch = next(task.batches(1, start=2, rank=0, world=1))
    loss = task.loss(batch)
    wanted = F.cross_entropy(task.model(batch.ids, batch.lengths), batch.labels, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(loss.total, wanted)
    assert loss.count == len(batch)
    shares = [task.loss(next(task.batches(1, start=2, rank=rank, world=2))) for rank in (0, 1)]
    torch.testing.assert_close(sum(share.total for share in shares), wanted)
    empty = task.loss(next(task.batches(0, start=1, rank=999, world=1000)))
    empty.total.backward()
    assert empty.count == 0 and empty.total == 0


def test_it_learns_and_the_metrics_agree(make: Callable[..., Classify], tmp_path: Path) -> None:
    task = make()
    settings = Training(steps=160, learning_rate=5e-3, warmup=5, save_seconds=1e6)
    outcome = fit(task, settings, tmp_path / "run", display=Silent())
    assert outcome.best is not None and outcome.best > 0.9
    task.model.eval()
    with torch.no_grad():
        figures, matrix = task.evaluate(), task.confusion()
        samples = task.samples()
    assert figures["accuracy"] == pytest.approx(float(matrix.diagonal().sum() / matrix.sum()))
    assert int(matrix.sum()) == len(task.valid.corpus) and figures["f1"] > 0.8
    assert len(samples) == 8 and {wanted for _, _, wanted in samples} <= {"good", "bad"}
    texts = ["a lovely story and a great film", "dull", "the film was awful and awful and awful and poor"]
    probabilities = task.classifier.probabilities(texts, tokens=12)
    assert [task.classifier.labels[index] for index in probabilities.argmax(1)] == ["good", "bad", "bad"]
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))
    torch.testing.assert_close(task.classifier.probabilities(texts[1:2])[0], probabilities[1])
    with pytest.raises(ValueError, match=r"text 2 \(' '\) must not be empty"):
        task.classifier.probabilities(["a", " "])


def test_an_interrupted_run_ends_bit_identical(make: Callable[..., Classify], tmp_path: Path) -> None:
    config = Training(steps=14, warmup=0.2, log_every=2, evaluate_every=7, save_every=3, save_seconds=0.0)
    fit(make(layer_decay=0.8), config, tmp_path / "whole", display=Silent())
    with pytest.raises(Interrupted):
        fit(Broken(make(layer_decay=0.8), 5), config, tmp_path / "broken", display=Silent())
    fit(make(layer_decay=0.8), config, tmp_path / "broken", display=Silent())
    assert same_runs(tmp_path / "whole", tmp_path / "broken")


def test_lower_layers_learn_more_slowly(make: Callable[..., Classify], tmp_path: Path) -> None:
    moved = {}
    for decay in (1.0, 0.1):
        task = make(layer_decay=decay)
        before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
        fit(
            task,
            Training(steps=1, warmup=0, schedule="constant", weight_decay=0.0),
            tmp_path / str(decay),
            display=Silent(),
        )
        moved[decay] = {
            name: float((p.detach() - before[name]).abs().max()) for name, p in task.model.named_parameters()
        }
    for name, share in (
        ("classes.weight", 1),
        ("bert.blocks.1.attention.out.weight", 0.1),
        ("bert.tokens.weight", 1e-3),
    ):
        assert moved[0.1][name] == pytest.approx(share * moved[1.0][name], rel=0.05), name
    with pytest.raises(ValueError, match=r"layer decay \(0\) must lie in \(0, 1\]"):
        layer_rates(task.model, 0)


def test_messages_describe_the_prepared_data(tmp_path: Path) -> None:
    messages: list[str] = []
    config = Texts(write_labelled(tmp_path / "a.tsv", 60), write_labelled(tmp_path / "b.tsv", 20, seed=1), longest=6)
    data = prepare(config, tmp_path / "run", lambda texts: WordPiece.train(texts, 80), seed=0, say=messages.append)
    assert data.labels == ["bad", "good"] and len(data.train) == 60 and len(data.valid) == 20
    assert messages[0] == "a.tsv: 60 texts kept; left out: none" and messages[2].startswith("train: 60 texts, ")
    assert re.match(r"train: 60 texts, bad: \d+, good: \d+; \d+ truncated$", messages[2]), messages[2]
    assert int(data.train.lengths.max()) == 6


def test_a_label_unseen_in_training_is_named_with_its_line(tmp_path: Path) -> None:
    valid = tmp_path / "b.tsv"
    valid.write_text("x\tgood\ny\tmixed\n")
    config = Texts(write_labelled(tmp_path / "a.tsv", 20), valid)
    with pytest.raises(ValueError, match=r"label \(mixed\) in line 2 of .*b.tsv must be one of training: bad, good"):
        prepare(config, tmp_path / "run", lambda texts: WordPiece.train(texts, 80), seed=0, say=lambda _: None)
