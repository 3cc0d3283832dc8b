"""Subword vocabularies, learned from text, so that a few thousand subwords can spell any word.

BPE: Sennrich et al. 2016, section 3.2. Unigram: Kudo 2018, section 3.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from .trained_tokenizer import TrainedTokenizer, all_cores
from .vocabulary import BOS, EOS, NAMES, PAD, UNK, UNKNOWN, check_ids, word_numbers

Kind = Literal["bpe", "unigram"]
SPACE = "▁"
"""Represents the space before a word."""
SPECIAL_TOKENS = ("< pad >", "< unk >", "< s >", "< /s >")
"""Special tokens in the file. They contain a space, which no subword can contain, so no text matches them."""
LONGEST_SUBWORD = 16
LONGEST_WORD = 256
"""Maximum characters per word. Training time is quadratic in the length of a word, so longer words are split."""
ROUNDS = 3


class Subwords(TrainedTokenizer):
    """A subword vocabulary: text ↔ ids.

    A subword that begins a word starts with ▁. Texts are normalized to NFC, and ▁ becomes _; case, accents and
    punctuation are preserved. `decode(encode(text)) == text` for NFC text with single spaces between words whose
    characters occur in the training text. Other characters become UNK, shown as ⁇. Other white space (tabs, no-break
    spaces) is treated like any character.

    Use one object for both languages as a joint vocabulary, or two objects for separate vocabularies.

    >>> subwords = Subwords.train(["a low lower lowest", "a new newer newest"] * 9, 24)
    >>> ids = subwords.encode("newest low")
    >>> subwords.pieces(ids), subwords.words(ids)
    (['▁ne', 'west', '▁low'], [0, 0, 1])
    >>> subwords.decode([BOS, *ids, EOS, PAD])
    'newest low'

    >>> subwords.encode_all(["newest low"]) == [ids]
    True
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/subwords.json"
    >>> subwords.save(path)
    >>> Subwords.load(path).encode("newest low") == ids
    True
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        for id, name in enumerate(SPECIAL_TOKENS):
            if tokenizer.id_to_token(id) != name:
                raise ValueError(
                    f"subwords: token {id} must be {name!r}; got {tokenizer.id_to_token(id)!r}. Only vocabularies "
                    "created by Subwords.train can be used."
                )
        super().__init__(tokenizer)
        tokens = (tokenizer.id_to_token(id) for id in range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size()))
        self._tokens: tuple[str, ...] = (*NAMES, *(token or "" for token in tokens))

    @classmethod
    def train(cls, lines: Iterable[str], size: int, kind: Kind = "bpe") -> Subwords:
        """Learn at most `size` subwords, including the four special tokens. The same lines give the same result.

        With BPE, the rarest characters beyond three quarters of `size` get no subword.

        Raises:
            ValueError: for an invalid kind or size, empty text, or (unigram) more characters than `size` allows.
        """
        if kind not in get_args(Kind):
            raise ValueError(f"subwords: kind ({kind!r}) must be one of {', '.join(get_args(Kind))}.")
        if size <= len(NAMES) + 1:
            raise ValueError(
                f"subwords: size ({size}) must be at least {len(NAMES) + 2}; several thousand are typical."
            )
        counted = _count_words(lines)
        if not counted:
            raise ValueError("subwords: lines (0 words) must hold some text; got none.")
        with all_cores():
            return cls(_bpe(counted, size) if kind == "bpe" else _unigram(counted, size))

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"Subwords({len(self)}, {type(self._tokenizer.model).__name__})"

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. PAD, BOS and EOS are omitted; UNK becomes ⁇."""
        kept = (id for id in check_ids(ids, len(self)) if id not in (PAD, BOS, EOS))
        text = "".join(UNKNOWN if id == UNK else self._tokens[id] for id in kept).replace(SPACE, " ")
        return text.removeprefix(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the string of each id, as shown beside a map."""
        return [self._tokens[id] for id in check_ids(ids, len(self))]

    def words(self, ids: Iterable[int]) -> list[int]:
        """Return the word number of each id; −1 for PAD, BOS and EOS.

        Words are separated by one or more spaces in `decode(ids)`. A subword that is only a space belongs to the word
        after it.
        """
        tokens = (None if id in (PAD, BOS, EOS) else self._tokens[id] for id in check_ids(ids, len(self)))
        return word_numbers(tokens, lambda token: (token.startswith(SPACE), token == SPACE))


def _count_words(lines: Iterable[str]) -> Counter[str]:
    """Count the words as the splitter returns them: ▁word, the rest of a word, or a punctuation mark."""
    counted: Counter[str] = Counter()
    for line in lines:
        text = unicodedata.normalize("NFC", line).replace(SPACE, "_")
        for word, _ in SPLITTER.pre_tokenize_str(text):
            if word != SPACE:
                counted.update(cut_word(word))
    return counted


