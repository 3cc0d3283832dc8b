"""Text from a stream of tokens: incomplete characters and possible beginnings of a stop string are held back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..data import Vocabulary

REPLACEMENT = "\ufffd"
"""Character that decoders return for bytes that are not UTF-8, such as the first bytes of a character."""
LONGEST_TAIL = 3
"""Maximum number of bytes of an incomplete character, and of the replacement characters they decode to."""
BEFORE = 8
"""Number of tokens that are decoded again with each new one: spaces and characters may depend on earlier tokens."""


class TextStream:
    """Converts the tokens that follow a prompt to text, as soon as the text is certain.

    >>> from regard.data import Characters
    >>> letters = Characters("ab\\n")
    >>> stream = TextStream(letters, letters.encode("a"), stop=["\\n\\n"])
    >>> [stream.add(id) for id in letters.encode("ba\\nb\\n\\n")], stream.stopped
    (['b', 'a', '', '\\nb', '', ''], True)
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int] = (), stop: Iterable[str] = ()) -> None:
        self.stopped = False
        """Whether a stop string occurred. It is not part of the text."""
        self._vocabulary, self._stop = vocabulary, tuple(stop)
        self._ids = list(prompt[-BEFORE:])
        self._done = len(self._certain(vocabulary.decode(self._ids)))
        self._held = ""

    def add(self, token: int) -> str:
        """Add a token and return the text that became certain. It is empty once a stop string occurred."""
        self._ids.append(token)
        text = self._certain(self._vocabulary.decode(self._ids))
        new, self._done = text[self._done :], max(self._done, len(text))
        if len(self._ids) > 4 * BEFORE:
            self._ids = self._ids[-BEFORE:]
            self._done = len(self._certain(self._vocabulary.decode(self._ids)))
        return self._until_stop(new)

    def finish(self) -> str:
        """Return the text that was held back: no token follows."""
        rest = self._until_stop(self._vocabulary.decode(self._ids)[self._done :])
        rest, self._held = rest + self._held, ""
        return rest

    @staticmethod
    def _certain(text: str) -> str:
        """Return the text without replacement characters at the end, which the next token may complete."""
        tail = len(text) - len(text.rstrip(REPLACEMENT))
        return text[: len(text) - min(tail, LONGEST_TAIL)]

    def _until_stop(self, new: str) -> str:
        """Return the text before the first stop string. Hold back an end that may be the beginning of one."""
        if self.stopped:
            return ""
        text = self._held + new
        starts = [text.find(stop) for stop in self._stop if stop in text]
        if starts:
            self.stopped, self._held = True, ""
            return text[: min(starts)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that `stop` begins with, without being all of it.

    >>> _overlap("one, tw", "two"), _overlap("one", "two")
    (2, 0)
    """
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
