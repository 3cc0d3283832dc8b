"""The interface of all vocabularies, and the four special ids they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..core.json_files import read_json_object

PAD = 0
"""Id of padding."""
UNK = 1
"""Id of an unknown character or token."""
BOS = 2
"""Id of the begin of a sentence."""
EOS = 3
"""Id of the end of a sentence."""
NAMES = ("<pad>", "<unk>", "<s>", "</s>")
"""Display names of the special ids."""
UNKNOWN = "⁇"
"""Replacement of unknown characters in decoded text."""
Token = TypeVar("Token", str, bytes)


@runtime_checkable
class Vocabulary(Protocol):
    """Conversion between text and ids: `Subwords`, `Characters`, `ByteSubwords` and `ModelTokenizer`.

    >>> import tempfile
    >>> from regard.data import Characters
    >>> letters: Vocabulary = Characters.train(["a cab"])
    >>> letters.encode("cab"), letters.encode_all(["a", "b"])
    ([7, 5, 6], [[5], [6]])
    >>> letters.decode([BOS, 7, 5, 6, EOS]), letters.pieces([7, EOS]), letters.words([BOS, 7, 5])
    ('cab', ['c', '</s>'], [-1, 0, 1])
    >>> path = tempfile.mkdtemp() + "/letters.json"
    >>> letters.save(path)
    >>> load_vocabulary(path).encode("cab")
    [7, 5, 6]
    """

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without PAD, BOS and EOS."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts; faster than one by one."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. PAD, BOS and EOS are omitted; UNK becomes ⁇."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the string of each id, as shown beside a map."""

    def words(self, ids: Iterable[int]) -> list[int]:
        """Return the word number of each id; −1 for PAD, BOS and EOS."""

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to a JSON file."""

    def __len__(self) -> int:
        """Return the number of ids."""


def load_vocabulary(path: str | Path) -> Vocabulary:
    """Load a vocabulary of any kind: `Characters`, `Subwords`, `ByteSubwords` or `ModelTokenizer`.

    The tokenizer of a model directory is given by its file `tokenizer.json` or `vocab.json`.

    Raises:
        ValueError: if the file is damaged. The message has its path.

    >>> import tempfile
    >>> from regard.data import Characters
    >>> path = Path(tempfile.mkdtemp()) / "letters.json"
    >>> Characters("abc").save(path)
    >>> load_vocabulary(path)
    Characters(7)
    """
    from .byte_subwords import ByteSubwords
    from .characters import Characters
    from .model_tokenizer import TOKENIZER, VOCABULARY, ModelTokenizer
    from .subwords import Subwords

    path = Path(path)
    if path.name in (TOKENIZER, VOCABULARY):
        return ModelTokenizer.load(path.parent)
    config = read_json(path)
    if "characters" in config:
        return Characters.load(path)
    if "tokenizer" in config:
        return ModelTokenizer.load(path)
    splitter = config.get("pre_tokenizer")
    byte_level = isinstance(splitter, dict) and splitter.get("type") == "ByteLevel"
    return ByteSubwords.load(path) if byte_level else Subwords.load(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    return read_json_object(path, "a vocabulary in JSON", "Train it again.", where="vocabulary")


def damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"vocabulary: {path} must be a vocabulary in JSON; got {what}. Train it again.")


def check_ids(ids: Iterable[int], size: int) -> list[int]:
    """Return the ids as a list of ints. Raise ValueError if one is outside the vocabulary."""
    id_list = ids.tolist() if hasattr(ids, "tolist") else [int(id) for id in ids]
    for index, id in enumerate(id_list):
        if not 0 <= id < size:
            raise ValueError(
                f"vocabulary: ids[{index}] ({id}) must lie in 0 … {size - 1}; got one out of range. They come from "
                "another vocabulary."
            )
    return id_list


def word_numbers(tokens: Iterable[Token | None], space: Callable[[Token], tuple[bool, bool]]) -> list[int]:
    """Return the word number of each token; −1 for special tokens, which are None.

    A word begins with white space. A token that is only white space belongs to the word after it.

    Args:
        tokens: text or bytes of each token.
        space: function that returns whether a token begins with white space, and whether it is nothing else.

    >>> word_numbers(["low", "er", " ", "new", None, " est"], white_space)
    [0, 0, 1, 1, -1, 2]
    """
    numbers, word, at_word_start = [], -1, True
    for token in tokens:
        if token is None:
            numbers.append(-1)
            continue
        begins, blank = space(token)
        at_word_start = at_word_start or begins
        numbers.append(word + at_word_start)
        if not blank:
            word, at_word_start = word + at_word_start, False
    return numbers


def white_space(token: str | bytes) -> tuple[bool, bool]:
    """Return whether a token begins with white space, and whether it is nothing else. See `word_numbers`."""
    return token[:1].isspace(), token.isspace()
