"""`regard demo`: two translators read dates in many languages; one has attention, the other a single vector.

Both are the same encoder and decoder, trained for the same time on the same pairs. One squeezes what it read into one
vector of fixed size, the other looks back at what it read, at each step anew (Bahdanau et al. 2015), and shows where.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from .data import Batches, Characters, Corpus, Vocabulary, encode_pairs
from .data.dates import dates
from .models import Seq2Seq, Seq2SeqConfig
from .tasks.interpreter import Interpreter, Translation
from .tasks.translate import Translate, exact
from .training import Display, Outcome, Training, fit, load_best
from .view import terminal
from .view.page import Curve, Example, Page

PAIRS, VALID, TEST, SHOWN = 40_000, 300, 1_000, 5
TOKENS = 1500
LONGEST = 12
"""Characters of an ISO date, its end, and one to see a date that does not end."""
NAMES = {"additive": "additive attention", "fixed": "fixed context"}
LEAD = (
    "An encoder reads a date as people write it, in one of 28 languages and customs; a decoder writes it as "
    "year-month-day, character by character. Nothing tells it where the year stands: it learns where to look."
)

Pairs = list[tuple[str, str]]


@dataclass
class Contestant:
    """One of the two, and how it did."""

    name: str
    interpreter: Interpreter
    curve: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    """(seconds, share of validation dates without a mistake)"""
    translations: list[Translation] = field(default_factory=list)
    right: float = 0.0
    """Share of test dates without a mistake."""


class Bar(Display):
    """A line of progress for each contestant, by the clock."""

    def __init__(self, console: Console, progress: Progress, bar: TaskID) -> None:
        super().__init__(console)
        self._all, self._line, self._found = progress, bar, ""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.update(self._line, completed=1.0)

    def advance(self, step: int, done: float, seconds: float) -> None:
        self._all.update(self._line, completed=done, told=f"step {step:,}{self._found}")

    def report(self, record: Mapping[str, Any]) -> None:
        if "exact" in record:
            self._found = f" · {record['exact']:.1%} right"

    def say(self, words: str) -> None:
        """Where the run is, is said at the end."""


def run(seconds: float, out: Path, seed: int = 0) -> int:
    """Train both, compare, draw; the result is an exit status."""
    if not seconds >= 1:
        raise ValueError(f"seconds ({seconds:g}) must be at least 1, of training for each; 40 are enough.")
    console = Console(highlight=False)
    began = time.monotonic()
    work = _fresh(out)
    console.print(f"[bold]Reading dates.[/] {LEAD}\n", soft_wrap=False)
    train, valid, test = dates(PAIRS, seed), dates(VALID, seed, part="valid"), dates(TEST, seed, part="test")
    source, target = (Characters.train(pair[side] for pair in train) for side in (0, 1))
    corpora = [Corpus.write(work / n, encode_pairs(p, source, target)) for n, p in (("train", train), ("valid", valid))]
    contestants = []
    columns = (TextColumn("{task.description:<19}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with _one_thread(), Progress(*columns, console=console) as progress:
        bars = {name: progress.add_task(NAMES[name], total=1.0, told="") for name in NAMES}
        for name, bar in bars.items():
            contestant = _contestant(name, source, target, seed)
            _train(contestant, corpora, valid, seconds, work / name, seed, Bar(console, progress, bar))
            _examine(contestant, test)
            contestants.append(contestant)
    _show(console, contestants, test, out, time.monotonic() - began)
    return 0


@contextmanager
def _one_thread() -> Iterator[None]:
    """So small a model gains little by more threads, and waits for a core that others keep busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fresh(out: Path) -> Path:
    """The folder of this run's data and training; the training of an older one is removed, and nothing else."""
    work = out / "dates-run"
    work.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        shutil.rmtree(work / name, ignore_errors=True)
    return work


def _contestant(name: str, source: Vocabulary, target: Vocabulary, seed: int) -> Contestant:
    torch.manual_seed(seed)
    config = Seq2SeqConfig(len(source), len(target), width=64, hidden=128, encoder_hidden=64, context=name, tie="none")
    return Contestant(name, Interpreter(Seq2Seq(config), source, target))


