"""Recurrent layers by their equations match PyTorch, and charts show every gate at every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from regard.explain import draw, explain
from regard.explain.recorded_models import translator
from regard.explain.recurrent_steps import recurrence
from regard.models import Seq2Seq, Seq2SeqConfig

W, E, B, T = 3, 5, 4, 7


def by_equations(layer: Any, x: Any, hidden: Any) -> tuple[Tensor, ...]:
    """Return the arguments that `nn.GRU.forward` and `nn.LSTM.forward` pass."""
    sizes = (layer.bias, layer.num_layers, layer.dropout, layer.training, layer.bidirectional)
    if isinstance(x, PackedSequence):
        inputs: tuple[Any, ...] = (x.data, x.batch_sizes, hidden, layer._flat_weights, *sizes)
    else:
        inputs = (x, hidden, layer._flat_weights, *sizes, layer.batch_first)
    return recurrence("gru" if isinstance(layer, nn.GRU) else "lstm", inputs)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("form", ["time first", "batch first", "packed"])
def test_the_result_matches_pytorch(kind: Any, bias: bool, both: bool, layers: int, form: str) -> None:
    torch.manual_seed(0)
    layer = kind(W, E, layers, bias=bias, bidirectional=both, batch_first=form == "batch first").double().eval()
    x: Any = torch.randn((B, T, W) if form == "batch first" else (T, B, W), dtype=torch.float64)
    if form == "packed":
        x = pack_padded_sequence(x, torch.tensor([T, 5, 5, 1]))
    first = torch.randn(layers * (2 if both else 1), B, E, dtype=torch.float64)
    hidden = (first, torch.randn_like(first)) if kind is nn.LSTM else first
    outputs, last = layer(x, hidden)
    actual = by_equations(layer, x, hidden)
    expected = [outputs.data if form == "packed" else outputs, *(last if kind is nn.LSTM else (last,))]
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_every_gate_of_every_position_in_both_directions() -> None:
    chart = explain("bahdanau", "the cat")
    ways: dict[int, str] = {}
    for node in chart.nodes:
        ways[node.number] = f"{'' if node.parent is None else ways[node.parent]} > {node.name['en']}"
    actual = {way.partition(" > GRU > ")[2]: node for node, way in zip(chart.nodes, ways.values(), strict=True)}
    for direction in ("forward", "backward"):
        for position in ("place 1: the", "place 2: cat", "place 3: </s>"):
            for gate in ("reset gate", "update gate", "candidate", "new state"):
                node = actual[f"{direction} > {position} > {gate}"]
                assert chart.values[node.value].letters == ("B", "E"), gate
            side = actual[f"{direction} > {position} > reset gate > of the input"]
            assert [chart.values[one.value].letters for one in side.operands] == [("B", "W"), ("E", "W"), ("E",)]
    assert chart.values[actual["forward"].value].letters == ("Ts", "E")
    order = [way.rpartition(" > ")[2] for way in actual if way.startswith("backward > place") and way.count(" > ") == 1]
    assert order == ["place 3: </s>", "place 2: cat", "place 1: the"]
    assert not any(call.startswith(("aten.gru", "aten.lstm")) for node in chart.nodes for call in node.calls)


def test_letters_of_states_are_correct_if_sizes_are_equal() -> None:
    config = Seq2SeqConfig(9, 9, width=6, hidden=6, encoder_hidden=6, layers=2, tie="none")
    torch.manual_seed(0)
    model = Seq2Seq(config).eval()
    name = [f"t{n}" for n in range(9)]
    actual = translator(
        model, [4, 5, 3], [6, 3], lambda ids: [name[n] for n in ids], lambda ids: [name[n] for n in ids], ""
    )
    chart = draw(actual)
    sides = [node for node in chart.nodes if node.name["en"] == "of the input"]
    letters = {chart.values[node.operands[1].value].letters for node in sides}
    assert letters == {("E", "W"), ("E", "C"), ("S", "S")}
    states = {chart.values[node.value].letters for node in chart.nodes if node.name["en"] == "new state"}
    assert states == {("B", "E"), ("B", "S")}
    assert {"layer 1", "layer 2"} <= {node.name["en"] for node in chart.nodes}


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_translator_with_two_layers_is_explained_as_it_runs(cell: Any) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(9, 9, width=5, hidden=7, encoder_hidden=4, layers=2, cell=cell, tie="none")).eval()
    named = lambda ids: [f" {n}" for n in ids]  # noqa: E731
    source, written = [4, 5, 6, 3], [7, 8, 3]
    actual = translator(model, source, written, named, named, "")
    assert (actual.tokens["Ts"], actual.written) == (["␣4", "␣5", "␣6", "␣3"], ["␣7", "␣8", "␣3"])
    recording = actual.recorder.result
    assert recording.orphans() == []
    assert torch.equal(torch.cat(recording.replay()), actual.output)
    with torch.no_grad():
        fast = model(torch.tensor([source]), torch.tensor([4]), torch.tensor([[2, 7, 8]]), torch.tensor([3]))[0]
    torch.testing.assert_close(fast, actual.output, rtol=1e-5, atol=1e-6)
