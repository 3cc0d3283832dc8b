"""The tokenizer of a language model in a model directory: `tokenizer.json`, special tokens and chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ..core.files import write_text
from .byte_level import readable, token_bytes
from .subwords import SPACE
from .trained_tokenizer import all_cores
from .vocabulary import BOS, EOS, PAD, UNK, Vocabulary, check_ids, damaged, read_json, white_space, word_numbers
from .wordpiece import _name

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
"""The older files of GPT-2."""
IDS = ("generation_config.json", "config.json")
"""Files with ids of special tokens, the first with the highest priority."""
KINDS = ("bos", "eos", "pad")
ALL_IDS = range(2**32)
"""The ids that tokenizers accepts as an argument."""
REPLACEMENT = "\ufffd"
"""Character that stands for bytes that are not UTF-8."""


class ModelTokenizer:
    """A vocabulary of a pretrained language model: text ↔ ids. It has the interface of `Subwords`.

    It gives the same ids as the fast tokenizer of `transformers` for the same folder. Names of special tokens in a
    text, such as <|im_start|>, are encoded as these tokens: a chat template writes them. Therefore remove them from
    text that is not trusted.

    >>> from tokenizers import trainers
    >>> bpe = Tokenizer(models.BPE())
    >>> bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    >>> alphabet = pre_tokenizers.ByteLevel.alphabet()
    >>> bpe.train_from_iterator(["a low lower"], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    >>> tokenizer = ModelTokenizer(bpe, {"eos": "<|end|>"})
    >>> ids = tokenizer.encode("a low 低<|end|>")
    >>> tokenizer.pieces(ids)
    ['a', ' low', ' ', '<0xE4>', '<0xBD>', '<0x8E>', '<|end|>']
    >>> tokenizer.decode(ids), tokenizer.decode(ids[:4], partial=True), tokenizer.words(ids)
    ('a low 低', 'a low ', [0, 1, 2, 2, 2, 2, -1])
    >>> tokenizer.special_tokens, tokenizer.special_ids == {"eos": ids[-1]}
    ({'eos_token': '<|end|>'}, True)
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> tokenizer.save(folder)
    >>> ModelTokenizer.load(folder).encode_all(["a low 低<|end|>"]) == [ids]
    True
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        *,
        end_ids: Iterable[int] = (),
        chat_template: str | None = None,
    ) -> None:
        """Wrap a tokenizer of `tokenizers`.

        Args:
            tokenizer: its special tokens are those that `decode` omits.
            special_tokens: names of the tokens that begin ("bos") and end ("eos") a text and that fill a batch ("pad").
            end_ids: further ids that end a text.
            chat_template: template of a conversation, in the language of Jinja.
        """
        names = dict(special_tokens or {})
        if unknown := sorted(names.keys() - set(KINDS)):
            raise ValueError(f"tokenizer: special_tokens ({', '.join(unknown)}) must be among {', '.join(KINDS)}.")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
        self._tokenizer, self._names = tokenizer, names
        self._special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self._byte_level = _has_part(tokenizer.decoder, "ByteLevel")
        self.begin_id, eos, self.pad_id = (_id(tokenizer, names.get(kind)) for kind in KINDS)
        self.end_ids = frozenset(check_ids(end_ids, self._size)) | (frozenset() if eos is None else {eos})
        """Ids that end a text."""
        self.chat_template = chat_template
        """Template of a conversation, or None."""

    def __len__(self) -> int:
        """Return the number of ids: one more than the highest."""
        return self._size

    def __repr__(self) -> str:
        return f"ModelTokenizer({len(self)}, {type(self._tokenizer.model).__name__})"

    @property
    def special_tokens(self) -> dict[str, str]:
        """Variables of a chat template: bos_token, eos_token and pad_token, if they exist."""
        return {f"{kind}_token": name for kind, name in self._names.items()}

    @property
    def special_ids(self) -> dict[str, int | list[int]]:
        """Ids of the special tokens by kind: bos, eos and pad, if they exist. Several eos ids are a list."""
        ends = sorted(self.end_ids)
        ids: dict[str, int | list[int] | None] = {"bos": self.begin_id, "pad": self.pad_id}
        ids["eos"] = ends[0] if len(ends) == 1 else ends or None
        return {kind: id for kind, id in ids.items() if id is not None}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text. `special` adds those that the model expects around it, such as a begin token."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def encode_all(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Return the ids of many texts, using all cores."""
        with all_cores():
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int], *, partial: bool = False) -> str:
        """Return the text of ids without special tokens. Bytes that are not UTF-8 become �.

        `partial` omits an incomplete character at the end, which later ids may complete: for a text that is shown while
        it is generated.
        """
        text: str = self._tokenizer.decode(check_ids(ids, self._size), skip_special_tokens=True)
        return text.rstrip(REPLACEMENT) if partial else text

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the string of each id, as shown beside a map. Parts of a character are shown as bytes."""
        return [self._token_text(id) for id in check_ids(ids, self._size)]

    def words(self, ids: Iterable[int]) -> list[int]:
        """Return the word number of each id; −1 for special tokens.

        A word begins with white space. A token that is only white space belongs to the word after it.
        """
        tokens = (None if id in self._special else self._token_text(id) for id in check_ids(ids, self._size))
        return word_numbers(tokens, lambda token: white_space(token.replace(SPACE, " ")))

    def save(self, path: str | Path) -> None:
        """Write the files of a model directory that `transformers` can open, or a single .json file, as runs have it.

        Other files in the directory stay.
        """
        path = Path(path)
        if path.suffix == ".json":
            values = {
                "tokenizer": json.loads(self._tokenizer.to_str()),
                "special_tokens": self._names,
                "end_ids": sorted(self.end_ids),
                "chat_template": self.chat_template,
            }
            write_text(path, json.dumps(values, ensure_ascii=False) + "\n")
        else:
            self._save_directory(path)

    def _save_directory(self, folder: Path) -> None:
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special_tokens}
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        ids = {f"{kind}_token_id": id for kind, id in self.special_ids.items()}
        write_text(folder / TOKENIZER, self._tokenizer.to_str(pretty=True) + "\n")
        for name, values in ((CONFIG, config), (IDS[0], ids)):
            write_text(folder / name, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> ModelTokenizer:
        """Load the tokenizer of a model directory, or a .json file written with `save`.

        A directory has `tokenizer.json`, or else the `vocab.json` and `merges.txt` of GPT-2.

        Names of special tokens and the chat template come from `tokenizer_config.json`, ids that end a text from
        `generation_config.json` or `config.json`, as far as these files exist.

        Raises:
            ValueError: if there is no tokenizer, or a file is damaged. The message has the path.
        """
        folder = Path(path)
        if folder.suffix == ".json":
            return cls._load_file(folder)
        tokenizer = _read(folder)
        config = _read_if_present(folder / CONFIG)
        names = {kind: name for kind in KINDS if (name := _name(config.get(f"{kind}_token")))}
        ends: list[int] = []
        for stored in (_read_if_present(folder / name) for name in IDS):
            for kind in KINDS:
                ids = stored.get(f"{kind}_token_id")
                ids = [id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, int) and id in ALL_IDS]
                tokens = [token for id in ids if (token := tokenizer.id_to_token(id)) is not None]
                if tokens:
                    names.setdefault(kind, tokens[0])
                if kind == "eos" and not ends:
                    ends = [id for id in ids if tokenizer.id_to_token(id) is not None]
        return cls(tokenizer, names, end_ids=ends, chat_template=_template(folder, config))

    @classmethod
    def _load_file(cls, path: Path) -> ModelTokenizer:
        values = read_json(path)
        try:
            tokenizer = Tokenizer.from_str(json.dumps(values["tokenizer"]))
            options = {"end_ids": values["end_ids"], "chat_template": values["chat_template"]}
            return cls(tokenizer, values["special_tokens"], **options)
        except Exception as error:  # tokenizers raises plain exceptions
            raise damaged(path, f"{type(error).__name__}: {error}") from error

    def _token_text(self, id: int) -> str:
        token = self._tokenizer.id_to_token(id) or ""
        stored = token_bytes(token) if self._byte_level and id not in self._special else None
        return token if stored is None else readable(stored)


def byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    """Return a tokenizer of byte-level BPE as in GPT-2. `options` are those of `tokenizers.models.BPE`."""
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, **options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read(folder: Path) -> Tokenizer:
    if (folder / TOKENIZER).is_file():
        config = read_json(folder / TOKENIZER)
        try:
            return Tokenizer.from_str(json.dumps(config))
        except Exception as error:  # tokenizers raises plain Exception for anything it cannot read
            raise damaged(folder / TOKENIZER, str(error)) from error
    tokens, merges = folder / VOCABULARY, folder / MERGES
    if not (tokens.is_file() and merges.is_file()):
        raise ValueError(f"tokenizer: folder ({folder}) must hold {TOKENIZER}, or {VOCABULARY} and {MERGES}.")
    lines = [
        line for line in merges.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#version")
    ]
    try:
        tokenizer = byte_level_bpe(read_json(tokens), [tuple(line.split(" ", 1)) for line in lines])  # type: ignore[misc]
    except Exception as error:  # as above
        raise damaged(merges, str(error)) from error
    if tokenizer.token_to_id("<|endoftext|>") is not None:
        tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return tokenizer


def _read_if_present(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the chat template: a file, a string in the config, or the one named default in a list there."""
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _id(tokenizer: Tokenizer, name: str | None) -> int | None:
    return None if name is None else tokenizer.token_to_id(name)


