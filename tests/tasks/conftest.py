"""Fixtures of the task tests: a translator that learns a language of six words in seconds."""

from pathlib import Path

import pytest
import torch

from regard.data import Batches, Corpus, Subwords, encode_pairs
from regard.models import Seq2Seq, Seq2SeqConfig
from regard.tasks.translation import Translate
from regard.tasks.translator import Translator
from regard.training import logbook

WORDS = {"the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "a": "un", "bird": "oiseau"}


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the curves would take longer than a small run."""
    monkeypatch.setattr(logbook, "draw", lambda records, goal: b"")


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Return sentences of one to five words, translated word by word."""
    random = torch.Generator().manual_seed(seed)
    names = list(WORDS)
    result = []
    for _ in range(count):
        size = int(torch.randint(1, 6, (), generator=random))
        sentence = [names[i] for i in torch.randint(len(names), (size,), generator=random).tolist()]
        result.append((" ".join(sentence), " ".join(WORDS[word] for word in sentence)))
    return result


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Translate:
    """An untrained task."""
    return created(tmp_path_factory.mktemp("words"))


def created(folder: Path) -> Translate:
    """Return a task: batches, vocabularies, and a recurrent model with additive attention."""
    train, valid = pairs(400, seed=1), pairs(40, seed=2)
    source, target = (Subwords.train((pair[side] for pair in train), 40) for side in (0, 1))
    corpora = [
        Corpus.write(folder / n, encode_pairs(p, source, target)) for n, p in (("train", train), ("valid", valid))
    ]
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(len(source), len(target), width=24, hidden=24, encoder_hidden=24))
    batches = Batches(corpora[0], 200), Batches(corpora[1], 200, shuffle=False)
    return Translate(Translator(model, source, target), *batches, valid, smoothing=0.0, longest=20)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Translate:
    """An equal task after a few hundred training steps."""
    task = created(tmp_path_factory.mktemp("words"))
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-2)
    for epoch in range(30):
        for batch in task.batches(epoch, start=0, rank=0, world=1):
            loss = task.loss(batch)
            (loss.total / loss.count).backward()
            optimizer.step()
            optimizer.zero_grad()
    task.model.eval()
    return task
