"""Byte-level subwords: a vocabulary that spells any text, including white space, without an unknown token.

Radford et al. 2019 (GPT-2), section 2.2: byte pair encoding over the 256 bytes of UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from .byte_level import byte_characters, readable, token_bytes
from .subwords import LONGEST_WORD
from .trained_tokenizer import TrainedTokenizer, all_cores
from .vocabulary import check_ids, white_space, word_numbers

END = "<|endoftext|>"
"""The only special token: the end of a text."""
BYTES = 256
_LONG = re.compile(rf"(\S{{{LONGEST_WORD}}}|[^\S\n]{{{LONGEST_WORD}}})")


class ByteSubwords(TrainedTokenizer):
    """A vocabulary of byte-level subwords: text ↔ ids. It has the interface of `Subwords`.

    `decode(encode(text)) == text` for every text: nothing is normalized, and each of the 256 bytes has an id. The name
    of the special token in a text is plain text. Words begin with their space, as in GPT-2.

    >>> subwords = ByteSubwords.train(["low lower lowest\\n", "new newer newest\\n"] * 9, 270)
    >>> ids = subwords.encode("  newest 低\\tlow")
    >>> subwords.pieces(ids)
    [' ', ' ne', 'west', ' ', '<0xE4>', '<0xBD>', '<0x8E>', '\\t', 'low']
    >>> subwords.decode(ids), subwords.words(ids)
    ('  newest 低\\tlow', [0, 0, 0, 1, 1, 1, 1, 2, 2])
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/subwords.json"
    >>> subwords.save(path)
    >>> ByteSubwords.load(path).encode_all(["low", "new"]) == [subwords.encode("low"), subwords.encode("new")]
    True
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
            got = type(tokenizer.pre_tokenizer).__name__
            raise ValueError(f"subwords: tokenizer must split text as GPT-2 does (ByteLevel); got {got}.")
        super().__init__(tokenizer)
        self.end = tokenizer.token_to_id(END)
        """Id of the end of a text."""
        tokens = (tokenizer.id_to_token(id) or "" for id in range(tokenizer.get_vocab_size()))
        self._bytes = [b"" if token == END else _bytes_of(token) for token in tokens]

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> ByteSubwords:
        """Learn at most `size` subwords, including the 256 bytes and the special token.

        The same texts give the same result.

        Raises:
            ValueError: for a size below 257.
        """
        if size <= BYTES:
            raise ValueError(f"subwords: size ({size}) must be at least {BYTES + 1}: the bytes and {END}.")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[AddedToken(END, special=True, normalized=False)],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        with all_cores():  # training time is quadratic in the length of a word, so longer words are cut
            tokenizer.train_from_iterator((_LONG.sub(r"\1\n", text) for text in texts), trainer)
        return cls(tokenizer)

    def __len__(self) -> int:
        return len(self._bytes)

    def __repr__(self) -> str:
        return f"ByteSubwords({len(self)})"

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. The end of a text is omitted; bytes that are not UTF-8 become �."""
        return b"".join(self._bytes[id] for id in check_ids(ids, len(self))).decode("utf-8", "replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the string of each id, as shown beside a map. Parts of a character are shown as bytes."""
        return [END if id == self.end else readable(self._bytes[id]) for id in check_ids(ids, len(self))]

    def words(self, ids: Iterable[int]) -> list[int]:
        """Return the word number of each id; −1 for the end of a text.

        A word begins with white space. A token that is only white space belongs to the word after it.
        """
        tokens = (None if id == self.end else self._bytes[id] for id in check_ids(ids, len(self)))
        return word_numbers(tokens, white_space)


def _bytes_of(token: str) -> bytes:
    stored = token_bytes(token)
    if stored is None:
        unknown = next(character for character in token if character not in byte_characters())
        raise ValueError(f"subwords: token {token!r} must consist of bytes as GPT-2 writes them; got {unknown!r}.")
    return stored
