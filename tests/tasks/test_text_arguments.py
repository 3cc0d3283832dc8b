"""Texts and settings of a wrong type, passed to models in Python: refused with a message, never misread."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from regard.data import EOS, Characters, WordPiece
from regard.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    Sampling,
    SentenceEmbedder,
    Seq2Seq,
    Seq2SeqConfig,
    SequenceClassifier,
)
from regard.models.bert_heads import MaskedTokens
from regard.tasks import Embedder, LanguageModel, MaskedLanguageModel, TextClassifier, Translator

LETTERS = Characters("abcdefgh lownr")
WORDS = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
BERT = BertConfig(vocabulary=len(WORDS), width=12, heads=3, hidden=24, layers=2, positions=32)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocabulary=len(LETTERS), width=12, heads=3, layers=2, positions=32, tied=False)).eval()
    for parameter in gpt.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        gpt.vocabulary.weight[: EOS + 1] = 0  # special tokens are never the best
    seq2seq = Seq2Seq(Seq2SeqConfig(len(LETTERS), len(LETTERS), width=8, hidden=8, encoder_hidden=8)).eval()
    return {
        "language": LanguageModel(gpt, LETTERS),
        "translate": Translator(seq2seq, LETTERS, LETTERS),
        "classify": TextClassifier(SequenceClassifier(Bert(BERT), ["old", "new"]).eval(), WORDS, 32),
        "masked": MaskedLanguageModel(MaskedTokens(Bert(BERT, pooler=False)).eval(), WORDS),
        "embed": Embedder(SentenceEmbedder(Bert(BERT, pooler=False)).eval(), WORDS, 32),
    }


NAMES = ("language", "translate", "classify", "masked", "embed")
WRONG = [
    (None, "None"),
    (5, "5"),
    (float("nan"), "nan"),
    (b"a low", "b'a low'"),
    ([["a"]], "['a']"),
    (["a", None], "None"),
    ("a \ud800", "position 2"),
]


@pytest.mark.parametrize(("texts", "shown"), WRONG)
@pytest.mark.parametrize("name", NAMES)
def test_a_text_that_is_not_a_string_is_refused(models: dict[str, Any], name: str, texts: object, shown: str) -> None:
    for call in (models[name], models[name].maps):
        with pytest.raises(
            ValueError, match=r": texts?(\[\d\])? .*must be (a string|strings|Unicode text); got"
        ) as error:
            call(texts)
        assert shown in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_maps_of_a_list_are_refused(models: dict[str, Any], name: str) -> None:
    # a tokenizer would read a list of two texts as a pair
    with pytest.raises(ValueError, match=r"text \(\['a low', 'new'\]\) must be a string; got list"):
        models[name].maps(["a low", "new"])


def test_texts_from_a_generator_are_all_read(models: dict[str, Any]) -> None:
    def texts() -> Iterator[str]:
        yield from ["a low", "new"]

    calls: list[Callable[[Any], Any]] = [
        models["embed"],
        models["classify"].probabilities,
        lambda texts: models["language"](texts, max_new_tokens=3),
        lambda texts: models["translate"](texts, size=2, longest=4),
    ]
    for call in calls:
        one, other = call(texts()), call(["a low", "new"])
        assert len(one) == 2
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_stop_strings_from_a_generator_end_every_text(models: dict[str, Any]) -> None:
    language, options = models["language"], {"max_new_tokens": 12}
    first = language(["ab", "cd"], Sampling(temperature=0), **options)
    stop = [text[5] for text in first]
    expected = language(["ab", "cd"], Sampling(temperature=0), stop=stop, **options)
    assert expected != first
    assert language(["ab", "cd"], Sampling(temperature=0), stop=iter(stop), **options) == expected


@pytest.mark.parametrize("stop", [None, 5, [5], b"a", [b"a"], "a", [""]])
def test_stop_must_be_a_list_of_strings(models: dict[str, Any], stop: Any) -> None:
    with pytest.raises(ValueError, match=f"stop \\({re.escape(repr(stop))}\\) must be a list of strings"):
        models["language"]("ab", stop=stop)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": "1"}, r"temperature \('1'\) must be a number; got str"),
        ({"temperature": 10**400}, "temperature must be in the range of a float; got 401 digits"),
        ({"top_k": 2.5}, r"top_k \(2.5\) must be an integer; got float"),
        ({"top_k": True}, r"top_k \(True\) must be an integer; got bool"),
        ({"top_p": None}, r"top_p \(None\) must be a number; got NoneType"),
        ({"seed": 2.5}, r"seed \(2.5\) must be an integer; got float"),
    ],
)
def test_sampling_of_a_wrong_type_is_refused(models: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^generate: {message}"):
        models["language"]("ab", Sampling(**settings), max_new_tokens=2)


def test_numbers_of_numpy_are_accepted(models: dict[str, Any]) -> None:
    sampling = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.int64(2))  # type: ignore[arg-type]  # at run time
    text = models["language"]("ab", Sampling(temperature=0.5, top_k=3, seed=2), max_new_tokens=4)
    assert models["language"]("ab", sampling, max_new_tokens=np.int64(4)) == text


def test_other_arguments_of_a_wrong_type_are_refused(models: dict[str, Any]) -> None:
    for value in ("3", 2.5, None, True):
        with pytest.raises(ValueError, match=re.escape(f"max_new_tokens ({value!r}) must be an integer")):
            models["language"]("ab", max_new_tokens=value)
    with pytest.raises(ValueError, match=r"sampling \({'top_k': 3}\) must be a Sampling; got dict"):
        models["language"]("ab", {"top_k": 3})
    for name, value in (("size", "3"), ("size", 2.5), ("n_best", "x"), ("longest", 2.5)):
        with pytest.raises(ValueError, match=re.escape(f"{name} ({value!r}) must be an integer")):
            models["translate"].translate("ab", **{name: value})
    for value in ("x", None):
        with pytest.raises(ValueError, match=re.escape(f"length_penalty ({value!r}) must be a number")):
            models["translate"].translate("ab", length_penalty=value)
    with pytest.raises(ValueError, match=r"size \(2000\) must be at most 1,024"):
        models["translate"].translate("ab", size=2000)
