"""Subwords: pieces of words, found in the text itself, so that a few thousand of them write any word.

BPE: Sennrich et al. 2016, section 3.2. Unigram: Kudo 2018, section 3.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ..core.files import write_text
from .vocabulary import BOS, EOS, NAMES, PAD, UNK, UNKNOWN, check_ids, damaged, read_json

# tokenizers warns in every process that forks after it used threads, unless this says whether it
# may. It may where we say so (`_threads`), and never in a forked child, where the threads of the parent are missing.
_HOME = None if "TOKENIZERS_PARALLELISM" in os.environ else os.getpid()
"""The process that may use threads; None where the user's environment decides."""
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

Kind = Literal["bpe", "unigram"]
SPACE = "▁"
"""Stands for the space before a word, in the pieces."""
STORED = ("< pad >", "< unk >", "< s >", "< /s >")
"""The four in the file: with a space inside, which no piece can have, so that no text is ever taken for one of them."""
LONGEST_PIECE = 16
LONGEST_WORD = 256
"""Characters. Trainers take time quadratic in the length of a word, so longer ones are cut."""
ROUNDS = 3


class Subwords:
    """A vocabulary of pieces: text ↔ ids.

    A piece that begins a word begins with ▁. Texts are brought to NFC and a ▁ in them becomes _; nothing else is
    changed: case, accents and punctuation stay. `decode(encode(text)) == text` for text in NFC with single spaces
    between words and characters that were seen in training; others are UNK, shown as ⁇. Other white space (tabs,
    no-break spaces) are characters like any.

    One object over both languages is a joint vocabulary, two objects are separate ones.

    >>> subwords = Subwords.train(["a low lower lowest", "a new newer newest"] * 9, 24)
    >>> ids = subwords.encode("newest low")
    >>> subwords.pieces(ids), subwords.words(ids)
    (['▁ne', 'west', '▁low'], [0, 0, 1])
    >>> subwords.decode([BOS, *ids, EOS, PAD])
    'newest low'
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        for id, name in enumerate(STORED):
            if tokenizer.id_to_token(id) != name:
                raise ValueError(
                    f"subwords: token {id} must be {name!r}; got {tokenizer.id_to_token(id)!r}. Only vocabularies "
                    "that Subwords.train made can be used."
                )
        tokenizer.encode_special_tokens = True  # their names in a text are text
        self._tokenizer = tokenizer
        tokens = (tokenizer.id_to_token(id) for id in range(len(STORED), tokenizer.get_vocab_size()))
        self._pieces: tuple[str, ...] = (*NAMES, *(token or "" for token in tokens))

    @classmethod
    def train(cls, lines: Iterable[str], size: int, kind: Kind = "bpe") -> Subwords:
        """Find at most `size` pieces (the four special ones counted) in lines of text; the same lines give the same.

        Characters beyond three quarters of the size, the rarest first, get no piece (BPE).

        Raises:
            ValueError: for a kind or size that cannot be, no text, or (unigram) more characters than pieces.
        """
        if kind not in get_args(Kind):
            raise ValueError(f"subwords: kind ({kind!r}) must be one of {', '.join(get_args(Kind))}.")
        if size <= len(NAMES) + 1:
            raise ValueError(f"subwords: size ({size}) must be at least {len(NAMES) + 2}; some thousands are usual.")
        counted = _count_words(lines)
        if not counted:
            raise ValueError("subwords: lines (0 words) must hold some text; got none.")
        with _threads():
            return cls(_bpe(counted, size) if kind == "bpe" else _unigram(counted, size))

    def __len__(self) -> int:
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"Subwords({len(self)}, {type(self._tokenizer.model).__name__})"

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without PAD, BOS and EOS."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, on all cores."""
        with _threads():
            return [found.ids for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; PAD, BOS and EOS leave no trace, UNK is ⁇."""
        kept = (id for id in check_ids(ids, len(self)) if id not in (PAD, BOS, EOS))
        text = "".join(UNKNOWN if id == UNK else self._pieces[id] for id in kept).replace(SPACE, " ")
        return text.removeprefix(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, as shown beside a map."""
        return [self._pieces[id] for id in check_ids(ids, len(self))]

    def words(self, ids: Iterable[int]) -> list[int]:
        """The number of the word that each id belongs to, −1 for PAD, BOS and EOS.

        Words are what spaces separate in `decode(ids)`, however many stand between two. A piece that is a space alone
        belongs to the word after it.
        """
        numbers, word, between = [], -1, True
        for id in check_ids(ids, len(self)):
            if id in (PAD, BOS, EOS):
                numbers.append(-1)
                continue
            piece = self._pieces[id]
            between = between or piece.startswith(SPACE)
            numbers.append(word + between)
            if piece != SPACE:
                word, between = word + between, False
        return numbers

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, the format of `tokenizers`."""
        write_text(Path(path), self._tokenizer.to_str(pretty=True) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Subwords:
        """What `save` wrote.

        Raises:
            ValueError: for a damaged file, by its name.
        """
        found = read_json(Path(path))
        try:
            return cls(Tokenizer.from_str(json.dumps(found)))
        except Exception as error:  # tokenizers raises plain Exception for whatever it cannot read
            raise damaged(Path(path), str(error)) from error


@contextmanager
def _threads() -> Iterator[None]:
    """Lets tokenizers use all cores, in the process that imported it and unless the environment says otherwise."""
    before = os.environ["TOKENIZERS_PARALLELISM"]
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if os.getpid() == _HOME else before
    try:
        yield
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = before


def _count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs, as the splitter gives them: ▁word, the rest of a word, a punctuation mark."""
    counted: Counter[str] = Counter()
    for line in lines:
        text = unicodedata.normalize("NFC", line).replace(SPACE, "_")
        for word, _ in SPLITTER.pre_tokenize_str(text):
            if word != SPACE:
                counted.update(cut_word(word))
    return counted


def cut_word(word: str) -> list[str]:
    """The word, or consecutive parts of `LONGEST_WORD` characters."""
    return [word[start : start + LONGEST_WORD] for start in range(0, len(word), LONGEST_WORD)]


def train_on_words(model: models.Model, trainer: trainers.Trainer, counted: Counter[str]) -> models.Model:
    """Train a model of `tokenizers` on words that are counted already; they are neither normalised nor split again."""
    bare = Tokenizer(model)
    bare.train_from_iterator((word for word in sorted(counted) for _ in range(counted[word])), trainer)
    return bare.model


def most_frequent_characters(counted: Counter[str], limit: int) -> list[str]:
    """At most `limit` characters, the most frequent first and among equals the one of the lower code point.

    The trainers would break ties by the order of a hash map, which differs from process to process.
    """
    characters: Counter[str] = Counter()
    for word, times in counted.items():
        for character in word:
            characters[character] += times
    return sorted(characters, key=lambda character: (-characters[character], character))[:limit]


# no piece is part word, part punctuation: "dog" before a full stop is the "dog" it is elsewhere
SPLITTER = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
        pre_tokenizers.Punctuation("isolated"),
    ]
)


