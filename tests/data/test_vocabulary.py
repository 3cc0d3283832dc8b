"""Vocabularies: decoding restores the text, words are distinguished, and the same text gives the same vocabulary."""

import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import BOS, EOS, PAD, UNK, Characters, Subwords, Vocabulary, WordPiece, load_vocabulary, wordpiece
from regard.data import subwords as trainers
from regard.data.vocabulary import NAMES

TEXT = [
    "Der Feuerwehrmann rettet eine Katze.",
    "Die Katzen retten keinen Feuerwehrmann.",
    "Ça coûte déjà très cher à l’été !",
    "The firemen rescued a cat; cats rescue nobody.",
    "Die Straße nach Ålesund: 3 × 14 km",
    "<pad> <unk> <s> </s> a</s>b ▁ _ ",
] * 20
KINDS = ("bpe", "unigram")
TRAINED = {kind: Subwords.train(iter(TEXT), 150, kind) for kind in KINDS}  # type: ignore[arg-type]
ALL: dict[str, Vocabulary] = {**TRAINED, "characters": Characters.train(TEXT)}
LETTERS = "".join(sorted(set("".join(TEXT)) - set("▁ ")))
words = st.lists(st.text(LETTERS, min_size=1, max_size=9), max_size=6)

each = pytest.mark.parametrize("vocabulary", ALL.values(), ids=ALL)
trained = pytest.mark.parametrize("subwords", TRAINED.values(), ids=TRAINED)


@each
@settings(max_examples=100, deadline=None)
@given(words)
def test_decode_inverts_encode(vocabulary: Vocabulary, words: list[str]) -> None:
    text = unicodedata.normalize("NFC", " ".join(words))
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert vocabulary.decode([BOS, *ids, EOS, PAD, PAD]) == text
    assert not {PAD, UNK, BOS, EOS} & set(ids)  # not even where the text spells their names
    assert vocabulary.encode_all([text, "a"]) == [ids, vocabulary.encode("a")]


@trained
@settings(max_examples=100, deadline=None)
@given(words)
def test_every_piece_knows_its_word(subwords: Subwords, words: list[str]) -> None:
    ids = subwords.encode(" ".join(words))
    numbers = subwords.words(ids)
    assert len(numbers) == len(ids) and numbers == sorted(numbers)
    for number, word in enumerate(words):
        part = [id for id, n in zip(ids, numbers, strict=True) if n == number]
        assert subwords.decode(part) == unicodedata.normalize("NFC", word)


@trained
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_words_of_any_ids_are_those_of_their_text(subwords: Subwords, data: st.DataObject) -> None:
    """A model may say pieces in an order that no text has."""
    ids = data.draw(st.lists(st.integers(0, len(subwords) - 1), max_size=12))
    spoken = [n for id, n in zip(ids, subwords.words(ids), strict=True) if subwords.pieces([id]) != ["▁"] and n >= 0]
    assert len(set(spoken)) == len([word for word in subwords.decode(ids).split(" ") if word])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_subword_mixes_letters_and_punctuation(kind: str) -> None:
    lines = ['A dog, a cat and "a dog".', "The dog’s cat — the dog!", "Wow, a dog?"] * 30
    subwords = Subwords.train(lines, 60, kind)
    tokens = subwords.pieces(range(4, len(subwords)))
    assert not [token for token in tokens if re.search(r"\w", token) and re.search(r"[^\w▁]", token)]
    assert "▁dog" in tokens or kind == "unigram"
    assert [subwords.decode(ids) for ids in subwords.encode_all(lines)] == lines
    ids = subwords.encode('a "dog". So')
    assert max(subwords.words(ids)) == 2  # a full stop belongs to the word it stands at


def test_special_ids_have_no_word() -> None:
    for subwords in TRAINED.values():
        ids = [BOS, *subwords.encode("Katze rettet"), UNK, EOS, PAD]
        numbers = subwords.words(ids)
        assert numbers[0] == numbers[-1] == numbers[-2] == -1 and numbers[-3] == 1 == max(numbers)
    assert ALL["characters"].words([BOS, 4, 5, EOS, PAD]) == [-1, 0, 1, -1, -1]


