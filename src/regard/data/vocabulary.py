"""What every vocabulary offers, and the four ids that mean the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..core.json_files import read_json_object

PAD, UNK, BOS, EOS = 0, 1, 2, 3
NAMES = ("<pad>", "<unk>", "<s>", "</s>")
"""How the four are shown."""
UNKNOWN = "⁇"
"""What stands in decoded text where a character was not known."""


@runtime_checkable
class Vocabulary(Protocol):
    """Text ↔ ids: `Subwords` and `Characters`."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without PAD, BOS and EOS."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, faster than one by one."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; PAD, BOS and EOS leave no trace, UNK is ⁇."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, as shown beside a map."""

    def words(self, ids: Iterable[int]) -> list[int]:
        """The number of the word that each id belongs to, −1 for PAD, BOS and EOS."""

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file."""

    def __len__(self) -> int: ...


def load_vocabulary(path: str | Path) -> Vocabulary:
    """The vocabulary in a file, of whichever kind.

    Raises:
        ValueError: for a damaged file, by its name.
    """
    from .characters import Characters
    from .subwords import Subwords

    return Characters.load(path) if "characters" in read_json(Path(path)) else Subwords.load(path)


def read_json(path: Path) -> dict:
    """The object in a JSON file."""
    return read_json_object(path, "a vocabulary in JSON", "Train it again.", where="vocabulary")


def damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"vocabulary: {path} must be a vocabulary in JSON; got {what}. Train it again.")


def check_ids(ids: Iterable[int], size: int) -> list[int]:
    """The ids as a list of ints, each within the vocabulary."""
    listed = ids.tolist() if hasattr(ids, "tolist") else [int(id) for id in ids]
    for place, id in enumerate(listed):
        if not 0 <= id < size:
            raise ValueError(
                f"vocabulary: ids[{place}] ({id}) must lie in 0 … {size - 1}; got one beyond. These ids come from "
                "another vocabulary."
            )
    return listed
