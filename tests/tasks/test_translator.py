"""An interpreter: text to text, in the order given, with what it looked at."""

import pytest
import torch

from regard.models import Seq2Seq, Seq2SeqConfig
from regard.tasks.translation import Translate
from regard.tasks.translator import Interpreter, _batches

TEXTS = ["the cat sees a dog", "bird", "", "a dog", "the bird sees the cat"]


@pytest.mark.parametrize("size", [1, 3])
def test_translations_come_in_the_order_of_the_texts(trained: Translate, size: int) -> None:
    interpreter = trained.interpreter
    together = interpreter.translate(TEXTS, size=size, longest=20, tokens=30)  # several batches
    alone = [interpreter.translate([text], size=size, longest=20)[0] for text in TEXTS]
    assert [[one.text for one in found] for found in together] == [[one.text for one in found] for found in alone]
    assert [found[0].source for found in together] == TEXTS
    assert together[0][0].text == "le chat voit un chien"


@pytest.mark.parametrize("size", [1, 3])
def test_batches_side_by_side_find_the_same_and_leave_the_mode_alone(trained: Translate, size: int) -> None:
    interpreter, before = trained.interpreter, torch.get_num_threads()
    found = []
    for threads, training in ((1, True), (2, True), (2, False)):
        torch.set_num_threads(threads)
        trained.model.train(training)  # with dropout the translations would differ
        found.append(interpreter.translate(TEXTS * 4, size=size, longest=20, tokens=30))
        assert trained.model.training is training and torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_the_best_come_first(trained: Translate) -> None:
    [found] = trained.interpreter.translate(["the cat sees a dog"], size=4, n_best=3, longest=20)
    assert len({one.text for one in found}) == 3
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_maps_have_the_tokens_and_the_weights_of_each_step(trained: Translate) -> None:
    interpreter = trained.interpreter
    [[one]] = interpreter.translate(["the cat sees a dog"], size=1, longest=20)
    (seen,) = interpreter.look([one])
    assert seen.key_tokens[-1] == "</s>" == seen.query_tokens[-1]
    assert "".join(seen.query_tokens[:-1]).replace("▁", " ").strip() == one.text
    weights = seen.dense()
    assert weights.shape[-2:] == (len(one.written) + 1, len(one.read))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("step", ["output", "input"])
def test_alignments_are_between_words(trained: Translate, step: str) -> None:
    [[one]] = trained.interpreter.translate(["the cat sees a dog"], size=1, longest=20)
    [(links, weights)] = trained.interpreter.align([one], step=step)
    assert weights.shape == (5, 5) and sorted(target for _, target in links) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("head", [None, 0])
def test_alignments_of_many_are_those_of_each(trained: Translate, head: int | None) -> None:
    texts = ["the cat sees a dog", "a dog", "the dog sees the cat and a dog", ""]
    ones = [found[0] for found in trained.interpreter.translate(texts, size=1, longest=20)]
    together = trained.interpreter.align(ones, head=head)
    for one, (links, weights) in zip(ones, together, strict=True):
        [(alone, wanted)] = trained.interpreter.align([one], head=head)
        assert links == alone
        torch.testing.assert_close(weights, wanted, rtol=1e-4, atol=1e-5)


def test_a_pair_that_is_known_is_aligned_as_if_it_had_been_written(trained: Translate) -> None:
    [[one]] = trained.interpreter.translate(["the cat sees a dog"], size=1, longest=20)
    pair = trained.interpreter.known(one.source, one.text)
    assert (pair.read, pair.written) == (one.read, one.written)
    assert trained.interpreter.align([pair])[0].links == trained.interpreter.align([one])[0].links


def test_a_model_without_attention_has_nothing_to_show(trained: Translate) -> None:
    source, target = trained.interpreter.source, trained.interpreter.target
    fixed = Seq2Seq(Seq2SeqConfig(len(source), len(target), width=8, hidden=8, encoder_hidden=8, context="fixed"))
    interpreter = Interpreter(fixed.eval(), source, target)
    [[one]] = interpreter.translate(["a dog"], size=1, longest=5)
    assert interpreter.look([one]) == [] and interpreter.align([one]) == []


def test_batches_are_by_length_and_lose_nobody() -> None:
    lengths = [3, 9, 1, 4, 4, 2]
    found = list(_batches(lengths, 9))
    assert sorted(place for batch in found for place in batch) == list(range(6))
    assert all(max(lengths[p] for p in batch) * len(batch) <= 9 for batch in found) and found[0] == [1]
    assert list(_batches([50], 9)) == [[0]]  # longer than a batch: alone
    assert list(map(len, _batches([1] * 7, 9, most=3))) == [3, 3, 1]
