"""Charts are complete: no operation is missing, the last box is the output, and values match the fast path."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from regard.explain import MECHANISMS, Chart, Explained, draw, explain
from regard.explain.chart import MAX_CODE
from regard.explain.operation_recorder import Recorder, first_cells
from regard.explain.recording import MOVES
from regard.models import greedy

NAMES = list(MECHANISMS)


@cache
def explained(name: str) -> Explained:
    return MECHANISMS[name].explain(None)


@cache
def charted(name: str) -> Chart:
    return draw(explained(name))


@pytest.mark.parametrize("name", NAMES)
def test_replay_from_the_inputs_is_bit_identical(name: str) -> None:
    actual = explained(name)
    again = torch.cat([output.flatten() for output in actual.recorder.result.replay()])
    assert torch.equal(again, actual.output.flatten())
    assert actual.recorder.result.orphans() == []


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_in_one_box_or_part_of_an_edge(name: str) -> None:
    chart, recording = charted(name), explained(name).recorder.result
    boxed = [number for node in chart.nodes for number in node.operations]
    assert len(boxed) == len(set(boxed))
    assert sorted([*boxed, *chart.moves]) == [operation.number for operation in recording.relevant_operations()]
    for number in chart.moves:
        assert recording.operations[number].function.overloadpacket.__name__ in MOVES


@pytest.mark.parametrize("name", NAMES)
def test_edges_cover_all_data_flow(name: str) -> None:
    """The inputs of an operation come from the same box or through an edge, possibly via moves."""
    chart, recording = charted(name), explained(name).recorder.result
    box_of = {number: node.number for node in chart.nodes for number in node.operations}
    edges = {(first, second) for first, second, _ in chart.edges}

    def origins(number: int) -> set[int]:
        if number in box_of:
            return {box_of[number]}
        return set().union(*(origins(need) for need in recording.operations[number].needs), set())

    for operation in recording.relevant_operations():
        if operation.number in box_of:
            box = box_of[operation.number]
            for need in operation.needs:
                assert all(origin == box or (origin, box) in edges for origin in origins(need))
    boxes = {node.number for node in chart.nodes if node.kind == "box"}
    assert boxes <= {first for first, _ in edges}, "a box without a reader"


@pytest.mark.parametrize("name", NAMES)
def test_the_last_box_is_the_output_of_the_model(name: str) -> None:
    chart, actual = charted(name), explained(name)
    outputs = [node for node in chart.nodes if node.kind == "output"]
    rows = actual.output if len(outputs) > 1 else actual.output[None]
    assert len(outputs) == len(rows) if len(outputs) > 1 else chart.nodes[-1] is outputs[-1]
    for node, desired in zip(outputs, rows, strict=True):
        shown = chart.values[node.value]
        assert torch.equal(shown.values, first_cells(desired.reshape(shown.shape)))
        (box,) = [first for first, second, _ in chart.edges if second == node.number]
        assert torch.equal(chart.values[chart.nodes[box].value].values.flatten(), shown.values.flatten())


@pytest.mark.parametrize("name", ["scaled-dot", "masked", "hard", "encoder-block"])
def test_omitting_any_computing_operation_is_detected(name: str) -> None:
    actual = explained(name)
    recording, desired = actual.recorder.result, actual.output.flatten()
    computing = [operation for operation in recording.relevant_operations() if not operation.moves]
    missed = []
    for operation in computing:
        try:
            again = torch.cat([output.flatten() for output in recording.replay(leave_out=operation.number)])
        except KeyError:  # a later operation needs its output
            continue
        if torch.equal(again, desired):
            missed.append(str(operation.function))
    assert not missed


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_never_shows_uninitialized_memory(name: str) -> None:
    expected = explain(name).to_dict()
    torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN or the largest integer
    try:
        assert explain(name).to_dict() == expected
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_hidden_operation_is_an_orphan() -> None:
    """Tensors from outside of PyTorch's dispatcher are reported."""
    x = torch.randn(3, 4)
    with Recorder(None, {"x": (x, "N W")}).recording() as recorder:
        hidden = torch.from_numpy(x.numpy() * 2)
        recorder.output(hidden + 1)
    assert any("(3, 4)" in line for line in recorder.result.orphans())


@pytest.mark.parametrize("name", NAMES)
def test_the_values_match_the_fast_path(name: str) -> None:
    """The reference backend and the selected backend agree within rounding."""
    actual = explained(name)
    model, inputs = actual.recorder._model, {name: tensor for tensor, name in actual.recorder.result.inputs.items()}
    tensors = {name: actual.recorder.result.tensors[number] for name, number in inputs.items()}
    with torch.no_grad():
        if name in ("bahdanau", "encoder-decoder", "transformer"):
            steps = [tensors[f"y{step}"] for step in range(len(actual.output))]
            written = torch.stack(steps, 1)  # (1, steps)
            lengths = torch.tensor([written.shape[1]])
            fast = model(tensors["source"], tensors["length"], written, lengths)[0]
        elif "query" in tensors:
            return  # there is no model: `attend` itself is compared by the tests of the operator
        else:
            fast = model(next(iter(tensors.values())), **({"is_causal": True} if name == "masked" else {}))
        if name == "gpt":
            fast = fast[:, -1].softmax(-1).topk(5).values
    assert torch.allclose(fast, actual.output, rtol=1e-4, atol=2e-5)


def test_a_decoder_explains_the_tokens_of_the_search() -> None:
    actual = explained("transformer")
    recording = actual.recorder.result
    source = recording.tensors[next(n for n, name in recording.inputs.items() if name == "source")]
    (best,) = greedy(actual.recorder._model, source, torch.tensor([source.shape[1]]), longest=len(actual.written) - 1)
    assert [int(row.argmax()) for row in actual.output][: len(best.tokens)] == list(best.tokens)


def test_cells_are_kept_to_a_30000th_of_the_largest() -> None:
    import base64

    import numpy as np

    chart = charted("masked")
    for value, response in zip(chart.values, chart.to_dict()["values"], strict=True):
        codes = np.frombuffer(base64.b64decode(response["data"]), "<i2").astype(float)
        cells = value.values.flatten().numpy()
        finite = np.isfinite(cells)
        assert (
            np.abs(codes[finite] / MAX_CODE * response["largest"] - cells[finite]).max(initial=0)
            <= response["largest"] / 60_000
        )
        assert (codes[cells == -np.inf] == -32768).all()


def test_explaining_a_model_does_not_change_it() -> None:
    actual = explained("multi-head")
    model = actual.recorder._model
    assert isinstance(model, nn.Module)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    from regard.core import trace

    assert trace._listener is None
