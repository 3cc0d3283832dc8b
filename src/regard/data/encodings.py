"""Detection of text that is not UTF-8. Files with too many such lines are rejected, with their likely encoding."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .open_text import open_text

ALLOWED = 0.01
"""Default share of lines that may be badly encoded."""
SAMPLE = 1 << 16
"""Number of bytes of badly encoded lines that are examined."""
MIN_USED = 0.5
"""Minimum share of characters that are in use in the languages of an encoding."""


def allowed(share: float | None) -> float:
    """Return the share of lines that may be badly encoded: `share`, or `ALLOWED` if it is None."""
    return ALLOWED if share is None else share


def check_share(share: float | None) -> list[str]:
    """Return the errors in the user's share, one sentence each."""
    if share is None or 0 <= share <= 1:
        return []
    return [f"data: badly_encoded ({share}) must be a share from 0 to 1; got {share}. Try 0.01, the default."]


def is_utf8(line: bytes) -> bool:
    """Return whether a line is UTF-8 text. NUL does not occur in text; it indicates UTF-16.

    >>> is_utf8("été".encode()), is_utf8("été".encode("cp1252")), is_utf8("et".encode("utf-16-le"))
    (True, False, False)
    """
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in line


class Lines:
    """Count the lines of files and how many of them are badly encoded."""

    def __init__(self, paths: Sequence[Path], limit: float, where: str) -> None:
        self.paths, self.limit, self.where = paths, limit, where
        self.count = self.bad = 0

    def add(self, bad: bool) -> None:
        """Count a line, or one line from each of two files."""
        self.count += 1
        self.bad += bad

    def refuse(self) -> None:
        """Raise ValueError, with the path and the likely encoding, if the share of bad lines exceeds the limit."""
        share = self.bad / max(1, self.count)
        if share <= self.limit:
            return
        path, encoding = next(
            ((path, encoding) for path in self.paths if (encoding := likely_encoding(path)) != "UTF-8"),
            (self.paths[0], "an unknown encoding"),
        )
        name = encoding if encoding.startswith("an ") else f"{encoding}, it seems"
        convert = "" if encoding.startswith("an ") else f" (iconv -f {encoding} -t UTF-8)"
        drop = f", or drop such lines with --badly-encoded {_rounded_up(share)}" if self.bad < self.count else ""
        raise ValueError(
            f"{self.where}: {path} must be UTF-8; got {self.bad:,} of {self.count:,} lines ({share:.0%}) that are not: "
            f"{name}. Convert the file{convert}{drop}."
        )


def _rounded_up(share: float) -> str:
    return f"{min(1.0, int(share * 100 + 1) / 100):g}"


def likely_encoding(path: Path) -> str:
    """Return the iconv name of the encoding of a text file (plain or gzip), or "an unknown encoding"."""
    sample = _sample(path)
    return guess_encoding(sample) if sample else "UTF-8"


def guess_encoding(sample: bytes) -> str:
    """Return the iconv name of the encoding of bytes that are not UTF-8, or "an unknown encoding".

    Each encoding is scored by the non-ASCII characters it decodes to: how many are in use in its languages, and how
    many are among the most frequent ones there.

    >>> guess_encoding("房间很干净，服务也不错。".encode("gb18030")), guess_encoding("café".encode("latin-1"))
    ('GB18030', 'WINDOWS-1252')
    >>> guess_encoding(bytes([0x81]))
    'an unknown encoding'
    """
    if sample[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "UTF-16"
    if wide := _utf16(sample):
        return wide
    scores = {name: _score(_decoded(sample, each.codec), each) for name, each in CANDIDATES.items()}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] > 0 else "an unknown encoding"


def _sample(path: Path) -> bytes:
    sample = bytearray()
    with open_text(path, "data") as file:
        while len(sample) < SAMPLE and (line := file.readline(SAMPLE)):
            if not is_utf8(line):
                sample += line
    return bytes(sample)


