"""A language model of Tang poems: ten minutes of training, bits per character, and the form of the poems it writes.

Set REGARD_DATA to the folder that contains tang-poems/poems.txt.gz: poems with a title, lines, and an empty line. Every
twentieth poem is held out. A GPT of characters in the form of Llama is trained on the others by the recipe of `regard
train language`, for ten minutes, so that the result depends on the speed of the machine. The run is kept in OUT/poems.

The model then writes a poem below each of 200 held-out titles, sampled from its distribution without restrictions. Most
Tang poems have 5 or 7 characters before each punctuation mark. Nothing in the model counts characters; the figure is
the share of its verses that have one of these lengths. A verse without a mark is wrong. A verse that the end of the
context cuts off does not count. The share in the real poems with these titles is reported as well: hymns, for example,
have 4.
"""

from __future__ import annotations

import gzip
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from bench.harness import Figure, Options
from bench.peers import data
from regard.core.files import write_text
from regard.tasks.open_language_model import open_language_model
from regard.training import Silent, Training
from regard.training.recipes.gpt_sizes import Sizes
from regard.training.recipes.train_language_model import LlamaRecipe, Text, train

EVERY = 20
"""One of this many poems is held out."""
MINUTES, WRITTEN, TOGETHER = 10.0, 200, 50
CONTEXT, LONGEST = 128, 120
"""Characters that the model reads at once, and at most writes below a title."""
MARKS = "，。？！；：、"
LENGTHS = (5, 7)
BAR = ">= 0.9"


def figures(options: Options) -> Iterator[Figure]:
    learned, held_out = split(read_poems(data("tang-poems") / "poems.txt.gz"))
    chosen = at_equal_distances(held_out, 2 if options.quick else WRITTEN)
    shape = f"{len(learned):,} poems, {'2 steps' if options.quick else f'{MINUTES:g} min'}"

    def loss() -> float:
        return trained(options)[1]

    def share() -> float:
        titles = [poem.partition("\n")[0] for poem in chosen]
        return share_of(verse for poem in write(trained(options)[0], titles) for verse in verses_of(poem))

    yield Figure("held-out poems", shape, loss, "bits/character", dtype="bfloat16")
    yield Figure("verses of 5 or 7 characters", shape, share, "share", None if options.quick else BAR, "bfloat16")
    real = share_of(verse for poem in chosen for verse in verses_of(poem.partition("\n")[2]))
    yield Figure("verses of the real poems", f"{len(chosen)} poems", lambda: real, "share")


def read_poems(path: Path) -> list[str]:
    """Return the poems, each with its title in the first line."""
    return gzip.decompress(path.read_bytes()).decode("utf-8").strip("\n").split("\n\n")


def split(poems: list[str]) -> tuple[list[str], list[str]]:
    """Return the poems to learn and the held-out poems.

    >>> [len(part) for part in split(["春曉"] * 41)]
    [38, 3]
    """
    return [poem for number, poem in enumerate(poems) if number % EVERY], poems[::EVERY]


def at_equal_distances(poems: Sequence[str], count: int) -> list[str]:
    """Return at most `count` poems from all parts of the collection, which is sorted by author and kind.

    >>> at_equal_distances("abcdefg", 3), at_equal_distances("ab", 3)
    (['a', 'c', 'e'], ['a', 'b'])
    """
    count = min(count, len(poems))
    return [poems[number * len(poems) // count] for number in range(count)]


def recipe(folder: Path, *, quick: bool) -> LlamaRecipe:
    """Return the settings of `regard train language --kind llama`."""
    return LlamaRecipe(
        text=Text(train=(folder / "train.txt",), valid=(folder / "valid.txt",), context=CONTEXT, batch=8),
        vocabulary="characters",
        model=replace(Sizes.llama(), width=192, heads=6, hidden=512, layers=4),
        training=Training(
            steps=2 if quick else None,
            minutes=None if quick else MINUTES,
            learning_rate=3e-3,
            warmup=0.02,
            final_rate=0.05,
            betas=(0.9, 0.99),
            weight_decay=0.1,
            evaluate_every=1000,
            precision="bfloat16",
        ),
    )


@cache
def trained(options: Options) -> tuple[Path, float]:
    """Train the model. Return the folder of its run, and the bits per character of the held-out poems."""
    folder = options.out / "poems"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "text").mkdir(parents=True)
    for name, poems in zip(("train", "valid"), split(read_poems(data("tang-poems") / "poems.txt.gz")), strict=True):
        write_text(folder / "text" / f"{name}.txt", "".join(f"{poem}\n\n" for poem in poems))
    outcome = train(recipe(folder / "text", quick=options.quick), folder / "run", Silent())
    assert outcome.best is not None
    return folder / "run", outcome.best / math.log(2)  # a token is a character


def write(folder: Path, titles: Sequence[str]) -> list[str]:
    """Return a poem below each title, without the title. A poem that is not finished ends in "…"."""
    generator = open_language_model(folder)
    poems = []
    for start in range(0, len(titles), TOGETHER):
        prompts = [f"{title}\n" for title in titles[start : start + TOGETHER]]
        for one in generator.generate(prompts, max_new_tokens=LONGEST, stop=["\n\n"]):
            poems.append(one.text if one.reason == "stop" else f"{one.text}…")
    return poems


def verses_of(poem: str) -> list[str]:
    """Return the verses of a poem without its title, each with its mark if it has one.

    >>> verses_of("春眠不覺曉，處處聞啼鳥。\\n夜來風雨聲\\n花落知…")
    ['春眠不覺曉，', '處處聞啼鳥。', '夜來風雨聲']
    """
    complete = re.sub(rf"[^{MARKS}\n]*…$", "", poem)
    return re.findall(rf"[^{MARKS}\n]+[{MARKS}]?", complete)


def share_of(verses: Iterable[str]) -> float:
    """Return the share of verses that have 5 or 7 characters and a mark.

    >>> share_of(["春眠不覺曉，", "處處聞啼鳥", "夜來風聲。"])
    0.3333333333333333
    """
    regular = [verse[-1] in MARKS and len(verse) - 1 in LENGTHS for verse in verses]
    return sum(regular) / max(1, len(regular))