def _train(
    contestant: Contestant, corpora: list[Corpus], valid: Pairs, seconds: float, folder: Path, seed: int, bar: Bar
) -> Outcome:
    task = Translate(
        contestant.interpreter,
        Batches(corpora[0], TOKENS, seed=seed),
        Batches(corpora[1], TOKENS, shuffle=False),
        valid,
        smoothing=0.0,
        longest=LONGEST,
        exact=True,
    )
    config = Training(
        minutes=seconds / 60,
        learning_rate=4e-3,
        warmup=50,
        weight_decay=0.0,
        evaluate_every=40,
        log_every=40,
        seed=seed,
    )

    began = time.monotonic()

    def note(record: Mapping[str, Any]) -> None:
        if "exact" in record:
            contestant.curve.append((time.monotonic() - began, record["exact"]))

    outcome = fit(task, config, folder, hooks=[note], display=bar)
    load_best(task.model, folder)
    return outcome


def _examine(contestant: Contestant, test: Pairs) -> None:
    found = contestant.interpreter.translate([written for written, _ in test], size=1, longest=LONGEST)
    contestant.translations = [best for best, *_ in found]
    contestant.right = exact([one.text for one in contestant.translations], [iso for _, iso in test])


def _show(console: Console, contestants: list[Contestant], test: Pairs, out: Path, seconds: float) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("", f"right, of {len(test):,} dates never seen", "loses to the other"):
        table.add_column(heading)
    for one in contestants:
        table.add_row(f"[bold]{NAMES[one.name]}[/]", f"[bold]{one.right:.1%}[/]", _loses(one, contestants, test))
    console.print()
    console.print(table)
    looking, other = contestants
    places = _chosen(test, looking, other)
    maps = looking.interpreter.look([looking.translations[place] for place in places])
    examples = []
    for place, seen in zip(places, maps, strict=True):
        written, iso = test[place]
        weights = seen.dense()[0, :-1, :-1]  # (written, read), without the ends of both
        read, wrote = (list(tokens or ())[:-1] for tokens in (seen.key_tokens, seen.query_tokens))
        verdicts = [(NAMES[c.name], c.translations[place].text) for c in contestants] + [("right", iso)]
        examples.append(Example(read, wrote, weights, [(name, text, text == iso) for name, text in verdicts]))
        console.print(f"\n[bold]{written}[/] → [bold]{looking.translations[place].text}[/]")
        console.print(terminal.draw(weights, wrote, read) if wrote else "[dim]it wrote nothing[/]")
    page = Page(
        "Reading dates",
        LEAD,
        [(f"{c.right:.1%}", f"{NAMES[c.name]}: dates never seen, written without a mistake") for c in contestants],
        [Curve(NAMES[c.name], c.curve) for c in contestants],
        "Validation dates without a mistake, by seconds of training",
        examples,
    ).write(out / "dates.html")
    picture = maps[0].save(out / "dates.png", title=f"{test[places[0]][0]} → {looking.translations[places[0]].text}")
    console.print(f"\nIn {seconds:.0f} s. The picture: {picture}   The page: {page.resolve().as_uri()}", soft_wrap=True)


def _loses(one: Contestant, contestants: list[Contestant], test: Pairs) -> str:
    """How many dates it gets wrong that the other gets right."""
    (other,) = (c for c in contestants if c is not one)
    count = sum(
        ours.text != iso == theirs.text
        for ours, theirs, (_, iso) in zip(one.translations, other.translations, test, strict=True)
    )
    return f"{count:,} date{'s' * (count != 1)}"


def _chosen(test: Pairs, looking: Contestant, other: Contestant) -> list[int]:
    """Places of the dates to show: those that attention gets right and the other wrong first, each in other letters."""

    def interest(place: int) -> tuple[bool, bool, int]:
        iso = test[place][1]
        right, missed = looking.translations[place].text == iso, other.translations[place].text != iso
        return (right and missed, any(c.isalpha() for c in test[place][0]), -abs(len(test[place][0]) - 18))

    chosen: list[int] = []
    scripts: set[frozenset[str]] = set()
    for place in sorted(range(len(test)), key=interest, reverse=True):
        script = frozenset(chr(ord(c) & ~0x3F) for c in test[place][0] if c.isalpha())  # letters by blocks of 64
        if script not in scripts:
            scripts.add(script)
            chosen.append(place)
        if len(chosen) == SHOWN:
            break
    return chosen
