"""`regard demo --language`: train a small GPT on "Romeo and Juliet", let it write, and show its attention.

The model is an ordinary run of `regard train language`, which every other command can open. It reads and writes
characters. A run that was stopped is resumed if the settings are the same.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..core.files import write_text
from ..data.romeo_and_juliet import read_play
from ..lens.head_profile import profile
from ..models.sampling import Sampling
from ..pictures import terminal
from ..tasks.language_model import LanguageModel
from ..tasks.loading import load_language_model
from ..tasks.open_language_model import open_language_model
from ..training import Training
from ..training.recipes.gpt_sizes import Sizes
from ..training.recipes.train_language_model import LlamaRecipe, Text, stored, train
from .demo_progress import ModelBar, print_commands, progress_bars

STEPS = 1000
"""Training steps: about a minute on two cores."""
EVALUATIONS = 8
"""Number of evaluations during training."""
CONTEXT, BATCH = 256, 4
SIZES = replace(Sizes.llama(), width=128, heads=4, hidden=336, layers=3)
PROMPT, TEMPERATURE, WRITTEN = "JULIET:", 0.8, 240
ROWS, COLUMNS = 12, 32
"""Numbers of the last queries and keys in the picture of the attention."""
LEAD = (
    'A GPT with 0.6 million parameters reads "Romeo and Juliet" and learns to predict the next character. It is not '
    "given words, names or verse: what it writes of them it has learned from the play."
)


def run(console: Console, steps: int, out: Path, seed: int) -> None:
    """Train the model, let it write and show its attention.

    Training is limited by steps, not by time, so the result does not depend on the speed of the machine. Only rounding
    differs between processors.
    """
    folder = out / "language-run" / "gpt"
    play = folder.parent / "romeo_and_juliet.txt"
    console.print(f"[bold]Writing like Shakespeare.[/] {LEAD}\n")
    write_text(play, read_play())
    _train(console, _recipe(play, steps, seed), folder)
    text = _write(console, folder, seed)
    _show_attention(console, load_language_model(folder), text)
    print_commands(
        console,
        "Commands that open this run:",
        ["regard", "generate", str(folder), "ROMEO:", "--temperature", str(TEMPERATURE)],
        ["regard", "view", str(folder)],
        ["regard", "explain", "gpt", "--run", str(folder), "--text", "O Romeo", "--out", "gpt.html"],
    )


def _recipe(play: Path, steps: int, seed: int) -> LlamaRecipe:
    every = max(1, steps // EVALUATIONS)
    return LlamaRecipe(
        text=Text(train=(play,), context=CONTEXT, batch=BATCH),
        vocabulary="characters",
        model=SIZES,
        training=Training(
            steps=steps,
            learning_rate=5e-3,
            warmup=min(100, steps // 2),
            final_rate=0.1,
            betas=(0.9, 0.99),
            weight_decay=0.1,
            evaluate_every=every,
            log_every=every,
            seed=seed,
        ),
    )


def _train(console: Console, recipe: LlamaRecipe, folder: Path) -> None:
    with progress_bars(console) as progress:
        ModelBar(progress, "GPT", "loss", "{:.2f} nats per unseen character").train(train, stored, recipe, folder)


def _write(console: Console, folder: Path, seed: int) -> str:
    """Print a text token by token, and return it with its prompt."""
    text = PROMPT
    console.print(f"\n[bold]{PROMPT}[/]", end="")
    sampling = Sampling(temperature=TEMPERATURE, seed=seed)
    for chunk in open_language_model(folder).stream(PROMPT, sampling, max_new_tokens=WRITTEN):
        console.print(chunk.text, end="", markup=False, soft_wrap=True)
        text += chunk.text
    console.print()
    return text


def _show_attention(console: Console, language: LanguageModel, text: str) -> None:
    """Draw the weights between the last characters, in the head with the lowest entropy."""
    maps = language.maps(text)
    entropy = profile([(str(number), m) for number, m in enumerate(maps)])["entropy"]  # (layers, heads)
    layer, head = divmod(int(entropy.argmin()), entropy.shape[1])
    m = maps[layer]
    queries, keys = (list(tokens or ())[-count:] for tokens, count in ((m.query_tokens, ROWS), (m.key_tokens, COLUMNS)))
    weights = m[head, -len(queries) :, -len(keys) :]  # (ROWS, COLUMNS)
    console.print(
        f"\nThe last {len(queries)} characters (rows) attended to these (columns) in head {head + 1} of block "
        f"{layer + 1}, the head that attends to the fewest:"
    )
    console.print(terminal.draw(weights, queries, keys))
