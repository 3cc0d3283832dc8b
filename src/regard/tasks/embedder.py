"""Sentence embeddings: texts to unit vectors, in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import AttentionMap
from ..core.json_files import read_json
from ..core.process import run_in_threads
from ..data import WordPiece
from ..data.text_arguments import check_text, listed_texts
from ..data.text_batches import packed_batches
from ..models import SentenceEmbedder, load_bert, save_bert
from ..models.bert import Bert
from ..models.fast_inference import FastEncoder
from .block_maps import block_maps
from .loading import BERT_CONFIG, best, is_run
from .model_summary import summary
from .run_files import read_config

TOKENS = 2048
"""Tokens per batch: enough for fast products, and few enough for the cache."""
FEWEST_TOKENS = 512
"""Minimum tokens per batch when batches are made smaller so that every thread gets some."""
BATCHES = 4
"""Batches per thread, if there are enough tokens: the threads then finish at nearly the same time."""
PACKED_FROM = 4096
"""Number of tokens from which packing the weights pays off."""


@dataclass(frozen=True)
class Embedder:
    """An embedding model and its vocabulary.

    Texts are embedded in batches of similar length. Results are in the order of the inputs.

    >>> from regard.models import Bert, BertConfig
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2)).eval()
    >>> vectors = Embedder(SentenceEmbedder(bert), words).embed(["a low", "newest", "a low"])
    >>> tuple(vectors.shape), torch.allclose(vectors[0], vectors[2])
    ((3, 12), True)
    >>> embedder = Embedder(SentenceEmbedder(bert), words)
    >>> embedder
    Embedder(SentenceEmbedder, 9,336 parameters, vocabulary=35, longest=512)
    >>> tuple(embedder("a low").shape), [m.shape for m in embedder.maps("a low")]         # [CLS] a low [SEP]
    ((12,), [(3, 4, 4), (3, 4, 4)])
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "exported"
    >>> Embedder.load(embedder.export(folder)).longest
    512
    """

    model: SentenceEmbedder
    vocabulary: WordPiece
    longest: int = 512
    """Maximum number of tokens of a text. Longer texts are truncated."""

    def __repr__(self) -> str:
        return summary(self, self.model, vocabulary=len(self.vocabulary), longest=self.longest)

    @classmethod
    def load(cls, folder: str | Path) -> Embedder:
        """Load a model directory of Hugging Face or sentence-transformers, or a run that trained a BERT.

        The embeddings of a run are the mean of its tokens.

        Raises:
            ValueError: if the folder has no BERT, or its model does not use mean pooling.
        """
        folder = Path(folder)
        if (folder / "config.json").exists() and is_run(folder):
            if not (folder / BERT_CONFIG).exists():
                recipe = read_config(folder).get("recipe")
                raise ValueError(
                    f"embed: {folder} must hold a BERT; got a run of {recipe}, which cannot embed sentences. Give a "
                    "run of pretrain or classify, or a Hugging Face directory of a BERT."
                )
            bert = best(folder).bert
            assert isinstance(bert, Bert)
            return cls(SentenceEmbedder(bert), WordPiece.load(folder), bert.config.positions)
        model = load_bert(folder, SentenceEmbedder)
        _check_modules(folder)
        settings = _read(folder / "sentence_bert_config.json")
        longest = settings.get("max_seq_length") if isinstance(settings, dict) else None
        positions = model.bert.config.positions
        words = WordPiece.load(folder)
        if len(words) > model.bert.config.vocabulary:
            raise ValueError(
                f"embed: vocabulary of {folder} ({len(words):,} tokens) must fit the embeddings of its model "
                f"({model.bert.config.vocabulary:,})."
            )
        return cls(model, words, min(longest, positions) if isinstance(longest, int) else positions)

    def __call__(self, texts: str | Sequence[str]) -> Tensor:
        """Embed texts: N texts → (N, W), rows of unit length; a single string → (W,). See `embed`."""
        return self.embed(texts)

    @torch.no_grad()
    def maps(self, text: str) -> list[AttentionMap]:
        """Return the attention map of each block for a text: (H, T, T), with its tokens along both axes."""
        ids = self.vocabulary.encode(check_text("embed", "text", text), longest=self.longest).ids
        _, maps = self.model.bert(torch.tensor([ids], device=self.model.bert.tokens.weight.device), return_maps=True)
        tokens = self.vocabulary.pieces(ids)
        return block_maps(maps, tokens, tokens)

    def export(self, folder: str | Path) -> Path:
        """Write a directory that `transformers` loads as a BertModel. Return the folder."""
        save_bert(self.model, folder)
        self.vocabulary.save(folder)
        return Path(folder)

    def embed(
        self, texts: str | Sequence[str], *, tokens: int = TOKENS, done: Callable[[int], object] = lambda count: None
    ) -> Tensor:
        """Embed texts: N texts → (N, W), rows of unit length; a single string → (W,).

        Args:
            texts: texts of at least one word each.
            tokens: maximum number of tokens in a batch. A longer text forms a batch of its own.
            done: called after each batch with the number of texts in it, from any thread.

        Raises:
            ValueError: if a text is empty; the message gives its index.
        """
        if isinstance(texts, str):
            return self.embed([texts], tokens=tokens, done=done)[0]
        if tokens < 1:
            raise ValueError(f"embed: tokens ({tokens}) must be at least 1; a few thousand are typical.")
        texts = listed_texts("embed", texts)
        for index, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"embed: texts[{index}] ({text!r}) must not be empty. Leave it out.")
        ids = [encoding.ids for encoding in self.vocabulary.encode_all(texts, longest=self.longest)]
        weight = self.model.bert.tokens.weight
        embeddings = torch.empty(len(ids), weight.shape[1], dtype=weight.dtype)  # (N, W)
        total = sum(map(len, ids))
        encode = FastEncoder(self.model.bert, packed=total >= PACKED_FROM)

        def embed_batch(indices: list[int]) -> None:
            flat = torch.tensor([id for index in indices for id in ids[index]], device=weight.device)
            lengths = [len(ids[index]) for index in indices]
            embeddings[torch.tensor(indices)] = _pooled(encode(flat, lengths), lengths).to("cpu")
            done(len(indices))

        if weight.device.type != "cpu":
            for indices in packed_batches([len(sequence) for sequence in ids], tokens):
                embed_batch(indices)
            return embeddings
        share = max(FEWEST_TOKENS, total // (BATCHES * torch.get_num_threads()))
        run_in_threads(embed_batch, list(packed_batches([len(sequence) for sequence in ids], min(tokens, share))))
        return embeddings


def _pooled(hidden: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return normalized mean embeddings (B, W) of concatenated texts (N, W), as `SentenceEmbedder` computes them."""
    means = torch.segment_reduce(hidden, "mean", lengths=torch.tensor(lengths, device=hidden.device))  # (B, W)
    return F.normalize(means, dim=1)


def _check_modules(folder: Path) -> None:
    """Raise ValueError if sentence-transformers' module files request other modules or another kind of pooling.

    Ignoring them would give wrong embeddings without an error.
    """
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
