"""What recipes of BERTs share: sizes, and a start from a run or from a Hugging Face directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ...core.digests import text_digest
from ...core.files import write
from ...core.settings import to_json
from ...data.wordpiece import WordPiece
from ...models.bert import Bert, BertConfig
from ...models.bert_heads import SequenceClassifier
from ...models.huggingface_bert import load_bert
from ...tasks.loading import CONFIG, best, is_run
from ..checkpoint import states
from ..distributed import is_first_process


@dataclass(frozen=True)
class Sizes:
    """The sizes of a BERT that starts anew."""

    vocabulary: int = 8000
    """Pieces of the vocabulary, at most; they are found in the text."""
    width: int = 256
    """Of embeddings and of every block."""
    heads: int = 4
    """Of every attention; the width is divisible by them."""
    hidden: int = 1024
    """Of the feed-forward layers, inside."""
    layers: int = 4
    """Blocks."""
    positions: int = 512
    """Pieces of the longest text that it can ever read."""
    dropout: float = 0.1
    """Share of embeddings and of each part's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels have none."""
    pool: Literal["first", "mean"] = "first"
    """What a text is classified by, and next sentences are told by: its first token, [CLS], or the mean of all."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        return BertConfig(**asdict(self)).errors("model")

    def config(self, words: WordPiece) -> BertConfig:
        """Those of a BERT that reads these pieces."""
        return BertConfig(**{**asdict(self), "vocabulary": len(words), "pad": words.pad})


def begun(folder: Path) -> bool:
    """Whether a run has a state to go on from: then its first weights are not asked for."""
    return bool(states(folder))


def keep_config(folder: Path, config: BertConfig) -> dict[str, str]:
    """Write the configuration beside the weights to be (of several processes the first does); returns its digest."""
    text = to_json(config)
    if is_first_process():
        write(folder / CONFIG, text.encode())
    return {CONFIG: text_digest(text)}


def start(folder: Path, labels: list[str], **changes: Any) -> SequenceClassifier:
    """A classifier on the BERT of a run or of a Hugging Face directory; layers that it lacks start anew.

    changes: settings of its `BertConfig` that are to be others.
    """
    if not is_run(folder):
        return load_bert(folder, SequenceClassifier, fresh=True, classes=labels, **changes).train()
    source = best(folder)
    found = source.bert
    assert isinstance(found, Bert)
    made = SequenceClassifier(Bert(replace(found.config, **changes)), labels)
    weights = found.state_dict()
    with torch.no_grad():
        for name, value in made.bert.state_dict().items():
            if name in weights:  # all but the pooler, which masked pieces have no use for
                value.copy_(weights[name])
    return made
