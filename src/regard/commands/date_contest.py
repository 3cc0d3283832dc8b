"""What `regard demo` shows: two translators read dates in many languages; one has attention, the other a single vector.

Both are the same encoder and decoder, trained for the same number of steps on the same pairs. One squeezes what it read
into one vector of fixed size, the other looks back at what it read, at each step anew (Bahdanau et al. 2015), and shows
where. Each is an ordinary run of `regard train translate`, so that every other command opens it.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..core.files import write_text
from ..core.process import single_threaded_operations
from ..data.dates import dates
from ..explain.mechanisms import LONGEST as EXPLAINED
from ..models import Seq2SeqConfig
from ..pictures import terminal
from ..pictures.html_report import Curve, Example, Page
from ..tasks.loading import load_translator
from ..tasks.translation import exact
from ..tasks.translator import Translation, Translator
from ..training import Display, Training
from ..training.recipes.train_translator import Parallel, RecurrentRecipe, train

STEPS = 900
"""Of training, for each model: enough for 99 % with attention."""
EVALUATIONS = 20
"""Of each model while it is trained."""
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
    """One of the two models and its results."""

    name: str
    folder: Path
    """Of its run."""
    translator: Translator
    curve: list[tuple[float, float]]
    """(step, share of validation dates without a mistake)"""
    translations: list[Translation] = field(default_factory=list)
    right: float = 0.0
    """Share of test dates without a mistake."""


class Bar(Display):
    """A progress bar for one contestant; keeps the results of its evaluations."""

    def __init__(self, console: Console, progress: Progress, bar: TaskID) -> None:
        super().__init__(console)
        self._bars, self._task, self._result = progress, bar, ""
        self.curve = [(0.0, 0.0)]

    def __enter__(self) -> Bar:
        self._bars.start_task(self._task)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, step: int, done: float, seconds: float) -> None:
        self._bars.update(self._task, completed=done, status=f"step {step:,}{self._result}")

    def report(self, record: Mapping[str, Any]) -> None:
        if "exact" in record:
            self._result = f" · {record['exact']:.1%} right"
            self.curve.append((float(record["step"]), record["exact"]))

    def say(self, words: str) -> None:
        """Messages of the training loop are not shown: the demo prints its own summary."""


def run(steps: int, out: Path, seed: int = 0) -> int:
    """Train both models, compare them, draw; returns an exit status.

    The number of steps decides the result, not the clock: it is the same on a slow or busy machine, apart from rounding
    that differs between processors.
    """
    if steps < 1:
        raise ValueError(f"steps ({steps}) must be at least 1, of training for each model; {STEPS} are enough.")
    console = Console(highlight=False)
    began = time.monotonic()
    work = _fresh(out)
    console.print(f"[bold]Reading dates.[/] {LEAD}\n", soft_wrap=False)
    for part, count in (("train", PAIRS), ("valid", VALID)):
        _write(work / f"{part}.tsv", dates(count, seed, part=part))  # type: ignore[arg-type]
    test = dates(TEST, seed, part="test")
    contestants = []
    columns = (
        TextColumn("{task.description:<19}"),
        BarColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[status]}"),
    )
    # so small a model gains little by more threads, and waits for a core that others keep busy
    with single_threaded_operations(), Progress(*columns, console=console) as progress:
        bars = {name: progress.add_task(NAMES[name], total=1.0, start=False, status="") for name in NAMES}
        for name, bar in bars.items():
            display = Bar(console, progress, bar)
            train(_recipe(name, work, steps, seed), work / name, display)
            contestant = Contestant(name, work / name, load_translator(work / name), display.curve)
            _examine(contestant, test)
            contestants.append(contestant)
    _show(console, contestants, test, out)
    _name_commands(console, contestants[0], test)
    console.print(f"\nIn {time.monotonic() - began:.0f} s.")
    return 0


def _fresh(out: Path) -> Path:
    """The folder of this demo's data and runs; the runs of an older demo are removed, and nothing else."""
    work = out / "dates-run"
    work.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        shutil.rmtree(work / name, ignore_errors=True)
    return work


def _write(path: Path, pairs: Pairs) -> None:
    write_text(path, "".join(f"{written}\t{iso}\n" for written, iso in pairs))


def _recipe(context: str, work: Path, steps: int, seed: int) -> RecurrentRecipe:
    """The same for both models, apart from the context."""
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
    found = contestant.translator.translate([written for written, _ in test], size=1, longest=LONGEST)
    contestant.translations = [best for best, *_ in found]
    contestant.right = exact([one.text for one in contestant.translations], [iso for _, iso in test])


def _name_commands(console: Console, looking: Contestant, test: Pairs) -> None:
    """Name the commands that open the run with attention, each with a date that fits into a chart."""
    short = [written for written, _ in test if len(written) < EXPLAINED]
    date = max(short, key=lambda written: (any(map(str.isalpha, written)), len(written)))
    folder = str(looking.folder)
    console.print("\nThe run with attention opens in:")
    for command in (
        ["regard", "translate", folder, date],
        ["regard", "explain", "bahdanau", "--run", folder, "--text", date, "--out", "bahdanau.html"],
        ["regard", "view", folder, "--text", date],
    ):
        console.print(f"  {shlex.join(command)}", soft_wrap=True, markup=False)


def _show(console: Console, contestants: list[Contestant], test: Pairs, out: Path) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("", f"right, of {len(test):,} dates never seen", "loses to the other"):
        table.add_column(heading)
    for one in contestants:
        table.add_row(f"[bold]{NAMES[one.name]}[/]", f"[bold]{one.right:.1%}[/]", _loses(one, contestants, test))
    console.print()
    console.print(table)
    looking, other = contestants
    places = _chosen(test, looking, other)
    maps = looking.translator.look([looking.translations[place] for place in places])
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
        "Validation dates without a mistake, by steps of training",
        examples,
    ).write(out / "dates.html")
    picture = maps[0].save(out / "dates.png", title=f"{test[places[0]][0]} → {looking.translations[places[0]].text}")
    console.print(f"\nThe picture: {picture}   The page: {page.resolve().as_uri()}", soft_wrap=True)


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
