"""BLEU and chrF: a perfect translation scores 100 in every script, and a worse one less."""

import pytest

from regard.tasks import bleu as module
from regard.tasks.bleu import References, bleu, tokenizer_for

REFERENCES = {
    "english": (["the cat sat on the mat", "a dog"], "13a"),
    "chinese": (["注意力机制很有用", "一只狗"], "zh"),
    "mixed": (["使用 PyTorch 训练 Transformer 模型"], "zh"),
    "japanese": (["注意機構はとても便利です"], "char"),
    "korean": (["주의 기제는 유용하다"], "char"),
    "thai": (["กลไกความสนใจมีประโยชน์"], "char"),
    "khmer": (["យន្តការយកចិត្តទុកដាក់"], "char"),
    "short": (["a dog", "the cat"], "13a"),
    "one word": (["dog"], "13a"),
    "short chinese": (["狗"], "zh"),
}


@pytest.fixture(autouse=True)
def without_mecab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without MeCab."""
    monkeypatch.setattr(module, "find_spec", lambda name: None)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_perfect_translation_scores_100_and_a_worse_one_less(name: str) -> None:
    texts, tokenizer = REFERENCES[name]
    references = References(texts)
    assert references.tokenizer == tokenizer
    assert references.bleu(texts) == pytest.approx(100) and references.chrf(texts) == pytest.approx(100)
    worse = [text[: len(text) // 2] for text in texts]
    assert references.bleu(worse) < 99 and references.chrf(worse) < 99
    assert references.bleu([""] * len(texts)) == 0
    assert f"tok:{tokenizer}|" in references.signatures["bleu"] and "nc:6" in references.signatures["chrf"]


def test_more_of_a_chinese_translation_scores_higher() -> None:
    references = References(["注意力机制在翻译中很有用"])
    scores = [references.bleu(["注意力机制在翻译中很有用"[:count]]) for count in (4, 6, 8, 10, 12)]
    assert scores == sorted(scores) and len(set(scores)) == len(scores) and scores[0] > 0


def test_mecab_is_used_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    assert tokenizer_for(REFERENCES["japanese"][0]) == "ja-mecab"
    assert tokenizer_for(REFERENCES["korean"][0]) == "ko-mecab"
    assert tokenizer_for(REFERENCES["thai"][0]) == "char"


def test_the_signature_of_13a_is_unchanged() -> None:
    score, signature = bleu(["the cat sat on the mat"], ["The cat sat on the mat"])
    assert score < 100 and signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"references \(0\) must hold at least one text"):
        References([])
    with pytest.raises(ValueError, match=r"tokenizer \('zh13'\) must be one of 13a, zh"):
        References(["a"], "zh13")
    with pytest.raises(ValueError, match=r"tokenizer \(ja-mecab\) must be installed; .* pip install 'sacrebleu\[ja\]'"):
        References(["a"], "ja-mecab")
    with pytest.raises(ValueError, match=r"number of translations \(2\) must equal the number of references \(1\)"):
        References(["a"]).bleu(["a", "b"])
