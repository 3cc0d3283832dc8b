"""A vocabulary of single characters, for short strings such as dates."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..core.files import write_text
from .vocabulary import BOS, EOS, NAMES, PAD, UNK, UNKNOWN, check_ids, damaged, read_json


class Characters:
    """A vocabulary whose ids are single characters, sorted by code point. It has the interface of `Subwords`.

    Texts are normalized to NFC, so that a letter and its accent are one character.

    >>> letters = Characters.train(["3. März", "2009"])
    >>> ids = letters.encode("9 März?")
    >>> letters.pieces(ids)
    ['9', ' ', 'M', 'ä', 'r', 'z', '<unk>']
    >>> letters.decode(ids), letters.words(ids), len(letters)
    ('9 März⁇', [0, 1, 2, 3, 4, 5, 6], 14)

    >>> letters.encode_all(["2", "9"])
    [[7], [9]]
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/letters.json"
    >>> letters.save(path)
    >>> Characters.load(path).characters == letters.characters
    True
    """

    def __init__(self, characters: str) -> None:
        if len(set(characters)) != len(characters) or not characters:
            repeated = sorted({c for c in characters if characters.count(c) > 1})
            raise ValueError(
                f"characters: characters ({len(characters)}) must be one or more different characters; got "
                f"{f'{repeated} repeated' if repeated else 'none'}. Characters.train(lines) collects those of a text."
            )
        self.characters = characters
        self._ids = {character: len(NAMES) + index for index, character in enumerate(characters)}

    @classmethod
    def train(cls, lines: Iterable[str]) -> Characters:
        """Collect the characters of `lines`."""
        characters: set[str] = set()
        for line in lines:
            characters.update(unicodedata.normalize("NFC", line))
        return cls("".join(sorted(characters)))

    def __len__(self) -> int:
        return len(NAMES) + len(self.characters)

    def __repr__(self) -> str:
        return f"Characters({len(self)})"

    def encode(self, text: str) -> list[int]:
        """Return the id of each character; UNK if it is not in the vocabulary."""
        return [self._ids.get(character, UNK) for character in unicodedata.normalize("NFC", text)]

    def unknown(self, text: str) -> str:
        """Return the characters of `text` that are not in the vocabulary, each once.

        >>> Characters("abc").unknown("a cab!!")
        ' !'
        """
        return "".join(dict.fromkeys(c for c in unicodedata.normalize("NFC", text) if c not in self._ids))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. PAD, BOS and EOS are omitted; UNK becomes ⁇."""
        special = {PAD: "", BOS: "", EOS: "", UNK: UNKNOWN}
        return "".join(special[id] if id in special else self._character(id) for id in check_ids(ids, len(self)))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the character of each id, or the name of a special id."""
        return [NAMES[id] if id < len(NAMES) else self._character(id) for id in check_ids(ids, len(self))]

    def words(self, ids: Iterable[int]) -> list[int]:
        """Return the word number of each id. Each character is a word: 0, 1, 2, …; PAD, BOS and EOS are −1."""
        numbers = itertools.count()
        return [-1 if id in (PAD, BOS, EOS) else next(numbers) for id in check_ids(ids, len(self))]

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to a JSON file."""
        write_text(Path(path), json.dumps({"characters": self.characters}, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Characters:
        """Load a file written with `save`.

        Raises:
            ValueError: if the file is damaged. The message has its path.
        """
        characters = read_json(Path(path)).get("characters")
        if not isinstance(characters, str):
            raise damaged(Path(path), f"characters of type {type(characters).__name__}")
        try:
            return cls(characters)
        except ValueError as error:
            raise damaged(Path(path), str(error)) from error

    def _character(self, id: int) -> str:
        return self.characters[id - len(NAMES)]
