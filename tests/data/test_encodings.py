"""Every reader refuses text that is not UTF-8 and names the likely encoding."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest

from regard.data.documents import read_documents
from regard.data.encodings import check_share, is_utf8, likely_encoding
from regard.data.labelled_text import read_labelled
from regard.data.text_files import read_pairs

TEXTS = {
    "GB18030": ("gb18030", "注意力机制让模型在每一步都能看到整个句子。\n今天天气很好，我们去公园散步。\n"),
    "BIG5": ("big5", "注意力機制讓模型在每一步都能看到整個句子。\n今天天氣很好，我們去公園散步。\n"),
    "SHIFT_JIS": ("shift_jis", "注意機構は文全体を見ることができます。\n今日は天気がいいので公園を散歩しましょう。\n"),
    "EUC-JP": ("euc_jp", "注意機構は文全体を見ることができます。\n今日は天気がいいので公園を散歩しましょう。\n"),
    "EUC-KR": ("euc_kr", "오늘은 날씨가 좋아서 공원을 산책합니다.\n모델은 문장 전체를 볼 수 있습니다.\n"),
    "WINDOWS-1252": ("cp1252", "Der Fluß führt im Frühjahr „viel“ Wasser.\nÇa coûte déjà très cher à l’été.\n"),
    "WINDOWS-1251": ("cp1251", "Сегодня хорошая погода, мы гуляем в парке.\nМодель видит всё предложение.\n"),
    "KOI8-R": ("koi8_r", "Сегодня хорошая погода, мы гуляем в парке.\nМодель видит всё предложение.\n"),
    "UTF-16LE": ("utf-16-le", "A cat sees a dog.\nThe dog sees the cat.\n"),
    "UTF-16BE": ("utf-16-be", "A cat sees a dog.\nThe dog sees the cat.\n"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", TEXTS)
def test_the_likely_encoding_is_named(tmp_path: Path, name: str, packed: bool) -> None:
    codec, text = TEXTS[name]
    data = (text * 5).encode(codec)
    (tmp_path / "text").write_bytes(gzip.compress(data, mtime=0) if packed else data)
    assert likely_encoding(tmp_path / "text") == name


def test_binary_data_has_no_likely_encoding(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(byte for byte in range(128, 256) for _ in range(9)) + b"\n")
    assert likely_encoding(tmp_path / "noise") == "an unknown encoding"
    (tmp_path / "good").write_text("été\n", encoding="utf-8")
    assert likely_encoding(tmp_path / "good") == "UTF-8"


def write(path: Path, lines: Iterable[bytes], packed: bool) -> Path:
    data = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return path


READERS = {
    "pairs of one file": lambda path, share: list(read_pairs(path, badly_encoded=share)),
    "pairs of two files": lambda path, share: list(read_pairs([path, path], badly_encoded=share)),
    "labelled tsv": lambda path, share: list(read_labelled(path, badly_encoded=share)),
    "documents": lambda path, share: list(read_documents(path, "line", badly_encoded=share)),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("bad", "share"), [(64, 0.01), (2, 0.01), (1, 0.0), (51, 0.5)])
def test_every_reader_refuses_above_the_share(
    tmp_path: Path, reader: str, packed: bool, bad: int, share: float
) -> None:
    good = "été à la mer\tSommer".encode()
    lines = [good.decode().encode("cp1252") if number < bad else good for number in range(100)]
    path = write(tmp_path / ("text.tsv.gz" if packed else "text.tsv"), lines, packed)
    expected = (
        rf"text\.tsv.* must be UTF-8; got {bad} of 100 lines \({bad}%\) that are not: WINDOWS-1252, it seems\. Convert "
        rf"the file \(iconv -f WINDOWS-1252 -t UTF-8\), or drop such lines with --badly-encoded 0\.{bad + 1:02d}"
    )
    with pytest.raises(ValueError, match=expected.replace("0.10", "0.1")):
        READERS[reader](path, share)
    assert len(READERS[reader](path, bad / 100)) == 100 - bad  # as many as are allowed


def test_of_two_files_the_bad_one_is_named(tmp_path: Path) -> None:
    good = write(tmp_path / "text.en", [b"the cat"] * 9, False)
    bad = write(tmp_path / "text.zh", ["猫在看着狗".encode("gb18030")] * 9, False)
    with pytest.raises(
        ValueError, match=r"text\.zh must be UTF-8; got 9 of 9 lines \(100%\) that are not: GB18030, .*-t UTF-8\)\.$"
    ):
        list(read_pairs([good, bad], badly_encoded=0.01))


@pytest.mark.parametrize(("codec", "name"), [("utf-16", "UTF-16"), ("utf-32", "UTF-32")])
def test_a_byte_order_mark_says_it_at_once(tmp_path: Path, codec: str, name: str) -> None:
    (tmp_path / "text").write_bytes("a\tb\n".encode(codec))
    with pytest.raises(ValueError, match=rf"text must be UTF-8; got {name}\. Try `iconv -f {name} -t UTF-8`"):
        list(read_pairs(tmp_path / "text"))


def test_text_does_not_contain_nul() -> None:
    assert is_utf8("a–b".encode()) and not is_utf8(b"a\0") and not is_utf8(b"\xff")


def test_a_share_that_is_none() -> None:
    assert check_share(None) == check_share(0.0) == check_share(1.0) == []
    assert check_share(1.5) == [
        "data: badly_encoded (1.5) must be a share from 0 to 1; got 1.5. Try 0.01, the default.",
    ]
