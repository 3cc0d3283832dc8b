"""Words of texts in any script."""

import pytest

from regard.data.scripts import script_of, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the cat  sat", ["the", "cat", "sat"]),
        ("注意力机制很有用", [*"注意力机制很有用"]),
        ("使用 PyTorch 训练。", ["使", "用", "PyTorch", "训", "练", "。"]),
        ("BERT的注意力", ["BERT", "的", "注", "意", "力"]),
        ("ひらがなカナ", [*"ひらがなカナ"]),
        ("주의 기제", ["주의", "기제"]),
        ("ความ", ["ค", "ว", "า", "ม"]),
        ("ที่", ["ที่"]),
        ("ສະບາຍ", ["ສ", "ະ", "ບ", "າ", "ຍ"]),
        ("ស្រី", ["ស្រី"]),
        ("မြန်မာ", ["မြ", "န်", "မာ"]),
        ("cafe\u0301 au lait", ["cafe\u0301", "au", "lait"]),
        ("", []),
        ("\u0301", ["\u0301"]),
    ],
)
def test_words_and_characters(text: str, words: list[str]) -> None:
    assert split_words(text) == words
    assert "".join(split_words(text)) == "".join(text.split())


@pytest.mark.parametrize(
    ("texts", "script"),
    [
        (["the cat"], "spaced"),
        (["кошка", "γάτα", "قطة", "बिल्ली"], "spaced"),
        (["使用 PyTorch 和 TensorFlow 训练 Transformer 模型"], "chinese"),
        (["the word 注意 means attention, and so on and so forth for a long time"], "spaced"),
        (["東京へ行く"], "japanese"),
        (["東京大学"] * 9 + ["東京へ行くことにした"], "japanese"),
        (["주의 기제는 유용하다"], "korean"),
        (["กลไกความสนใจ"], "unspaced"),
        (["ກົນໄກ"], "unspaced"),
        (["យន្តការ"], "unspaced"),
        (["ယန္တရား"], "unspaced"),
        ([], "spaced"),
        (["123", "…"], "spaced"),
    ],
)
def test_script_of(texts: list[str], script: str) -> None:
    assert script_of(texts) == script