def _utf16(sample: bytes) -> str:
    """Return the name of UTF-16 without a byte order mark: every other byte of Western text is 0."""
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) * 8 < len(sample):
        return ""
    return "UTF-16LE" if odd > even else "UTF-16BE"


class Candidate(NamedTuple):
    """An encoding and the characters that are typical of it."""

    codec: str
    used: Callable[[str], bool]
    """Return whether a character is in use in the languages of the encoding."""
    frequent: str
    """The most frequent characters."""
    mixed: bool | None = None
    """Whether words mix ASCII and non-ASCII letters, as in French but not in Russian."""


def _score(text: str, candidate: Candidate) -> float:
    non_ascii = [character for character in text if character > "\x7f"]
    if not non_ascii:
        return 0.0
    used = sum(map(candidate.used, non_ascii)) / len(non_ascii)
    if used < MIN_USED or (candidate.mixed is not None and candidate.mixed != _mixed(text)):
        return 0.0
    return used * (0.5 + sum(character in candidate.frequent for character in non_ascii) / len(non_ascii))


def _mixed(text: str) -> bool:
    """Return whether most non-ASCII letters are in words that also have ASCII letters."""
    words = re.findall(r"[^\W\d_]+", text)
    counts = [(sum(c > "\x7f" for c in word), any(c < "\x80" for c in word)) for word in words]
    result: bool = 2 * sum(count for count, ascii_too in counts if ascii_too) > sum(count for count, _ in counts)
    return result


def _decoded(sample: bytes, codec: str) -> str:
    for cut in range(4):  # the sample may end inside a character
        try:
            return sample[: len(sample) - cut].decode(codec)
        except UnicodeDecodeError:
            continue
    return ""


def _lead_byte(codec: str, low: int, high: int) -> Callable[[str], bool]:
    """Match characters by their first byte: national standards list common characters before rare ones."""

    def used(character: str) -> bool:
        try:
            encoded = character.encode(codec)
        except UnicodeEncodeError:
            return False
        return len(encoded) == 2 and (low <= encoded[0] <= high or "\u3000" <= character <= "\u303f")

    return used


def _japanese(character: str) -> bool:
    return "\u3041" <= character <= "\u30ff" or JIS_LEVEL_1(character)


def _cyrillic(character: str) -> bool:
    return "а" <= character <= "я" or character in "ё«»—…№“”„"


def _latin(character: str) -> bool:
    return ("à" <= character <= "ÿ" and character != "÷") or character in "ßÄÖÜÉÈÀÇÑ«»“”„‘’–—…€°£§¿¡"


JIS_LEVEL_1 = _lead_byte("shift_jis", 0x88, 0x97)
KANA = "".join(map(chr, range(0x3041, 0x3094)))
CYRILLIC = "оеаинтсрвлкмдпу"
CANDIDATES: dict[str, Candidate] = {
    "GB18030": Candidate(
        "gb18030",
        _lead_byte("gb2312", 0xB0, 0xD7),
        "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你，。",
    ),
    "BIG5": Candidate(
        "cp950", _lead_byte("big5", 0xA4, 0xC6), "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你，。"
    ),
    "SHIFT_JIS": Candidate("cp932", _japanese, KANA),
    "EUC-JP": Candidate("euc_jp", _japanese, KANA),
    "EUC-KR": Candidate("cp949", _lead_byte("euc_kr", 0xB0, 0xC8), "이다는을를의에가한고하지도로은습니해서사"),
    "WINDOWS-1251": Candidate("cp1251", _cyrillic, CYRILLIC, mixed=False),
    "KOI8-R": Candidate("koi8_r", _cyrillic, CYRILLIC, mixed=False),
    "WINDOWS-1252": Candidate("cp1252", _latin, "éèàüöäßñçáíóúêôåæø", mixed=True),
}
"""Candidates by iconv name. Among equal scores the first one wins."""
