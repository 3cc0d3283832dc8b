"""WordPiece: the pieces BERT reads. A piece inside a word begins with ##; a text begins with [CLS] and ends with [SEP].

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
from .subwords import _threads, most_frequent_characters, train_on_words
from .vocabulary import check_ids, read_json

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""What the five are called unless `tokenizer_config.json` says otherwise; in a trained vocabulary, ids 0 to 4."""
INSIDE = "##"
TOKENIZER, CONFIG, PLAIN = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
# settings of the normaliser: their name in tokenizer_config.json → in tokenizer.json
_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


class Encoded(NamedTuple):
    """A text, or a pair of texts, as BERT reads it."""

    ids: list[int]
    """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""
    segments: list[int]
    """0 up to and with the first [SEP], 1 after it."""


class WordPiece:
    """A vocabulary of BERT: text ↔ ids.

    The same ids as the fast tokenizer of `transformers` for the same folder. Names of special tokens in a text, such as
    [MASK], are those tokens.

    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> ids, segments = words.encode("newest low", "A LOWER")
    >>> words.pieces(ids), segments
    (['[CLS]', 'newest', 'low', '[SEP]', 'a', 'lower', '[SEP]'], [0, 0, 0, 0, 1, 1, 1])
    >>> words.decode(ids)
    'newest low a lower'
    """

    def __init__(self, tokenizer: Tokenizer, special: dict[str, str] | None = None) -> None:
        """From a tokenizer of `tokenizers`, with the names of the five special tokens where they are not the usual.

        Raises:
            ValueError: for a model that is no WordPiece, and where special tokens are not in the vocabulary.
        """
        names = SPECIAL | (special or {})
        if not isinstance(tokenizer.model, models.WordPiece):
            raise ValueError(
                f"wordpiece: tokenizer must have a WordPiece model; got {type(tokenizer.model).__name__}. Of the "
                "tokenizers of Hugging Face only those of BERT are served."
            )
        if absent := [name for name in names.values() if tokenizer.token_to_id(name) is None]:
            raise ValueError(
                f"wordpiece: vocabulary ({tokenizer.get_vocab_size():,} pieces) must have the special tokens "
                f"{', '.join(names.values())}; got no {', '.join(absent)}. Name them in {CONFIG}."
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
        self._tokenizer, self._special, self._longest = tokenizer, names, 0
        found: list[int] = [tokenizer.token_to_id(names[key]) for key in SPECIAL]  # type: ignore[misc]  # all are there
        self.pad, self.unk, self.cls, self.sep, self.mask = found
        if tokenizer.post_processor is None:
            tokenizer.post_processor = processors.BertProcessing((names["sep"], self.sep), (names["cls"], self.cls))
        self._pieces = [tokenizer.id_to_token(id) or "" for id in range(tokenizer.get_vocab_size())]

    @classmethod
    def train(cls, lines: Iterable[str], size: int, *, lower: bool = True) -> WordPiece:
        """Find at most `size` pieces (the five special ones counted) in lines of text; the same lines give the same.

        `lower` makes small letters of capitals and takes accents off, as the uncased BERTs do.

        Raises:
            ValueError: for a size that cannot be, and for no text.
        """
        if size <= len(SPECIAL):
            raise ValueError(f"wordpiece: size ({size}) must be more than {len(SPECIAL)}; some thousands are usual.")
        tokenizer = _tokenizer(models.WordPiece(unk_token=SPECIAL["unk"]), lowercase=lower)
        counted = _count_words(lines, tokenizer)
        first, inside = _alphabet(counted, tokenizer, max(1, (size - len(SPECIAL)) // 2))
        # the trainer numbers characters in the order of a hash map, and breaks ties by number: so they get theirs here
        known = [*SPECIAL.values(), *first, *inside][:size]
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=known,
            initial_alphabet=first,
            limit_alphabet=len(first),
            continuing_subword_prefix=INSIDE,
            show_progress=False,
        )
        with _threads():
            trained = Tokenizer(train_on_words(models.WordPiece(unk_token=SPECIAL["unk"]), trainer, counted))
        pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
        model = models.WordPiece(dict(pieces), unk_token=SPECIAL["unk"])
        return cls(_tokenizer(model, lowercase=lower))

    def __len__(self) -> int:
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"WordPiece({len(self)}, lower={self.lower})"

    @property
    def lower(self) -> bool:
        """Whether capitals are read as small letters."""
        return bool(getattr(self._tokenizer.normalizer, "lowercase", False))

    def encode(self, text: str, pair: str | None = None, longest: int = 512) -> Encoded:
        """A text, or two, with special tokens; of what is longer than `longest` ids the end is cut.

        Of a pair, the longer text is cut until both fit.
        """
        return self.encode_all([text], None if pair is None else [pair], longest)[0]

    def encode_all(self, texts: Sequence[str], pairs: Sequence[str] | None = None, longest: int = 512) -> list[Encoded]:
        """Many texts, each with its pair where `pairs` are given, on all cores."""
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(f"wordpiece: pairs ({len(pairs)}) must be as many as texts ({len(texts)}).")
        self._truncate(longest, pairs is not None)
        given: list[Any] = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        with _threads():
            return [Encoded(one.ids, one.type_ids) for one in self._tokenizer.encode_batch_fast(given)]

    def encode_bare(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts without [CLS] and [SEP], whole: to be cut and put together by `join`."""
        self._truncate(0, False)
        with _threads():
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [one.ids for one in found]

    def join(self, ids: Sequence[int], pair: Sequence[int] | None = None) -> Encoded:
        """Bare ids of a text, or of two, with [CLS] and [SEP]."""
        first = [self.cls, *ids, self.sep]
        second = [] if pair is None else [*pair, self.sep]
        return Encoded(first + second, [0] * len(first) + [1] * len(second))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; [PAD], [CLS] and [SEP] leave no trace. What lower-casing and splitting took stays away."""
        hidden = (self.pad, self.cls, self.sep)
        kept = [self._pieces[id] for id in check_ids(ids, len(self)) if id not in hidden]
        return "".join(piece.removeprefix(INSIDE) if _inside(piece) else f" {piece}" for piece in kept).strip()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, as shown beside a map."""
        return [self._pieces[id] for id in check_ids(ids, len(self))]

    def words(self, ids: Iterable[int]) -> list[int]:
        """The number of the word that each id belongs to, −1 for [PAD], [CLS] and [SEP]; punctuation is a word."""
        numbers, word = [], -1
        for id in check_ids(ids, len(self)):
            if id in (self.pad, self.cls, self.sep):
                numbers.append(-1)
                continue
            # a ## that follows no word, as after a cut, is one itself
            word += not (_inside(self._pieces[id]) and numbers and numbers[-1] >= 0)
            numbers.append(word)
        return numbers

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` into a folder; `transformers` opens it."""
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
        """The vocabulary of a model directory: `tokenizer.json`, or else `vocab.txt`.

        `tokenizer_config.json`, where it lies beside them, says how to treat capitals and accents (do_lower_case) and
        what the special tokens are called; without it, a `vocab.txt` is read in small letters.

        Raises:
            ValueError: where there is none of them, or one is damaged; by the name of the file.
        """
        folder = Path(folder)
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        special = {key: name for key in SPECIAL if (name := _name(config.get(f"{key}_token")))}
        settings = {ours: config[theirs] for theirs, ours in _SETTINGS.items() if theirs in config}
        if (folder / TOKENIZER).is_file():
            return cls(_read(folder / TOKENIZER, settings), special)
        if (folder / PLAIN).is_file():
            pieces = (folder / PLAIN).read_text(encoding="utf-8").splitlines()
            model = models.WordPiece(
                {piece: id for id, piece in enumerate(pieces)}, unk_token=special.get("unk", SPECIAL["unk"])
            )
            return cls(_tokenizer(model, **settings), special)
        raise ValueError(f"wordpiece: folder ({folder}) must hold {TOKENIZER} or {PLAIN}; got neither.")

    def _truncate(self, longest: int, paired: bool) -> None:
        """Set how many ids a text may have; 0 for any number."""
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
    """The tokenizer of a file; `settings` of the normaliser count before those in the file, as in transformers."""
    found = read_json(path)
    normalizer = found.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        normalizer.update(settings)
    try:
        return Tokenizer.from_str(json.dumps(found))
    except Exception as error:  # tokenizers raises plain Exception for whatever it cannot read
        raise ValueError(f"wordpiece: file ({path}) must hold a tokenizer; got one that is none: {error}.") from error


def _name(stored: Any) -> str | None:
    """A special token as it is stored: its name, or an object that has it."""
    found = stored.get("content") if isinstance(stored, dict) else stored
    return found if isinstance(found, str) else None


def _inside(piece: str) -> bool:
    return piece.startswith(INSIDE) and piece != INSIDE


def _count_words(lines: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """How often each word occurs. Of a word too long to be encoded, which the model reads as [UNK], only the beginning
    counts: trainers take time quadratic in the length of a word."""
    split, normal = tokenizer.pre_tokenizer.pre_tokenize_str, tokenizer.normalizer.normalize_str
    longest = tokenizer.model.max_input_chars_per_word
    counted: Counter[str] = Counter()
    for line in lines:
        counted.update(word[:longest] for word, _ in split(normal(line)))
    return counted


def _alphabet(counted: Counter[str], tokenizer: Tokenizer, most: int) -> tuple[list[str], list[str]]:
    """The `most` frequent characters, as beginnings of words and as pieces inside words."""
    if not counted:
        raise ValueError("wordpiece: lines (0 words) must hold some text; got none.")
    kept = sorted(most_frequent_characters(counted, most))
    # punctuation and Chinese characters are words of their own: they are never inside one
    split, normal = tokenizer.pre_tokenizer.pre_tokenize_str, tokenizer.normalizer.normalize_str
    joins = [c for c in kept if len(split(normal(f"a{c}a"))) == 1]
    return kept, [f"{INSIDE}{c}" for c in joins]