@each
def test_unknown_characters_are_seen(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("a 漢 a")
    assert UNK in ids and vocabulary.decode(ids) == "a ⁇ a"


@each
def test_only_the_coding_of_text_is_settled(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode("e\u0301te\u0301") == vocabulary.encode("été") != vocabulary.encode("ete")
    assert vocabulary.encode("Katze") != vocabulary.encode("katze")


@each
@pytest.mark.parametrize("text", ["<pad>", "a</s>b", "<unk> <s> <pad>", "< pad > < s >"])
def test_names_of_specials_are_text(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.decode(ids := vocabulary.encode(text)) == text and min(ids) > EOS


@trained
def test_a_space_alone_is_no_word(subwords: Subwords) -> None:
    space, word = subwords.pieces(range(len(subwords))).index("▁"), subwords.encode("a")
    ids = [*word, space, space, *word, space]
    assert subwords.decode(ids) == "a   a " and subwords.words(ids) == [*[0] * len(word), 1, 1, *[1] * len(word), 2]


@trained
def test_the_sign_of_a_space_is_no_space(subwords: Subwords) -> None:
    assert subwords.decode(subwords.encode("a▁b")) == "a_b"


@each
def test_specials_have_their_places(vocabulary: Vocabulary) -> None:
    assert vocabulary.pieces([PAD, UNK, BOS, EOS]) == list(NAMES)
    assert vocabulary.decode([PAD, BOS, EOS]) == ""
    assert isinstance(vocabulary, Vocabulary)


@each
def test_ids_may_be_lists_arrays_or_tensors(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("Die Katze")
    for ids_in in (np.array(ids, np.uint16), torch.tensor(ids), iter(ids)):
        assert vocabulary.decode(ids_in) == "Die Katze"


@each
def test_saved_and_loaded(vocabulary: Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path / "new" / "vocabulary.json")
    again = load_vocabulary(tmp_path / "new" / "vocabulary.json")
    assert type(again) is type(vocabulary) and len(again) == len(vocabulary)
    for text in TEXT[:6]:
        assert again.encode(text) == vocabulary.encode(text)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["vocabulary.json"]


def vocabularies_of_ties() -> list[str]:
    """Vocabularies as text; of some, every character occurs four times, so ties decide which of them get a piece."""
    shuffled = random.Random(1)
    characters = [chr(0x4E00 + number) for number in range(600)]
    lines = []
    for _ in range(4):
        shuffled.shuffle(characters)
        lines += ["".join(characters[start : start + 9]) for start in range(0, 600, 9)]
    trained = [Subwords.train(lines, 40), Subwords.train(lines, 300), WordPiece.train(lines, 300)]
    trained += [Subwords.train(lines, 700, "unigram"), *TRAINED.values()]
    return [one._tokenizer.to_str() for one in trained]


def test_every_process_finds_the_same() -> None:
    """Rust's hash maps have a new seed in each process, whatever PYTHONHASHSEED says."""
    code = "import json; from tests.data.test_vocabulary import vocabularies_of_ties as f; print(json.dumps(f()))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": n})
        for n in ("0", "1", "2")
    ]
    for process in processes:
        assert json.loads(process.communicate()[0]) == vocabularies_of_ties()


def test_of_equally_frequent_characters_the_lower_code_points_get_a_piece() -> None:
    subwords = Subwords.train(["zyxwvutsrqponmlkjihgfedcba" * 3, "ö ö ö ö"], 12)  # nine of 28 characters
    assert "".join(sorted(set("".join(subwords.pieces(range(4, len(subwords))))) - {"▁"})) == "abcdefgö"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_very_long_word_is_cut_for_the_trainers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take time quadratic in its length: 31 seconds for twice this length."""
    words: list[str] = []
    train = trainers.train_on_words

    def recorded(model: object, trainer: object, counted: Counter[str]) -> object:
        words.extend(counted)
        return train(model, trainer, counted)

    for module in (trainers, wordpiece):
        monkeypatch.setattr(module, "train_on_words", recorded)
    text = "".join(chr(97 + number % 7) + chr(97 + number % 11) for number in range(40_000))
    vocabulary = WordPiece.train([text], 60) if kind == "wordpiece" else Subwords.train([text], 60, kind)  # type: ignore[arg-type]
    longest = 100 if kind == "wordpiece" else trainers.LONGEST_WORD  # beyond 100 characters, a BERT reads [UNK]
    assert max(map(len, words)) == longest and len(vocabulary) == 60


def test_more_characters_than_pieces() -> None:
    chinese = ["".join(chr(0x4E00 + n) for n in range(start, start + 40)) for start in range(0, 4000, 40)]
    assert len(Subwords.train(chinese, 300)) <= 300
    with pytest.raises(
        ValueError, match=re.escape("subwords: size (300) must be at least 4006, for every character of the text to")
    ):
        Subwords.train(chinese, 300, "unigram")
    assert Subwords.train(chinese, 4006, "unigram").encode("一二")


def _encode_in_a_child(queue: multiprocessing.Queue) -> None:
    queue.put(TRAINED["bpe"].encode_all(TEXT))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_encodes_without_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    expected = TRAINED["bpe"].encode_all(TEXT)  # starts the threads that a child does not have
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue = context.Queue()
    child = context.Process(target=_encode_in_a_child, args=(queue,), daemon=True)
    child.start()
    try:
        assert queue.get(timeout=300) == expected
    finally:
        child.kill()
    assert "parallelism" not in capfd.readouterr().err


@each
def test_ids_beyond_are_refused(vocabulary: Vocabulary) -> None:
    size = len(vocabulary)
    for method in (vocabulary.decode, vocabulary.pieces, vocabulary.words):
        for id in (size, -1):
            with pytest.raises(
                ValueError,
                match=re.escape(f"vocabulary: ids[1] ({id}) must lie in 0 … {size - 1}; got one out of range."),
            ):
                method([5, id])


def test_error_messages(tmp_path: Path) -> None:
    for message, arguments in (
        ("subwords: kind ('wordpiece') must be one of bpe, unigram.", (TEXT, 100, "wordpiece")),
        ("subwords: size (5) must be at least 6; several thousand are typical.", (TEXT, 5, "bpe")),
        ("subwords: lines (0 words) must hold some text; got none.", (["", " "], 100, "bpe")),
        ("subwords: lines (0 words) must hold some text; got none.", ([], 100, "unigram")),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Subwords.train(*arguments)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=re.escape("characters: characters (3) must be one or more different characters; got")
    ):
        Characters("aba")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    TRAINED["bpe"].save(path)
    whole = path.read_text()
    foreign = json.loads(whole)
    foreign["added_tokens"] = []
    foreign["model"]["vocab"] = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}
    foreign["model"]["merges"] = []
    foreign["model"]["unk_token"] = None
    for content in (
        whole[: len(whole) // 2],
        "",
        "[]",
        "{}",
        '{"characters": 3}',
        '{"characters": "aa"}',
        json.dumps(foreign),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=re.escape(f"vocabulary: {path} must be a vocabulary in JSON")):
            load_vocabulary(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=re.escape(f"vocabulary: {path} must be")):
        Subwords.load(path)
