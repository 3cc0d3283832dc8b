"""Word links derived from attention, compared with manual links: the error of three aligners on the New Testament.

The 7,919 Greek verses and their English translation (`regard data bible`) are both training and evaluation data, as is
usual for aligners. Each model is trained in both directions. It is then forced to write the known verse, and every word
is linked to the word with the largest weight: at the step that writes it (output) or at the step that reads it (input).
For a Transformer, this is done for each decoder layer with the mean of its heads. "Both" combines the two directions:
each English word is linked to the Greek word on which they agree most (`regard.tasks.alignment.agreement`). The
statistical aligner eflomal is compared if `eflomal-align` is installed (pip install eflomal): links from each English
word (forward), from each Greek word (reverse), and both together.

    AER = 1 − 2·|A ∩ S| / (|A| + |S|)      A: predicted links, S: manual links, all of them sure
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.commands.main import main as regard
from regard.data.bible import prepare
from regard.tasks.alignment import Link, Step, agreement, error_rate, links, parse_pharaoh
from regard.tasks.loading import load_translator
from regard.tasks.translator import Translator

COMMON = ["--no-joint", "--vocabulary", "4000", "--patience", "0", "--epochs", "1000"]
COMMON += ["--learning-rate", "2e-3", "--warmup", "400"]
BLOCKS = ["--hidden", "512", "--encoder-layers", "2", "--decoder-layers", "2", "--position", "rotary"]
MODELS = {
    "additive": ["--kind", "recurrent", "--tokens", "700", "--dropout", "0.1"],
    "transformer": [*BLOCKS, "--heads", "2", "--tokens", "1000", "--dropout", "0.2", "--tie", "target"],
}
VALIDATION = 200
"""Number of verses used for validation; they are also part of the training data."""
TOLERANCE = 0.10
"""Largest accepted difference of the error rates of attention and of the statistical aligner."""
DIRECTIONS = {"forward": ("el", "en"), "reverse": ("en", "el")}
STEPS: tuple[Step, Step] = ("output", "input")
Links = list[set[Link]]


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    verses = prepare(options.out / "verses", options.archive)
    gold = [parse_pharaoh(line) for line in _lines(verses / "links")]
    errors: dict[str, float] = {}
    for name, predicted in _eflomal(verses):
        errors[f"eflomal, {name}"] = _error(predicted, gold)
    best = min(errors.values(), default=None)
    for name in options.models:
        models = []
        for direction, (source, target) in DIRECTIONS.items():
            folder = options.out / (name if direction == "forward" else f"{name}-{direction}")
            if status := _train(name, folder, verses, source, target, options.minutes):
                return status
            models.append(load_translator(folder))
        for how, predicted in _attention(models[0], models[1], verses):
            errors[f"{name}, {how}"] = _error(predicted, gold)
    (options.out / "results.json").write_text(json.dumps(errors, indent=1) + "\n", encoding="utf-8")
    print(*(f"{name:<40}{100 * error:6.1f} %" for name, error in errors.items()), sep="\n")
    return int(best is not None and any(_lowest(errors, name) > best + TOLERANCE for name in options.models))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies alignment", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=40, help="training time for each model and direction (default: %(default)s)"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="(default: both)")
    parser.add_argument("--out", type=Path, default=Path("out/studies/alignment"), help="folder (default: %(default)s)")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="a local copy of the package with the verses")
    return parser


def _train(name: str, folder: Path, verses: Path, source: str, target: str, minutes: float) -> int:
    texts = [verses / f"verses.{source}", verses / f"verses.{target}"]
    held = []
    for text in texts:
        part = folder.parent / f"held{text.suffix}"
        part.write_text("".join(f"{line}\n" for line in _lines(text)[:VALIDATION]), encoding="utf-8")
        held.append(part)
    files = ["--train", *map(str, texts), "--valid", *map(str, held)]
    return regard(["train", "translate", str(folder), *files, *COMMON, *MODELS[name], "--minutes", str(minutes)])


def _attention(forward: Translator, reverse: Translator, verses: Path) -> Iterator[tuple[str, Links]]:
    """Yield each method of deriving links, and its links."""
    greek, english = _lines(verses / "verses.el"), _lines(verses / "verses.en")
    written = [forward.known(*pair) for pair in zip(greek, english, strict=True)]
    reversed_ = [reverse.known(*pair) for pair in zip(english, greek, strict=True)]
    layers = range(len(getattr(forward.model, "decoder", [None])))  # a recurrent decoder attends once per step
    for layer in layers:
        where = f"layer {layer + 1} of {len(layers)}, " if len(layers) > 1 else ""
        for step in STEPS:
            predicted = forward.align(written, step=step, layer=layer)
            back = reverse.align(reversed_, step=step, layer=layer)
            yield f"{where}{step}", [set(one.links) for one in predicted]
            yield f"{where}{step}, reverse", [{(b, a) for a, b in one.links} for one in back]
            pairs = zip(predicted, back, strict=True)
            yield f"{where}{step}, both", [set(links(agreement(a.weights, b.weights))) for a, b in pairs]


def _eflomal(verses: Path) -> Iterator[tuple[str, Links]]:
    program = shutil.which("eflomal-align")
    if program is None:
        print("alignment: eflomal-align is not on the PATH and is skipped. Try pip install eflomal.")
        return
    with tempfile.TemporaryDirectory() as folder:
        pairs = zip(_lines(verses / "verses.el"), _lines(verses / "verses.en"), strict=True)
        Path(folder, "joint").write_text("".join(f"{a} ||| {b}\n" for a, b in pairs), encoding="utf-8")
        command = [program, "-i", "joint", "-f", "forward", "-r", "reverse", "-m", "3"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        forward, reverse = (
            [parse_pharaoh(line) for line in _lines(Path(folder, name))] for name in ("forward", "reverse")
        )
    yield "forward", forward
    yield "reverse", reverse
    yield "both", [a | b for a, b in zip(forward, reverse, strict=True)]


def _error(predicted: Links, gold: Links) -> float:
    return error_rate((a, s, s) for a, s in zip(predicted, gold, strict=True))


def _lowest(errors: dict[str, float], name: str) -> float:
    return min(error for how, error in errors.items() if how.startswith(name))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
