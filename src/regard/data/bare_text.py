"""The vocabulary of a language model with the interface of `WordPiece`, for classifiers: no tokens around a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from .vocabulary import Vocabulary, load_vocabulary
from .wordpiece import Encoded

FILE = "vocabulary.json"
"""Name of the vocabulary in the folder of a run."""


class BareText:
    """A vocabulary for texts without special tokens. Longer texts than `longest` are truncated.

    >>> from .characters import Characters
    >>> words = BareText(Characters.train(["to be"]))
    >>> words.encode("bet", longest=2).ids, words.decode([5, 6]), words.added
    ([5, 6], 'be', 0)
    """

    pad = 0
    """Id in padding. It is never read."""
    added = 0
    """Number of special tokens around a text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str, longest: int = 512) -> Encoded:
        return self.encode_all([text], longest)[0]

    def encode_all(self, texts: Sequence[str], longest: int = 512) -> list[Encoded]:
        return [self.join(ids[:longest]) for ids in self.encode_bare(texts)]

    def encode_bare(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts without truncation."""
        return self.vocabulary.encode_all(texts)

    def join(self, ids: Sequence[int]) -> Encoded:
        return Encoded(list(ids), [0] * len(ids))

    def decode(self, ids: Iterable[int]) -> str:
        return self.vocabulary.decode(ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return self.vocabulary.pieces(ids)

    def save(self, folder: str | Path) -> None:
        self.vocabulary.save(Path(folder) / FILE)

    @classmethod
    def load(cls, folder: str | Path) -> BareText:
        return cls(load_vocabulary(Path(folder) / FILE))
