"""The studies of classifiers, on toy data."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from regard.data.labelled_text import read_labelled
from regard.data.wordpiece import WordPiece
from regard.models.bert import Bert, BertConfig
from regard.models.huggingface_bert import save_bert
from regard.training import logbook
from studies import sst2, transfer
from studies._packages import Review
from studies._trainer import finetune
from tests.tasks.sample_texts import labelled

NUMBERS = {"bad": "0", "good": "1"}


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the drawing of curves, which takes longer than a small run."""
    monkeypatch.setattr(logbook, "draw", lambda records, goal: b"")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder like SST-2 and an initial BERT."""
    folder = tmp_path / "data/sst2"
    folder.mkdir(parents=True)
    for name, count in (("train", 80), ("dev", 20)):
        lines = [f"{text}\t{NUMBERS[label]}" for text, label in labelled(count, seed=count)]
        (folder / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    words = WordPiece.train((text for text, _ in labelled(80)), 80)
    sizes = BertConfig(vocabulary=len(words), width=16, heads=2, hidden=16, layers=1, positions=64)
    save_bert(Bert(sizes), tmp_path / "model")
    words.save(tmp_path / "model")
    monkeypatch.setenv("REGARD_DATA", str(folder.parent))
    return folder


def test_sst2_checks_its_bars(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    kept = {"accuracy": 0.2, "samples_per_second": 1e-6, "seconds": 60.0, "epochs": 1.0}
    for seed in range(2):
        (out / f"seed-{seed}").mkdir(parents=True)
        for sampling in sst2.PEERS.values():  # stored results of a peer are used
            (out / f"seed-{seed}/trainer-{sampling}.json").write_text(json.dumps(kept))
    options = ["--epochs", "1", "--model", str(tmp_path / "model"), "--out", str(out), "--rate", "1e-3", "--seeds", "2"]
    status = sst2.main(options)
    results = json.loads((out / "results.json").read_text())
    ours = results["regard"]
    assert results["Trainer"] == [kept, kept] and len(ours) == 2
    assert all(one["epochs"] == 1 and one["samples_per_second"] > 0 for one in ours)
    assert status == (0 if sum(one["accuracy"] for one in ours) / 2 >= sst2.ACCURACY else 1)
    output = capsys.readouterr().out
    assert "0.2000 ± 0.0000" in output
    assert "Trainer: " in output and "Trainer, like lengths: " in output and output.count("(bar: 1.5×)") == 2


def test_the_peer_of_sst2_trains(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    train, valid = (list(read_labelled(data / f"{name}.tsv")) for name in ("train", "dev"))
    limits = {"minutes": 1000.0, "epochs": 2, "rate": 1e-3, "batch": 16, "longest": 20, "seed": 0}
    for sampling in sst2.PEERS.values():
        results = finetune(tmp_path / "model", train, valid, tmp_path, sampling=sampling, **limits)  # type: ignore[arg-type]
        assert results["epochs"] == 2 and 0 <= results["accuracy"] <= 1 and results["samples_per_second"] > 0


def test_transfer_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(0)
    all_reviews = [
        Review(f"{text} {draw.random():.3f}", NUMBERS[label], source)
        for source in transfer.LONGEST
        for text, label in labelled(120)
    ]
    monkeypatch.setattr(transfer, "reviews", lambda folder: iter(all_reviews))
    monkeypatch.setattr(transfer, "TEST", 20)
    monkeypatch.setattr(transfer, "VALID", 10)
    monkeypatch.setattr(transfer, "SETTINGS", {name: ["--steps", "2"] for name in ("pretrained", "scratch")})
    small = "--width 16 --heads 2 --hidden 16 --layers 1 --vocabulary 100 --steps 3 --hold-out 0.1"
    monkeypatch.setattr(transfer, "PRETRAIN", small.split())
    out = tmp_path / "out"
    options = ["--seeds", "2", "--labelled", "30", "--out", str(out), "--minutes", "1000"]
    for _ in range(2):  # the second run trains nothing
        assert transfer.main(options) in (0, 1)
    output = capsys.readouterr().out
    assert "pretrained, seed 1: test accuracy" in output and "(2 seeds)" in output
    results = json.loads((out / "rotten_tomatoes/results.json").read_text())
    assert {name: len(scores) for name, scores in results.items()} == {"pretrained": 2, "scratch": 2}
    assert (out / "rotten_tomatoes/transfer.png").read_bytes().startswith(b"\x89PNG")
    pretrained = set((out / "texts/text.txt").read_text().splitlines())
    assert len(pretrained) == 2 * (120 - 30)
    for path in (out / "texts").glob("*/*.jsonl"):
        texts = {example.text for example in read_labelled(path)}
        assert texts <= pretrained if "labelled" in path.name else not pretrained & texts
    monkeypatch.setattr(transfer, "TEST", 119)
    with pytest.raises(ValueError, match=r"labelled \(30\) must be at most"):
        transfer.main([*options[:-4], "--out", str(tmp_path / "other")])
