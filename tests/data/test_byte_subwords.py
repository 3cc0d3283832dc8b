"""Byte-level subwords and characters of language models: lossless, reproducible, with clear errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import ByteSubwords, Characters, load_vocabulary
from regard.data.byte_subwords import END

TEXTS = {
    "English": "First Citizen:\nBefore we proceed any further, hear me speak.\n",
    "Chinese": "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。",
    "emoji": "👩‍👩‍👧 🇳🇴 e\u0301 \u200b½",
    "white space": "\tone  two   three\r\n\n\n    four \u3000 \u00a0\n ",
    "special": f"the name {END} in a text <|im_start|>",
}
TRAINED = ByteSubwords.train([TEXTS["English"] * 20, TEXTS["Chinese"] * 5], 320)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_restored_exactly(name: str) -> None:
    text = TEXTS[name]
    assert TRAINED.decode(TRAINED.encode(text)) == text
    assert TRAINED.encode_all([text, text[::-1]]) == [TRAINED.encode(text), TRAINED.encode(text[::-1])]
    letters = Characters.train([text])
    composed = text.replace("e\u0301", "é")  # NFC
    assert letters.decode(letters.encode(text)) == composed
    assert len(letters.encode(text)) == len(composed)


@given(st.text())
def test_any_text_is_restored(text: str) -> None:
    assert TRAINED.decode(TRAINED.encode(text)) == text


def test_sizes_and_the_special_token() -> None:
    assert 300 < len(TRAINED) <= 320
    assert TRAINED.end == 0 and TRAINED.pieces([0]) == [END] and TRAINED.decode([0, 0]) == ""
    assert 0 not in TRAINED.encode(f"{END}{END}")
    assert TRAINED.words([*TRAINED.encode("we  speak any"), 0])[-1] == -1


def test_words_begin_with_their_space() -> None:
    ids = TRAINED.encode("any  further\nproceed")
    words = TRAINED.words(ids)
    joined = [
        "".join(p for p, w in zip(TRAINED.pieces(ids), words, strict=True) if w == n) for n in range(words[-1] + 1)
    ]
    assert joined == ["any", "  further", "\nproceed"]


def test_parts_of_a_character_are_shown_as_bytes() -> None:
    assert TRAINED.pieces(TRAINED.encode("½")) == ["<0xC2>", "<0xBD>"]
    assert TRAINED.decode(TRAINED.encode("½")[:1]) == "�"


def test_the_same_text_gives_the_same_vocabulary_in_another_process(tmp_path: Path) -> None:
    """Ties between equally frequent pairs must not depend on hash seeds."""
    code = (
        "import sys; from regard.data import ByteSubwords;"
        "text = ''.join(chr(97 + i * i % 23) + ' ' * (i % 3) for i in range(4000));"
        "ByteSubwords.train([text, text[::-1]], 400).save(sys.argv[1])"
    )
    for name in ("a", "b"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_word_without_end_is_cut_in_training() -> None:
    """Training time is quadratic in the length of a word: this text would take minutes."""
    subwords = ByteSubwords.train(["ab" * 200_000], 300)
    assert subwords.decode(subwords.encode("ab" * 1000)) == "ab" * 1000


def test_files_are_loaded_by_kind(tmp_path: Path) -> None:
    TRAINED.save(tmp_path / "bytes.json")
    Characters("ab").save(tmp_path / "characters.json")
    loaded = load_vocabulary(tmp_path / "bytes.json")
    assert isinstance(loaded, ByteSubwords) and isinstance(load_vocabulary(tmp_path / "characters.json"), Characters)
    assert loaded.encode(TEXTS["Chinese"]) == TRAINED.encode(TEXTS["Chinese"])


def test_errors_name_the_value(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"size \(256\) must be at least 257: the bytes and <\|endoftext\|>\."):
        ByteSubwords.train(["a"], 256)
    with pytest.raises(ValueError, match=r"ids\[1\] \(999\) must lie in 0 … \d+"):
        TRAINED.decode([1, 999])
    path = tmp_path / "damaged.json"
    TRAINED.save(path)
    config = json.loads(path.read_text())
    config["pre_tokenizer"] = {"type": "Whitespace"}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} must be a vocabulary in JSON; got .*ByteLevel"):
        ByteSubwords.load(path)
