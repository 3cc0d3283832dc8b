"""The comparison of `regard demo`: two translators of dates, one with attention and one with a fixed context vector.

Both have the same encoder and decoder and are trained for the same number of steps on the same pairs. One compresses
its input into a single vector. The other attends to the input at every step (Bahdanau et al. 2015), and its attention
is shown. Each is an ordinary run of `regard train translate`, which every other command can open. A run that was
stopped is resumed if its data and settings are the same.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..core.files import write_text
from ..core.process import single_threaded_operations
from ..data.dates import dates
from ..explain.recorded_models import LONGEST as EXPLAINED
from ..models import Seq2SeqConfig
from ..pictures import terminal
from ..pictures.html_report import Curve, Example, Page
from ..tasks.loading import load_translator
from ..tasks.translation import exact
from ..tasks.translator import Translation, Translator
from ..training import Training
from ..training.recipes.train_translator import Parallel, RecurrentRecipe, stored, train
from .demo_progress import ModelBar, evaluations, print_commands, progress_bars

STEPS = 900
"""Training steps of each model: enough for 99 % with attention."""
EVALUATIONS = 20
"""Number of evaluations of each model during training."""
PAIRS, VALID, TEST, SHOWN = 40_000, 300, 1_000, 5
TOKENS = 1500
LONGEST = 12
"""Length of an ISO date and its end token, plus one to detect an output that does not end."""
NAMES = {"additive": "additive attention", "fixed": "fixed context"}
LEAD = (
    "An encoder reads a date as people write it, in one of 28 languages and formats. A decoder writes it as "
    "year-month-day, character by character. It is not told where the year is: it learns where to attend."
)

Pairs = list[tuple[str, str]]


@dataclass
class Contestant:
    """One of the two models and its results."""

    name: str
    folder: Path
    """Folder of its run."""
    translator: Translator
    curve: list[tuple[float, float]]
    """(step, fraction of correct validation dates)"""
    translations: list[Translation] = field(default_factory=list)
    right: float = 0.0
    """Fraction of correct test dates."""


def run(console: Console, steps: int, out: Path, seed: int) -> None:
    """Train both models, compare them and draw the results.

    Training is limited by steps, not by time, so the result does not depend on the speed of the machine. Only rounding
    differs between processors.
    """
    work = out / "dates-run"
    console.print(f"[bold]Reading dates.[/] {LEAD}\n", soft_wrap=False)
    _write_data(work, seed)
    test = dates(TEST, seed, part="test")
    contestants = []
    # a model this small gains little from more threads, and would wait for busy cores
    with single_threaded_operations(), progress_bars(console) as progress:
        bars = {name: ModelBar(progress, NAMES[name], "exact", "{:.1%} correct") for name in NAMES}
        for name, bar in bars.items():
            bar.train(train, stored, _recipe(name, work, steps, seed), work / name)
            curve = [(float(record["step"]), float(record["exact"])) for record in evaluations(work / name)]
            contestant = Contestant(name, work / name, load_translator(work / name), [(0.0, 0.0), *curve])
            _examine(contestant, test)
            contestants.append(contestant)
    _show(console, contestants, test, out)
    _name_commands(console, contestants[0], test)


def _write_data(work: Path, seed: int) -> None:
    """Write the training and validation pairs. If they differ from those of an earlier demo, remove its runs."""
    texts = {
        work / "train.tsv": _lines(dates(PAIRS, seed, part="train")),
        work / "valid.tsv": _lines(dates(VALID, seed, part="valid")),
    }
    if all(path.is_file() and path.read_bytes() == text.encode("utf-8") for path, text in texts.items()):
        return
    for name in NAMES:
        shutil.rmtree(work / name, ignore_errors=True)
    for path, text in texts.items():
        write_text(path, text)


def _lines(pairs: Pairs) -> str:
    return "".join(f"{written}\t{iso}\n" for written, iso in pairs)


def _recipe(context: str, work: Path, steps: int, seed: int) -> RecurrentRecipe:
    """Return the recipe, which is the same for both models except for the context."""
    every = max(1, steps // EVALUATIONS)
    return RecurrentRecipe(
        data=Parallel(
            train=(work / "train.tsv",),
            valid=(work / "valid.tsv",),
            subwords="characters",
            joint=False,
            tokens=TOKENS,
        ),
        model=Seq2SeqConfig(width=64, hidden=128, encoder_hidden=64, context=context, tie="none"),
        smoothing=0.0,
        training=Training(
            steps=steps,
            learning_rate=4e-3,
            warmup=min(50, steps // 2),
            weight_decay=0.0,
            evaluate_every=every,
            log_every=every,
            seed=seed,
        ),
    )


def _examine(contestant: Contestant, test: Pairs) -> None:
    translations = contestant.translator.translate([written for written, _ in test], size=1, longest=LONGEST)
    contestant.translations = [best for best, *_ in translations]
    contestant.right = exact([one.text for one in contestant.translations], [iso for _, iso in test])


def _name_commands(console: Console, attentive: Contestant, test: Pairs) -> None:
    """Print commands that open the run with attention, each with a date that fits into a chart."""
    short = [written for written, _ in test if len(written) < EXPLAINED]
    date = max(short, key=lambda written: (any(map(str.isalpha, written)), len(written)))
    folder = str(attentive.folder)
    print_commands(
        console,
        "Commands that open the run with attention:",
        ["regard", "translate", folder, date],
        ["regard", "explain", "bahdanau", "--run", folder, "--text", date, "--out", "bahdanau.html"],
        ["regard", "view", folder, "--text", date],
    )


def _show(console: Console, contestants: list[Contestant], test: Pairs, out: Path) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("", f"correct, of {len(test):,} unseen dates", "only the other is correct"):
        table.add_column(heading)
    for one in contestants:
        table.add_row(f"[bold]{NAMES[one.name]}[/]", f"[bold]{one.right:.1%}[/]", _misses(one, contestants, test))
    console.print()
    console.print(table)
    attentive, other = contestants
    indices = _chosen(test, attentive, other)
    maps = attentive.translator.look([attentive.translations[index] for index in indices])
    examples = []
    for index, attention in zip(indices, maps, strict=True):
        written, iso = test[index]
        weights = attention.dense()[0, :-1, :-1]  # (written, read), without the end tokens
        read, wrote = (list(tokens or ())[:-1] for tokens in (attention.key_tokens, attention.query_tokens))
        verdicts = [(NAMES[c.name], c.translations[index].text) for c in contestants] + [("correct", iso)]
        examples.append(Example(read, wrote, weights, [(name, text, text == iso) for name, text in verdicts]))
        console.print(f"\n[bold]{written}[/] → [bold]{attentive.translations[index].text}[/]")
        console.print(terminal.draw(weights, wrote, read) if wrote else "[dim]no output[/]")
    page = Page(
        "Reading dates",
        LEAD,
        [(f"{c.right:.1%}", f"{NAMES[c.name]}: unseen dates translated correctly") for c in contestants],
        [Curve(NAMES[c.name], c.curve) for c in contestants],
        "Correct validation dates by training step",
        examples,
    ).write(out / "dates.html")
    picture = maps[0].save(
        out / "dates.png", title=f"{test[indices[0]][0]} → {attentive.translations[indices[0]].text}"
    )
    console.print(f"\nPicture: {picture}   Page: {page.resolve().as_uri()}", soft_wrap=True)


def _misses(one: Contestant, contestants: list[Contestant], test: Pairs) -> str:
    """Return the number of dates that only the other model translates correctly."""
    (other,) = (c for c in contestants if c is not one)
    count = sum(
        ours.text != iso == theirs.text
        for ours, theirs, (_, iso) in zip(one.translations, other.translations, test, strict=True)
    )
    return f"{count:,} date{'s' * (count != 1)}"


def _chosen(test: Pairs, attentive: Contestant, other: Contestant) -> list[int]:
    """Return the indices of the dates to show, each in another script.

    Dates that only the model with attention translates correctly come first.
    """

    def interest(index: int) -> tuple[bool, bool, int]:
        iso = test[index][1]
        correct, missed = attentive.translations[index].text == iso, other.translations[index].text != iso
        return (correct and missed, any(c.isalpha() for c in test[index][0]), -abs(len(test[index][0]) - 18))

    chosen: list[int] = []
    scripts: set[frozenset[str]] = set()
    for index in sorted(range(len(test)), key=interest, reverse=True):
        script = frozenset(chr(ord(c) & ~0x3F) for c in test[index][0] if c.isalpha())  # Unicode blocks of 64
        if script not in scripts:
            scripts.add(script)
            chosen.append(index)
        if len(chosen) == SHOWN:
            break
    return chosen