def cut_word(word: str) -> list[str]:
    """Return the word, or consecutive parts of `LONGEST_WORD` characters."""
    return [word[start : start + LONGEST_WORD] for start in range(0, len(word), LONGEST_WORD)]


def train_on_words(model: models.Model, trainer: trainers.Trainer, counted: Counter[str]) -> models.Model:
    """Train a model of `tokenizers` on counted words. They are not normalized or split again."""
    bare = Tokenizer(model)
    bare.train_from_iterator((word for word in sorted(counted) for _ in range(counted[word])), trainer)
    result: models.Model = bare.model
    return result


def most_frequent_characters(counted: Counter[str], limit: int) -> list[str]:
    """Return at most `limit` characters, the most frequent first. Ties are sorted by code point.

    The trainers would break ties in hash map order, which differs between processes.
    """
    characters: Counter[str] = Counter()
    for word, times in counted.items():
        for character in word:
            characters[character] += times
    return sorted(characters, key=lambda character: (-characters[character], character))[:limit]


# subwords never mix letters and punctuation: "dog" before a full stop is the same subword as elsewhere
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
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    return tokenizer


def _bpe(counted: Counter[str], size: int) -> Tokenizer:
    limit = max(1, 3 * size // 4)
    alphabet = [SPACE, *(c for c in most_frequent_characters(counted, limit) if c != SPACE)][:limit]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    return _tokenizer(train_on_words(models.BPE(unk_token=SPECIAL_TOKENS[UNK]), trainer, counted))


def _unigram(counted: Counter[str], size: int) -> Tokenizer:
    """Train a unigram model with the subwords of `tokenizers` and our own probabilities.

    The trainer of `tokenizers` sums floats in hash map order, which differs between processes. The selected subwords
    are reproducible, but their scores and order are not. So each score starts as the logarithm of the subword's number
    of occurrences. A few rounds of Viterbi segmentation and integer counts then refine it.
    """
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        unk_token=SPECIAL_TOKENS[UNK],
        max_piece_length=LONGEST_SUBWORD,
        initial_alphabet=[SPACE],
        show_progress=False,
    )
    try:
        trained = Tokenizer(train_on_words(models.Unigram(), trainer, counted))
    except Exception as error:  # tokenizers raises plain Exception
        minimum = len({character for word in counted for character in word}) + len(SPECIAL_TOKENS) + 1
        raise ValueError(
            f"subwords: size ({size}) must be at least {minimum}, for every character of the text to have a subword "
            f"(unigram); got: {error}. Increase it, or use bpe, which leaves out the rarest."
        ) from error
    subwords = sorted(set(trained.get_vocab()) - set(SPECIAL_TOKENS))
    words = sorted(counted)
    frequencies = np.array([counted[word] for word in words], dtype=np.int64)
    counts = _occurrences(subwords, words, frequencies)
    for _ in range(ROUNDS):
        bare = [word.removeprefix(SPACE) for word in words]  # the tokenizer adds it again
        segmented = _scored(subwords, counts).encode_batch_fast(bare, add_special_tokens=False)
        times = np.repeat(frequencies, [len(encoding.ids) for encoding in segmented])
        ids = np.fromiter((id for encoding in segmented for id in encoding.ids), np.int64, len(times))
        counts = np.zeros(len(SPECIAL_TOKENS) + len(subwords), np.int64)
        np.add.at(counts, ids, times)
        counts = counts[len(SPECIAL_TOKENS) :]
    order = sorted(range(len(subwords)), key=lambda n: (-counts[n], subwords[n]))
    return _scored([subwords[n] for n in order], counts[order])


def _occurrences(subwords: list[str], words: list[str], frequencies: np.ndarray) -> np.ndarray:
    """Count the occurrences of each subword in all words, including overlapping ones."""
    counts = dict.fromkeys(subwords, 0)
    for word, times in zip(words, frequencies.tolist(), strict=True):
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + LONGEST_SUBWORD) + 1):
                if (part := word[start:end]) in counts:
                    counts[part] += times
    return np.array(list(counts.values()), dtype=np.int64)


def _scored(subwords: list[str], counts: np.ndarray) -> Tokenizer:
    """Return a tokenizer with scores log(count / total). A count of 0 is treated as 0.5."""
    total = max(1, int(counts.sum()))
    # rounded, because the last bits of a logarithm depend on the C library
    scores = [round(math.log(max(0.5, count) / total), 6) for count in counts.tolist()]
    vocabulary = [*((name, 0.0) for name in SPECIAL_TOKENS), *zip(subwords, scores, strict=True)]
    return _tokenizer(models.Unigram(vocabulary, unk_id=UNK, byte_fallback=False))
