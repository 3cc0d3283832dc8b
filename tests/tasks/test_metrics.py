"""Metrics of classifiers against values counted by hand."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from regard.pictures.training_charts import save_confusion
from regard.tasks.metrics import accuracy, confusion, f1, f1_of

CLASSES = 5


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    wanted = torch.randint(CLASSES - 1, (101,), generator=random)  # the last class never occurs among the labels
    return torch.where(
        torch.rand(101, generator=random) < 0.6, wanted, torch.randint(4, (101,), generator=random)
    ), wanted


def test_confusion_matrix_and_metrics_match_hand_counts() -> None:
    predicted, wanted = drawn()
    matrix = confusion(predicted, wanted, CLASSES)
    pairs = list(zip(wanted.tolist(), predicted.tolist(), strict=True))
    assert matrix.tolist() == [[pairs.count((i, j)) for j in range(CLASSES)] for i in range(CLASSES)]
    assert accuracy(predicted, wanted) == pytest.approx(sum(i == j for i, j in pairs) / 101)
    each = []
    for c in range(CLASSES):
        hits, predictions, labels = pairs.count((c, c)), predicted.tolist().count(c), wanted.tolist().count(c)
        precision, recall = hits / max(1, predictions), hits / max(1, labels)
        each.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    scores = f1(predicted, wanted, CLASSES)
    assert scores.each.tolist() == pytest.approx(each)
    assert scores.macro == pytest.approx(sum(each[:4]) / 4)  # a class that does not occur is excluded


def test_a_class_that_is_only_predicted_counts() -> None:
    assert f1_of(torch.tensor([[2, 1], [0, 0]])).macro == pytest.approx(0.4)
    assert f1(torch.tensor([0]), torch.tensor([0]), 1).macro == 1.0


@pytest.mark.parametrize("classes", [1, 3, 30])
def test_the_confusion_matrix_is_saved_as_picture_and_json(tmp_path: Path, classes: int) -> None:
    matrix = torch.eye(classes, dtype=torch.long) * 7
    matrix[0, -1] += 7
    names = [f"$class_{number}$ with a name that never ends" for number in range(classes)]
    save_confusion(matrix, names, f1_of(matrix).each.tolist(), tmp_path / "deep/confusion.png")
    assert min(Image.open(tmp_path / "deep/confusion.png").size) > 100
    saved = json.loads((tmp_path / "deep/confusion.json").read_text())
    assert saved["names"] == names and saved["matrix"] == matrix.tolist() and saved["f1"].keys() == set(names)
    assert saved["accuracy"] == pytest.approx(float(matrix.diagonal().sum() / matrix.sum()))


@pytest.mark.parametrize("names", [["正面", "负面"], ["良い", "悪い"], ["좋다", "나쁘다"], ["ดี", "แย่"]])
def test_names_in_any_script_have_glyphs(tmp_path: Path, names: list[str], recwarn: pytest.WarningsRecorder) -> None:
    """matplotlib warns about every missing glyph. So does regard, with a remedy, if no font has the glyph."""
    save_confusion(torch.eye(2, dtype=torch.long), names, [1.0, 1.0], tmp_path / "confusion.png")
    assert not [str(one.message) for one in recwarn if "Glyph" in str(one.message)]


def test_bad_input_is_named(tmp_path: Path) -> None:
    few = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"predicted \(2, 3\) and wanted \(2,\) must both be class indices \(N,\)"):
        accuracy(torch.zeros(2, 3), few)
    with pytest.raises(ValueError, match="at least one prediction; got none"):
        f1(few[:0], few[:0], 2)
    with pytest.raises(ValueError, match=r"wanted \(0 … 2\) must be in the range of classes, 0 … 1"):
        confusion(few, torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match=r"predicted \(-1 … 1\) must be in the range of classes, 0 … 1"):
        confusion(torch.tensor([-1, 1]), few, 2)
    with pytest.raises(ValueError, match=r"matrix \(2, 2\) must be square, a row for each of 3 names"):
        save_confusion(torch.eye(2), ["a", "b", "c"], [1.0] * 3, tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"x.gif\) must end in .png"):
        save_confusion(torch.eye(2), ["a", "b"], [1.0] * 2, tmp_path / "x.gif")
