"""Vocabularies that were trained with `tokenizers` and stored in one JSON file, and its use of threads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from ..core.files import write_text
from .vocabulary import damaged, read_json

# tokenizers warns in every process that forks after it used threads, unless this variable is set. Threads are allowed
# within `all_cores`, but never in a forked child, which does not have the threads of its parent.
_THREADED_PROCESS = None if "TOKENIZERS_PARALLELISM" in os.environ else os.getpid()
"""Id of the process that may use threads; None if the user's environment decides."""
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class TrainedTokenizer:
    """Encoding and the file format of `Subwords` and `ByteSubwords`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True  # names of special tokens in a text are plain text
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts, using all cores."""
        with all_cores():
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to a JSON file in the format of `tokenizers`."""
        write_text(Path(path), self._tokenizer.to_str(pretty=True) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a file written with `save`.

        Raises:
            ValueError: if the file is damaged. The message has its path.
        """
        config = read_json(Path(path))
        try:
            return cls(Tokenizer.from_str(json.dumps(config)))
        except Exception as error:  # tokenizers raises plain Exception for anything it cannot read
            raise damaged(Path(path), str(error)) from error


@contextmanager
def all_cores() -> Iterator[None]:
    """Let tokenizers use all cores, in the process that imported it, unless the environment disables it."""
    before = os.environ["TOKENIZERS_PARALLELISM"]
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if os.getpid() == _THREADED_PROCESS else before
    try:
        yield
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = before
