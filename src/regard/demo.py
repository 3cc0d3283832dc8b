"""`regard demo`: an attention model that learns, in seconds, to spell words backwards, and what it looks at.

Nothing tells the model which letter comes next. It holds one vector for every letter and place of the word (keys), asks
with one vector for every step (queries), and learns by Bahdanau's additive similarity where to look.
"""

from __future__ import annotations

import string
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from .attention import Additive, AttentionMap, attend
from .view import terminal

LETTERS = string.ascii_lowercase
LONGEST = 12


class Speller(nn.Module):
    """Letters of a word → letters to write, one step for each."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), width)
        self.place = nn.Embedding(LONGEST, width)
        self.step = nn.Embedding(LONGEST, width)
        self.length = nn.Embedding(LONGEST + 1, width)
        self.w = nn.Parameter(torch.randn(width) / width**0.5)
        self.write = nn.Linear(width, len(LETTERS))

    def forward(self, letters: Tensor, lengths: Tensor) -> tuple[Tensor, AttentionMap]:
        """letters (B, T), lengths (B,) → logits (B, T, 26) and the map (B, T, T)."""
        at = torch.arange(letters.shape[1])
        value = self.letter(letters)  # (B, T, width)
        key = value + self.place(at)
        query = self.step(at) + self.length(lengths).unsqueeze(1)  # (B, T, width)
        context, seen = attend(query, key, value, similarity=Additive(self.w), lengths=lengths, return_map=True)
        return self.write(context), seen


def batch(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random words (B, T), their lengths (B,), and the words backwards, −1 beyond their end."""
    lengths = torch.randint(1, LONGEST + 1, (count,))
    letters = torch.randint(len(LETTERS), (count, LONGEST))
    back = lengths.unsqueeze(1) - 1 - torch.arange(LONGEST)  # (B, T)
    wanted = torch.where(back >= 0, letters.gather(1, back.clamp(min=0)), -1)
    return letters, lengths, wanted


def train(model: Speller, steps: int, console: Console) -> float:
    """The share of letters written right in the last batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=steps)
    right = 0.0
    columns = (TextColumn("learning to look"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps)
        for step in range(steps):
            letters, lengths, wanted = batch(64)
            logits, _ = model(letters, lengths)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 10 == 0 or step == steps - 1:
                right = (logits.argmax(-1) == wanted)[wanted >= 0].float().mean().item()
                progress.update(task, completed=step + 1, description=f"loss {loss:.3f}, {right:.0%} right")
    return right


def spell(model: Speller, word: str) -> tuple[str, AttentionMap]:
    """What the model writes for a word, and what it looked at."""
    letters = torch.tensor([[LETTERS.index(c) for c in word]])
    with torch.no_grad():
        logits, seen = model(letters, torch.tensor([len(word)]))
    written = "".join(LETTERS[i] for i in logits[0].argmax(-1).tolist())
    return written, seen.at(0).tokens(query=list(written), key=list(word))


def check(words: list[str], steps: int) -> list[str]:
    """The words in small letters; raises ValueError for one that cannot be spelled here."""
    if steps < 1:
        raise ValueError(f"steps ({steps}) must be at least 1; 500 are enough.")
    for word in words:
        if not 1 <= len(word) <= LONGEST or any(c not in LETTERS for c in word.lower()):
            raise ValueError(f"word ({word!r}) must be 1 to {LONGEST} letters a–z; got {len(word)} characters.")
    return [word.lower() for word in words]


def run(words: list[str], steps: int, out: Path) -> int:
    """Train, show, save; the result is an exit status."""
    words = check(words, steps)
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    torch.manual_seed(0)
    model = Speller()
    right = train(model, steps, console)
    console.print(f"After {steps} steps the model spells random words backwards, {right:.1%} of letters right.")
    saved = []
    for word in words:
        written, seen = spell(model, word)
        console.print(f"\n[bold]{word}[/] → [bold]{written}[/]   rows: what it writes; columns: where it looks\n")
        console.print(terminal.draw(seen.dense(), seen.query_tokens, seen.key_tokens))
        saved.append(seen.save(out / f"{word}.png", title=f"{word} → {written}"))
    console.print(f"\nPictures: {', '.join(map(str, saved))}")
    return 0