def _tokenizer(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(SPACE, "_")])
    tokenizer.pre_tokenizer = SPLITTER
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in STORED])
    return tokenizer


def _bpe(counted: Counter[str], size: int) -> Tokenizer:
    limit = max(1, 3 * size // 4)
    alphabet = [SPACE, *(c for c in most_frequent_characters(counted, limit) if c != SPACE)][:limit]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(STORED),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    return _tokenizer(train_on_words(models.BPE(unk_token=STORED[UNK]), trainer, counted))


def _unigram(counted: Counter[str], size: int) -> Tokenizer:
    """The pieces as `tokenizers` finds them, with probabilities of our own.

    Its trainer adds up floats in the order of a hash map that differs from process to process: which pieces are kept
    comes out the same, their scores and order do not. So each piece starts with the logarithm of how often it occurs,
    and a few rounds of segmenting all words by the best path and counting (whole numbers) settle the rest.
    """
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(STORED),
        unk_token=STORED[UNK],
        max_piece_length=LONGEST_PIECE,
        initial_alphabet=[SPACE],
        show_progress=False,
    )
    try:
        found = Tokenizer(train_on_words(models.Unigram(), trainer, counted))
    except Exception as error:  # plain Exception is what tokenizers raises
        least = len({character for word in counted for character in word}) + len(STORED) + 1
        raise ValueError(
            f"subwords: size ({size}) must be at least {least}, for every character of the text to have a piece "
            f"(unigram); got: {error}. Raise it, or take bpe, which leaves the rarest out."
        ) from error
    pieces = sorted(set(found.get_vocab()) - set(STORED))
    words = sorted(counted)
    often = np.array([counted[word] for word in words], dtype=np.int64)
    counts = _occurrences(pieces, words, often)
    for _ in range(ROUNDS):
        bare = [word.removeprefix(SPACE) for word in words]  # the tokenizer puts it there itself
        segmented = _scored(pieces, counts).encode_batch_fast(bare, add_special_tokens=False)
        times = np.repeat(often, [len(one.ids) for one in segmented])
        ids = np.fromiter((id for one in segmented for id in one.ids), np.int64, len(times))
        counts = np.zeros(len(STORED) + len(pieces), np.int64)
        np.add.at(counts, ids, times)
        counts = counts[len(STORED) :]
    order = sorted(range(len(pieces)), key=lambda n: (-counts[n], pieces[n]))
    return _scored([pieces[n] for n in order], counts[order])


def _occurrences(pieces: list[str], words: list[str], often: np.ndarray) -> np.ndarray:
    """How often each piece occurs in all words, overlaps counted."""
    counts = dict.fromkeys(pieces, 0)
    for word, times in zip(words, often.tolist(), strict=True):
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + LONGEST_PIECE) + 1):
                if (part := word[start:end]) in counts:
                    counts[part] += times
    return np.array(list(counts.values()), dtype=np.int64)


def _scored(pieces: list[str], counts: np.ndarray) -> Tokenizer:
    """A tokenizer whose pieces have log(count / total) for a score; one that was not used, as if half a time."""
    total = max(1, int(counts.sum()))
    # rounded, as the last bits of a logarithm are the C library's own
    scores = [round(math.log(max(0.5, count) / total), 6) for count in counts.tolist()]
    vocabulary = [*((name, 0.0) for name in STORED), *zip(pieces, scores, strict=True)]
    return _tokenizer(models.Unigram(vocabulary, unk_id=UNK, byte_fallback=False))
