"""The interface of translation models, for each kind of model."""

import dataclasses
import json
import re

import pytest
import torch
from torch import Tensor

from regard.data import BOS
from regard.models import EncoderDecoder, Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig
from regard.models.encoder_decoder import Memory
from tests.models.translators import ATTENTIVE, CONFIGS, LENGTHS, RECURRENT, TARGET, TS, B, T, build, sentences

WHOLE = torch.full((B,), T)
every = pytest.mark.parametrize("name", CONFIGS)


def assert_close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-10)


@every
def test_shapes(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    memory = model.encode(source, lengths)
    hidden, maps = model.decode(target, memory, return_maps=True)
    assert model.logits(hidden).shape == (B, T, TARGET)
    heads, count = (3, 2) if isinstance(model, Transformer) else (1, 0 if "fixed" in name else 1)
    assert [m.shape for m in maps] == [(B, heads, T, TS)] * count
    assert_close(model(source, lengths, target, torch.full((B,), T)), model.logits(hidden))
    model: EncoderDecoder = model  # what the search relies on


@every
def test_step_by_step_is_all_at_once(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    memory = model.encode(source, lengths)
    expected = model.logits(model.decode(target, memory))
    with torch.no_grad():
        state = model.begin(memory)
        for t in range(T):
            logits, state = model.step(target[:, t], state)
            assert_close(logits, expected[:, t].detach())


@every
def test_padding_has_no_effect(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    together = model(source, lengths, target, WHOLE)
    for b, length in enumerate(LENGTHS):
        one = slice(b, b + 1)
        assert_close(model(source[one, :length], lengths[one], target[one], WHOLE[one]), together[one])


@every
def test_the_future_leaves_the_past_alone(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    memory = model.encode(source, lengths)
    changed = target.clone()
    changed[:, 3:] = torch.randint(4, TARGET, (B, T - 3))
    before, after = model.decode(target, memory), model.decode(changed, memory)
    assert_close(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3:], before[:, 3:])


@every
def test_gradients_reach_every_parameter(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    logits = model(source, lengths, target, WHOLE)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), label
        # adding to every key moves all scores of a softmax alike: such biases have none
        if not re.search(r"attention\.key\.bias", label):
            assert parameter.grad.abs().sum() > 1e-14, label


@every
def test_observing_changes_nothing(name: str) -> None:
    model, (source, lengths, target) = build(name, torch.float32), sentences()
    memory = model.encode(source, lengths)
    assert torch.equal(model.decode(target, memory), model.decode(target, memory, return_maps=True)[0])


@every
def test_maps_are_distributions_over_the_source_alone(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    for m in model.decode(target, model.encode(source, lengths), return_maps=True)[1]:
        weights = m.dense()
        assert_close(weights.sum(-1), torch.ones(m.shape[:-1], dtype=torch.float64))
        for b, length in enumerate(LENGTHS):
            assert not weights[b, ..., length:].any()


@every
def test_reordering_a_state_with_hypotheses(name: str) -> None:
    # three hypotheses of each sentence: what a row goes on to is decided by its own past and its sentence alone
    model, (source, lengths, _) = build(name), sentences()
    memory, beams = model.encode(source, lengths), 3
    first, second = torch.randint(4, TARGET, (2, B * beams))
    begin, each = torch.tensor(BOS), torch.arange(B).repeat_interleave(beams)
    rows = torch.tensor([7, 6, 8, 2, 2, 0])  # sentence 2, then sentence 0
    with torch.no_grad():
        state = model.begin(memory)
        _, state = model.step(torch.full((B,), BOS), state)
        state.reorder(each)  # a sentence's one hypothesis becomes three
        _, state = model.step(first, state)
        state.reorder(rows, torch.tensor([2, 0]))
        result, state = model.step(second[:6], state)
        for index, row in enumerate(rows.tolist()):
            alone = memory.reorder(torch.tensor([row // beams]))
            tokens = torch.stack((begin, first[row], second[index]))[None]
            assert_close(result[index], model.logits(model.decode(tokens, alone))[0, -1])
        state.reorder(torch.tensor([1, 0, 2, 5, 5, 5]))  # within the sentences
        result, _ = model.step(second[:6], state)
        tokens = torch.stack((begin, first[rows[5]], second[5], second[3]))[None]
        assert_close(result[3], model.logits(model.decode(tokens, memory.reorder(torch.tensor([0]))))[0, -1])


@every
def test_saved_and_loaded(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    kept = json.loads(json.dumps(dataclasses.asdict(model.config)))
    kind, config = (Seq2Seq, Seq2SeqConfig) if isinstance(model, Seq2Seq) else (Transformer, TransformerConfig)
    again = kind(config(**kept)).double().eval()
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(source, lengths, target, WHOLE), model(source, lengths, target, WHOLE))


@every
def test_dropout_in_training_alone(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    config = dataclasses.replace(model.config, dropout=0.5)
    dropping = type(model)(config).double()
    dropping.load_state_dict(model.state_dict())
    one, other = (dropping(source, lengths, target, WHOLE) for _ in range(2))
    assert not torch.allclose(one, other)
    assert_close(dropping.eval()(source, lengths, target, WHOLE), model(source, lengths, target, WHOLE))


def test_tied_embeddings_are_one() -> None:
    tied = build("joint")
    assert tied.source.weight is tied.target.weight is tied.vocabulary.weight
    apart = build("learned")
    assert len({id(apart.source.weight), id(apart.target.weight), id(apart.vocabulary.weight)}) == 3
    half = build("additive")
    assert half.target.weight is half.vocabulary.weight is not half.source.weight


def test_memory_reorders_all_it_has() -> None:
    memory = Memory(torch.arange(6.0).view(3, 2, 1), torch.tensor([2, 1, 2]), torch.tensor([[0.0], [1.0], [2.0]]))
    taken = memory.reorder(torch.tensor([2, 0]))
    assert taken.states.flatten().tolist() == [4, 5, 0, 1] and taken.lengths.tolist() == [2, 2]
    assert taken.summary is not None and taken.summary.flatten().tolist() == [2, 0]


WRONG = [
    (RECURRENT, {"cell": "rnn"}, "seq2seq: cell ('rnn') must be one of gru, lstm."),
    (RECURRENT, {"context": "soft"}, "seq2seq: context ('soft') must be one of fixed, additive, dot, bilinear, cosine"),
    (RECURRENT, {"hidden": 0}, "seq2seq: hidden (0) must be at least 1."),
    (
        RECURRENT,
        {"context": "dot", "hidden": 9},
        "seq2seq: hidden (9) must be the width of the encoder's states (8)",
    ),
    (RECURRENT, {"tie": "all"}, "seq2seq: source_vocabulary (17) must be target_vocabulary (19) under tie='all'."),
    (RECURRENT, {"target_vocabulary": 3}, "seq2seq: target_vocabulary (3) must be more than 3"),
    (ATTENTIVE, {"heads": 5}, "transformer: width (12) must be divisible by heads (5); try 10 or 15."),
    (ATTENTIVE, {"tie": "both"}, "transformer: tie ('both') must be one of none, target, all."),
    (ATTENTIVE, {"position": "none"}, "transformer: position ('none') must be one of sinusoidal, learned, rotary."),
    (ATTENTIVE, {"activation": "elu"}, "transformer: activation ('elu') must be one of relu, gelu, silu."),
    (ATTENTIVE, {"decoder_layers": 0}, "transformer: decoder_layers (0) must be at least 1."),
    (ATTENTIVE, {"similarity": "near"}, "transformer: similarity ('near') must be one of dot, scaled_dot, cosine"),
    (ATTENTIVE, {"dropout": 2.0}, "transformer: dropout (2.0) must lie in [0, 1)"),
]


@pytest.mark.parametrize(("config", "change", "message"), WRONG, ids=lambda x: str(x)[:30])
def test_wrong_configurations(config, change: dict, message: str) -> None:
    kind = Seq2Seq if config is RECURRENT else Transformer
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(dataclasses.replace(config, **change))


@pytest.mark.parametrize("name", ["additive", "transformer"])
def test_wrong_inputs(name: str) -> None:
    model, (source, lengths, target) = build(name), sentences()
    where = "seq2seq" if name == "additive" else "transformer"
    for call, message in (
        (
            lambda: model.encode(source[0], lengths),
            f"{where}: ids (7) must be integers (batch, length)",
        ),
        (lambda: model.encode(source, lengths[:2]), f"{where}: lengths (2) must be 3 integers, one per sentence"),
        (lambda: model.encode(source, lengths - 2), f"{where}: lengths (0) must lie in 1…7, the length of ids (3×7)."),
        (lambda: model.encode(source, lengths + 1), f"{where}: lengths (8) must lie in 1…7"),
        (lambda: model.decode(target.double(), model.encode(source, lengths)), f"{where}: ids (3×5) must be integers"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()
