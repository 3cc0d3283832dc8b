"""Sentence embeddings: from texts to vectors of length one, in batches of like length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.json_files import read_json
from ..data import WordPiece
from ..data.text_batches import packed_batches
from ..models import SentenceEmbedder, load_bert
from ..models.fast_inference import FastEncoder

TOKENS = 2048
"""Of a batch: enough to keep every core busy, few enough for the caches."""


@dataclass(frozen=True)
class Embedder:
    """A model that embeds, and what its ids mean.

    Texts are embedded in batches of like length, and come back in the order they were given.

    >>> from regard.models import Bert, BertConfig
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2)).eval()
    >>> found = Embedder(SentenceEmbedder(bert), words).embed(["a low", "newest", "a low"])
    >>> tuple(found.shape), torch.allclose(found[0], found[2])
    ((3, 12), True)
    """

    model: SentenceEmbedder
    vocabulary: WordPiece
    longest: int = 512
    """Ids of a text that are read; what is beyond is cut."""

    @classmethod
    def load(cls, folder: str | Path) -> Embedder:
        """From a model directory of Hugging Face or sentence-transformers, or one that `save_bert` wrote.

        Raises:
            ValueError: for what is none, and for a model that pools in another way than by the mean.
        """
        folder = Path(folder)
        model = load_bert(folder, SentenceEmbedder)
        _check_modules(folder)
        settings = _read(folder / "sentence_bert_config.json")
        longest = settings.get("max_seq_length") if isinstance(settings, dict) else None
        positions = model.bert.config.positions
        words = WordPiece.load(folder)
        if len(words) > model.bert.config.vocabulary:
            raise ValueError(
                f"embed: vocabulary of {folder} ({len(words):,} pieces) must fit the embeddings of its model "
                f"({model.bert.config.vocabulary:,})."
            )
        return cls(model, words, min(longest, positions) if isinstance(longest, int) else positions)

    def embed(
        self, texts: str | Sequence[str], *, tokens: int = TOKENS, done: Callable[[int], object] = lambda count: None
    ) -> Tensor:
        """Texts → (N, W), each row of length one; (W,) for a single string.

        Args:
            texts: one or more words each.
            tokens: of a batch; a text that is longer is a batch of its own.
            done: told how many texts more are embedded, after each batch.

        Raises:
            ValueError: for an empty text, by its place.
        """
        if isinstance(texts, str):
            return self.embed([texts], tokens=tokens, done=done)[0]
        if tokens < 1:
            raise ValueError(f"embed: tokens ({tokens}) must be at least 1; some thousands are usual.")
        for place, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"embed: texts[{place}] ({text!r}) must hold some text. Leave it out.")
        ids = [found.ids for found in self.vocabulary.encode_all(texts, longest=self.longest)]
        weight = self.model.bert.tokens.weight
        made = torch.empty(len(ids), weight.shape[1], dtype=weight.dtype)  # (N, W)
        encode = FastEncoder(self.model.bert)
        for places in packed_batches([len(one) for one in ids], tokens):
            flat = torch.tensor([id for place in places for id in ids[place]], device=weight.device)
            lengths = [len(ids[place]) for place in places]
            made[torch.tensor(places)] = _pooled(encode(flat, lengths), lengths).to("cpu")
            done(len(places))
        return made


def _pooled(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """What `SentenceEmbedder` makes of the tokens (N, W) of texts one after the other: (B, W)."""
    means = torch.segment_reduce(hidden, "mean", lengths=torch.tensor(lengths, device=hidden.device))  # (B, W)
    return F.normalize(means, dim=1)


def _check_modules(folder: Path) -> None:
    """sentence-transformers says in files of its own how it pools; what it does otherwise would be wrong silently."""
    modules = _read(folder / "modules.json")
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ValueError(f"embed: modules of {folder} must be Transformer, Pooling and Normalize; got {kind}.")
        if kind == "Pooling":
            settings = _read(folder / str(module.get("path", "")) / "config.json") or {}
            modes = [name for name, on in settings.items() if name.startswith("pooling_mode_") and on is True]
            if modes and modes != ["pooling_mode_mean_tokens"]:
                raise ValueError(
                    f"embed: pooling of {folder} must be the mean over tokens; got "
                    f"{', '.join(mode.removeprefix('pooling_mode_') for mode in modes)}."
                )


def _read(path: Path) -> Any:
    if not path.is_file():
        return None
    return read_json(path, "JSON of a model directory", where="embed")
