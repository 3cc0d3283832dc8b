"""Translators: translations in input order, with attention maps and alignments."""

import re

import pytest
import torch

from regard.data.text_batches import padded_batches
from regard.models import Seq2Seq, Seq2SeqConfig
from regard.tasks.translation import Translate
from regard.tasks.translator import Interpreter, SearchOptions, Translator

TEXTS = ["the cat sees a dog", "bird", "", "a dog", "the bird sees the cat"]


@pytest.mark.parametrize("size", [1, 3])
def test_translations_have_the_order_of_the_texts(trained: Translate, size: int) -> None:
    translator = trained.translator
    together = translator.translate(TEXTS, size=size, longest=20, tokens=30)  # several batches
    alone = [translator.translate([text], size=size, longest=20)[0] for text in TEXTS]
    assert [[one.text for one in best] for best in together] == [[one.text for one in best] for best in alone]
    assert [best[0].source for best in together] == TEXTS
    assert together[0][0].text == "le chat voit un chien"


@pytest.mark.parametrize("size", [1, 3])
def test_parallel_batches_give_the_same_result_and_keep_the_mode(trained: Translate, size: int) -> None:
    translator, before = trained.translator, torch.get_num_threads()
    results = []
    for threads, training in ((1, True), (2, True), (2, False)):
        torch.set_num_threads(threads)
        trained.model.train(training)  # with dropout the translations would differ
        results.append(translator.translate(TEXTS * 4, size=size, longest=20, tokens=30))
        assert trained.model.training is training and torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"size": 0}, "beam: size (0) must be at least 1"), ({"length_penalty": 300.0}, "length_penalty (300.0) must")],
)
@pytest.mark.parametrize("texts", [["a dog"], []])
def test_invalid_search_options_are_refused(
    trained: Translate, texts: list[str], options: SearchOptions, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        trained.translator.translate(texts, **options)


def test_translations_are_sorted_by_score(trained: Translate) -> None:
    [best] = trained.translator.translate(["the cat sees a dog"], size=4, n_best=3, longest=20)
    assert len({one.text for one in best}) == 3
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)


def test_maps_have_the_tokens_and_the_weights_of_each_step(trained: Translate) -> None:
    translator = trained.translator
    [[one]] = translator.translate(["the cat sees a dog"], size=1, longest=20)
    (attention,) = translator.look([one])
    assert attention.key_tokens[-1] == "</s>" == attention.query_tokens[-1]
    assert "".join(attention.query_tokens[:-1]).replace("▁", " ").strip() == one.text
    weights = attention.dense()
    assert weights.shape[-2:] == (len(one.written) + 1, len(one.read))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("step", ["output", "input"])
def test_alignments_are_between_words(trained: Translate, step: str) -> None:
    [[one]] = trained.translator.translate(["the cat sees a dog"], size=1, longest=20)
    [(links, weights)] = trained.translator.align([one], step=step)
    assert weights.shape == (5, 5) and sorted(target for _, target in links) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("head", [None, 0])
def test_batched_alignments_equal_single_ones(trained: Translate, head: int | None) -> None:
    texts = ["the cat sees a dog", "a dog", "the dog sees the cat and a dog", ""]
    ones = [best[0] for best in trained.translator.translate(texts, size=1, longest=20)]
    together = trained.translator.align(ones, head=head)
    for one, (links, weights) in zip(ones, together, strict=True):
        [(alone, wanted)] = trained.translator.align([one], head=head)
        assert links == alone
        torch.testing.assert_close(weights, wanted, rtol=1e-4, atol=1e-5)


def test_a_known_pair_is_aligned_like_a_translation(trained: Translate) -> None:
    [[one]] = trained.translator.translate(["the cat sees a dog"], size=1, longest=20)
    pair = trained.translator.known(one.source, one.text)
    assert (pair.read, pair.written) == (one.read, one.written)
    assert trained.translator.align([pair])[0].links == trained.translator.align([one])[0].links


def test_a_model_without_attention_has_no_maps(trained: Translate) -> None:
    source, target = trained.translator.source, trained.translator.target
    fixed = Seq2Seq(Seq2SeqConfig(len(source), len(target), width=8, hidden=8, encoder_hidden=8, context="fixed"))
    translator = Translator(fixed.eval(), source, target)
    [[one]] = translator.translate(["a dog"], size=1, longest=5)
    assert not translator.attends and translator.look([one]) == [] and translator.align([one]) == []
    assert translator.translate("a dog", size=1, longest=5, return_maps=True) == ([one], [])
    with pytest.raises(ValueError, match="model must have attention; got one with a fixed context"):
        translator.align(one)


@pytest.mark.parametrize("step", ["output", "input"])
def test_translate_returns_maps_and_align_uses_them(trained: Translate, step: str) -> None:
    translator, decoded = trained.translator, []
    plain = translator.translate(TEXTS, size=3, n_best=2, longest=20)
    handle = trained.model.register_forward_hook(lambda *_: None)  # no fast copy: every pass is counted
    decode = trained.model.decode
    trained.model.decode = lambda target, *args, **kw: (decoded.append(len(target)), decode(target, *args, **kw))[1]
    try:
        translations, maps = translator.translate(TEXTS, size=3, n_best=2, longest=20, return_maps=True)
        assert decoded == [1] * 10
        aligned = translator.align(translations, step=step, maps=maps)
        assert decoded == [1] * 10  # the model is not run again
        alone, (attention, _) = translator.translate(TEXTS[0], size=3, n_best=2, longest=20, return_maps=True)
    finally:
        handle.remove()
        del trained.model.decode
    assert [[one.text for one in best] for best in translations] == [[one.text for one in best] for best in plain]
    assert [len(some) for some in maps] == [2] * 5
    assert [one.text for one in alone] == [one.text for one in translations[0]]
    # products of another batch size round differently
    assert [one.score for one in alone] == pytest.approx([one.score for one in translations[0]], rel=1e-4)
    torch.testing.assert_close(attention.dense(), maps[0][0].dense())
    for one, expected in zip(aligned, translator.align(translations, step=step), strict=True):
        assert one.links == expected.links
        torch.testing.assert_close(one.weights, expected.weights, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"number of maps \(2\) must equal the number of translations \(10\)"):
        translator.align(translations, maps=maps[0])


def test_the_deprecated_name_still_works() -> None:
    assert Interpreter is Translator


def test_batches_are_sorted_by_length_and_complete() -> None:
    lengths = [3, 9, 1, 4, 4, 2]
    batches = list(padded_batches(lengths, 9))
    assert sorted(index for batch in batches for index in batch) == list(range(6))
    assert all(max(lengths[i] for i in batch) * len(batch) <= 9 for batch in batches) and batches[0] == [1]
    assert list(padded_batches([50], 9)) == [[0]]  # longer than a batch: alone
    assert list(map(len, padded_batches([1] * 7, 9, most=3))) == [3, 3, 1]
