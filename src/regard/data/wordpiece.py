"""WordPiece, the vocabulary of BERT. Tokens inside a word begin with ##; a text is enclosed in [CLS] and [SEP].

Devlin et al. 2019, section 3; Wu et al. 2016, section 4.1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..core.files import write_text
from .subwords import most_frequent_characters, train_on_words
from .trained_tokenizer import all_cores
from .vocabulary import check_ids, read_json

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""Default names of the special tokens, which `tokenizer_config.json` can change. Trained ones have ids 0 to 4."""
INSIDE = "##"
TOKENIZER, CONFIG, PLAIN = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
# settings of the normalizer: name in tokenizer_config.json → name in tokenizer.json
_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


class Encoded(NamedTuple):
    """An encoded text, or pair of texts, for BERT."""

    ids: list[int]
    """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""
    segments: list[int]
    """0 up to and including the first [SEP], 1 after it."""


class WordPiece:
    """A vocabulary of BERT: text ↔ ids.

    It gives the same ids as the fast tokenizer of `transformers` for the same folder. Names of special tokens in a
    text, such as [MASK], are encoded as these tokens.

    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> ids, segments = words.encode("newest low", "A LOWER")
    >>> words.pieces(ids), segments
    (['[CLS]', 'newest', 'low', '[SEP]', 'a', 'lower', '[SEP]'], [0, 0, 0, 0, 1, 1, 1])
    >>> words.decode(ids)
    'newest low a lower'

    >>> words.encode_all(["newest low"], ["A LOWER"]) == [(ids, segments)]
    True
    >>> bare = words.encode_bare(["newest low", "a lower"])                # without [CLS] and [SEP]
    >>> words.join(*bare) == (ids, segments)
    True
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> words.save(folder)
    >>> len(WordPiece.load(folder)) == len(words)
    True
    """

    added = 2
    """Number of special tokens around a text."""

    def __init__(self, tokenizer: Tokenizer, special: dict[str, str] | None = None) -> None:
        """Wrap a tokenizer of `tokenizers`. `special` has the names of the special tokens that differ from `SPECIAL`.

        Raises:
            ValueError: if the model is not WordPiece, or special tokens are not in the vocabulary.
        """
        names = SPECIAL | (special or {})
        if not isinstance(tokenizer.model, models.WordPiece):
            raise ValueError(
                f"wordpiece: tokenizer must have a WordPiece model; got {type(tokenizer.model).__name__}. Of the "
                "tokenizers of Hugging Face only those of BERT are supported."
            )
        if missing := [name for name in names.values() if tokenizer.token_to_id(name) is None]:
            raise ValueError(
                f"wordpiece: vocabulary ({tokenizer.get_vocab_size():,} tokens) must have the special tokens "
                f"{', '.join(names.values())}; got no {', '.join(missing)}. Name them in {CONFIG}."
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
        self._tokenizer, self._special, self._longest = tokenizer, names, 0
        special_ids: list[int] = [tokenizer.token_to_id(names[key]) for key in SPECIAL]  # type: ignore[misc]  # all are there
        self.pad, self.unk, self.cls, self.sep, self.mask = special_ids
        if tokenizer.post_processor is None:
            tokenizer.post_processor = processors.BertProcessing((names["sep"], self.sep), (names["cls"], self.cls))
        self._tokens = [tokenizer.id_to_token(id) or "" for id in range(tokenizer.get_vocab_size())]

    @classmethod
    def train(cls, lines: Iterable[str], size: int, *, lower: bool = True) -> WordPiece:
        """Learn at most `size` tokens, including the five special ones. The same lines give the same result.

        `lower` converts text to lower case and removes accents, as the uncased BERT models do.

        Raises:
            ValueError: for an invalid size or empty text.
        """
        if size <= len(SPECIAL):
            raise ValueError(
                f"wordpiece: size ({size}) must be more than {len(SPECIAL)}; several thousand are typical."
            )
        tokenizer = _tokenizer(models.WordPiece(unk_token=SPECIAL["unk"]), lowercase=lower)
        counted = _count_words(lines, tokenizer)
        first, inside = _alphabet(counted, tokenizer, max(1, (size - len(SPECIAL)) // 2))
        # the trainer numbers characters in hash map order and breaks ties by number, so they are numbered here
        known = [*SPECIAL.values(), *first, *inside][:size]
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=known,
            initial_alphabet=first,
            limit_alphabet=len(first),
            continuing_subword_prefix=INSIDE,
            show_progress=False,
        )
        with all_cores():
            trained = Tokenizer(train_on_words(models.WordPiece(unk_token=SPECIAL["unk"]), trainer, counted))
        tokens = sorted(trained.get_vocab().items(), key=lambda item: item[1])
        model = models.WordPiece(dict(tokens), unk_token=SPECIAL["unk"])
        return cls(_tokenizer(model, lowercase=lower))

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"WordPiece({len(self)}, lower={self.lower})"

    @property
    def lower(self) -> bool:
        """Whether text is converted to lower case."""
        return bool(getattr(self._tokenizer.normalizer, "lowercase", False))

    def encode(self, text: str, pair: str | None = None, longest: int = 512) -> Encoded:
        """Encode a text, or two, with special tokens, truncated to `longest` ids.

        The longer text of a pair is truncated until both fit.
        """
        return self.encode_all([text], None if pair is None else [pair], longest)[0]

    def encode_all(self, texts: Sequence[str], pairs: Sequence[str] | None = None, longest: int = 512) -> list[Encoded]:
        """Encode many texts, each with its pair if `pairs` is not None, using all cores."""
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(f"wordpiece: pairs ({len(pairs)}) must be as many as texts ({len(texts)}).")
        self._truncate(longest, pairs is not None)
        inputs: list[Any] = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        with all_cores():
            return [Encoded(encoding.ids, encoding.type_ids) for encoding in self._tokenizer.encode_batch_fast(inputs)]

    def encode_bare(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts without [CLS], [SEP] and truncation. `join` adds the special tokens."""
        self._truncate(0, False)
        with all_cores():
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def join(self, ids: Sequence[int], pair: Sequence[int] | None = None) -> Encoded:
        """Add [CLS] and [SEP] to the ids of a text, or of two."""
        first = [self.cls, *ids, self.sep]
        second = [] if pair is None else [*pair, self.sep]
        return Encoded(first + second, [0] * len(first) + [1] * len(second))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without [PAD], [CLS] and [SEP]. Case and spaces lost in encoding are not restored."""
        hidden = (self.pad, self.cls, self.sep)
        kept = [self._tokens[id] for id in check_ids(ids, len(self)) if id not in hidden]
        return "".join(token.removeprefix(INSIDE) if _is_continuation(token) else f" {token}" for token in kept).strip()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the string of each id, as shown beside a map."""
        return [self._tokens[id] for id in check_ids(ids, len(self))]

    def words(self, ids: Iterable[int]) -> list[int]:
        """Return the word number of each id; −1 for [PAD], [CLS] and [SEP]. Punctuation marks are words."""
        numbers, word = [], -1
        for id in check_ids(ids, len(self)):
            if id in (self.pad, self.cls, self.sep):
                numbers.append(-1)
                continue
            # a ## token without a word before it, as after truncation, begins one
            word += not (_is_continuation(self._tokens[id]) and numbers and numbers[-1] >= 0)
            numbers.append(word)
        return numbers

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` to a folder that `transformers` can open."""
        self._truncate(0, False)
        settings = self._tokenizer.normalizer
        config = {
            **{theirs: getattr(settings, ours) for theirs, ours in _SETTINGS.items() if hasattr(settings, ours)},
            **{f"{key}_token": name for key, name in self._special.items()},
            "tokenizer_class": "BertTokenizer",
        }
        write_text(Path(folder) / TOKENIZER, self._tokenizer.to_str(pretty=True) + "\n")
        write_text(Path(folder) / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> WordPiece:
        """Load the vocabulary of a model directory: `tokenizer.json`, or else `vocab.txt`.

        `tokenizer_config.json` in the same folder sets the case (do_lower_case), the handling of accents, and the names
        of the special tokens. Without it, a `vocab.txt` is lower-cased.

        Raises:
            ValueError: if neither exists or one is damaged. The message has the path.
        """
        folder = Path(folder)
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        special = {key: name for key in SPECIAL if (name := _name(config.get(f"{key}_token")))}
        settings = {ours: config[theirs] for theirs, ours in _SETTINGS.items() if theirs in config}
        if (folder / TOKENIZER).is_file():
            return cls(_read(folder / TOKENIZER, settings), special)
        if (folder / PLAIN).is_file():
            tokens = (folder / PLAIN).read_text(encoding="utf-8").splitlines()
            model = models.WordPiece(
                {token: id for id, token in enumerate(tokens)}, unk_token=special.get("unk", SPECIAL["unk"])
            )
            return cls(_tokenizer(model, **settings), special)
        raise ValueError(f"wordpiece: folder ({folder}) must hold {TOKENIZER} or {PLAIN}; got neither.")

    def _truncate(self, longest: int, paired: bool) -> None:
        """Set the maximum number of ids of a text; 0 means no limit."""
        special = 3 if paired else 2
        if 0 < longest <= special or longest < 0:
            raise ValueError(
                f"wordpiece: longest ({longest}) must be more than {special}, the special tokens of "
                f"{'a pair' if paired else 'a text'}."
            )
        if longest == self._longest:
            return
        if longest:
            self._tokenizer.enable_truncation(longest, strategy="longest_first")
        else:
            self._tokenizer.no_truncation()
        self._longest = longest


def _tokenizer(model: models.Model, **settings: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(**settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=INSIDE)
    return tokenizer


def _read(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """Read a tokenizer. `settings` override the normalizer settings in the file, as in transformers."""
    config = read_json(path)
    normalizer = config.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        normalizer.update(settings)
    try:
        return Tokenizer.from_str(json.dumps(config))
    except Exception as error:  # tokenizers raises plain Exception for anything it cannot read
        raise ValueError(f"wordpiece: file ({path}) must contain a valid tokenizer; got: {error}.") from error


def _name(stored: Any) -> str | None:
    """Return the name of a special token, which is stored as a string or as an object with a "content"."""
    name = stored.get("content") if isinstance(stored, dict) else stored
    return name if isinstance(name, str) else None


def _is_continuation(token: str) -> bool:
    return token.startswith(INSIDE) and token != INSIDE


def _count_words(lines: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """Count the words. Words that are too long to be encoded become [UNK], so only their beginnings are counted:
    training time is quadratic in the length of a word."""
    split, normalize = tokenizer.pre_tokenizer.pre_tokenize_str, tokenizer.normalizer.normalize_str
    longest = tokenizer.model.max_input_chars_per_word
    counted: Counter[str] = Counter()
    for line in lines:
        counted.update(word[:longest] for word, _ in split(normalize(line)))
    return counted


def _alphabet(counted: Counter[str], tokenizer: Tokenizer, most: int) -> tuple[list[str], list[str]]:
    """Return the `most` frequent characters, as beginnings of words and as tokens inside words."""
    if not counted:
        raise ValueError("wordpiece: lines (0 words) must hold some text; got none.")
    kept = sorted(most_frequent_characters(counted, most))
    # punctuation and Chinese characters are words by themselves and never inside one
    split, normalize = tokenizer.pre_tokenizer.pre_tokenize_str, tokenizer.normalizer.normalize_str
    joins = [c for c in kept if len(split(normalize(f"a{c}a"))) == 1]
    return kept, [f"{INSIDE}{c}" for c in joins]