def _has_part(part: Any, name: str) -> bool:
    """Return whether a decoder is of type `name`, or a sequence with one of that type."""
    return part is not None and f'"type":"{name}"' in part.__getstate__().decode()


def model_tokenizer(vocabulary: Vocabulary) -> ModelTokenizer | None:
    """Return a vocabulary of a language model as a tokenizer that `transformers` can load; None if there is none.

    >>> from .characters import Characters
    >>> letters = Characters("abc ")
    >>> tokenizer = model_tokenizer(letters)
    >>> tokenizer.encode("a cab!") == letters.encode("a cab!"), tokenizer.decode(letters.encode("a cab"))
    (True, 'a cab')
    """
    from .byte_subwords import END, ByteSubwords
    from .characters import Characters

    if isinstance(vocabulary, ModelTokenizer):
        return vocabulary
    if isinstance(vocabulary, ByteSubwords):
        return ModelTokenizer(Tokenizer.from_str(vocabulary._tokenizer.to_str()), {"eos": END})
    if not isinstance(vocabulary, Characters):
        return None
    names = vocabulary.pieces(range(len(vocabulary)))
    tokenizer = Tokenizer(models.WordLevel({name: id for id, name in enumerate(names)}, unk_token=names[UNK]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return ModelTokenizer(tokenizer, {"pad": names[PAD], "bos": names[BOS], "eos": names[EOS]})
