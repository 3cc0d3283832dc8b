"""The chart of a recording: nested boxes, and the tensors that flow between them.

A box is a call of a PyTorch function. Calls that only reshape or copy data are not boxes but part of an edge. A module
or stage with a single call is drawn as that box, with the name of the module or stage.
"""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .box_names import INPUTS, MODULES, Name, name_of, without_bias
from .recorded_models import Explained
from .recording import Frame, Operation, Recording, TensorView

MAX_CODE = 32766
"""Code of the largest absolute value. Codes below −MAX_CODE mean −∞, codes above MAX_CODE mean +∞ or NaN."""


@dataclass
class Operand:
    """An input tensor of a box."""

    value: int
    """Index in the values of the chart."""
    name: str = ""
    """Name of the weight or the input, if it is one."""
    sources: tuple[int, ...] = ()
    """Boxes that computed it."""


@dataclass
class Node:
    """A box, group, input or output of a chart."""

    number: int
    parent: int | None
    kind: str
    """One of "box", "group", "input", "output"."""
    name: dict[str, str]
    equation: str = ""
    rule: str = ""
    time: int | None = None
    value: int | None = None
    """Index of its result in the values of the chart."""
    operands: list[Operand] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    """Numbers of its operations in the recording."""
    calls: list[str] = field(default_factory=list)
    """Names of these operations."""
    open: bool = False


@dataclass
class Chart:
    """A flowchart. Nodes are in execution order, and every node follows its parent.

    >>> from regard.explain import explain
    >>> chart = explain("scaled-dot")
    >>> [node.name["en"] for node in chart.nodes if node.kind == "box"]
    ['times', 'product', 'weighting', 'weighted sum']

    >>> chart.unfold(["none"])
    >>> any(node.open for node in chart.nodes)
    False
    >>> sorted(chart.to_dict())
    ['edges', 'nodes', 'steps', 'title', 'tokens', 'values', 'written']
    """

    title: str
    nodes: list[Node]
    edges: list[tuple[int, int, int]]
    """Source node, target node, and index of the value."""
    values: list[TensorView]
    moves: list[int]
    """Operations that belong to edges."""
    steps: int
    tokens: dict[str, list[str]]
    written: list[str]

    def unfold(self, parts: Iterable[str]) -> None:
        """Open these groups and their parents and close all others: "GRU", "forward > place 2"; "all", "none".

        Raises:
            ValueError: if the chart does not have such a group.
        """
        paths: dict[int, list[str]] = {}
        groups = [node for node in self.nodes if node.kind == "group"]
        for node in groups:
            above = [] if node.parent is None else paths[node.parent]
            paths[node.number] = [*above, node.name["en"].partition(":")[0]]
            node.open = False
        for part in parts:
            path = [name.strip() for name in part.split(">")]
            matches = [node for node in groups if part == "all" or paths[node.number][-len(path) :] == path]
            if not matches and part != "none":
                names = ", ".join(dict.fromkeys(path[-1] for path in paths.values()))
                raise ValueError(f"explain: open ({part}) must be a part of {self.title}: all, none, or {names}.")
            for node in matches:
                self._open_to(node)

    def _open_to(self, node: Node) -> None:
        node.open = True
        if node.parent is not None:
            self._open_to(self.nodes[node.parent])

    def _repr_svg_(self) -> str | None:
        """Return the drawing for a notebook; None without Node or the built page."""
        from . import chart_files

        try:
            return chart_files.drawing(self.to_dict())
        except (ValueError, FileNotFoundError):
            return None

    def to_dict(self) -> dict[str, object]:
        """Return the chart as JSON-compatible values."""
        return {
            "title": self.title,
            "nodes": [asdict(node) for node in self.nodes],
            "edges": self.edges,
            "values": [_value(value) for value in self.values],
            "steps": self.steps,
            "tokens": self.tokens,
            "written": self.written,
        }


def draw(explained: Explained) -> Chart:
    """Create the chart of a recorded run.

    >>> from regard.explain import MECHANISMS
    >>> draw(MECHANISMS["scaled-dot"].explain(None)).title
    'scaled dot attention'
    """
    return _Drawing(explained).chart()


class _Drawing:
    """Builds the chart of a recorded run."""

    def __init__(self, explained: Explained) -> None:
        self.explained = explained
        self.recording: Recording = explained.recorder.result
        self.relevant = self.recording.relevant_operations()
        self.values: list[TensorView] = []
        self.numbers: dict[object, int] = {}
        self.nodes: list[Node] = []
        self.edges: dict[tuple[int, int], int] = {}
        self.box_of: dict[int, int] = {}  # operation → node
        self.node_of_input: dict[str, int] = {}
        self.sources: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
        self.children: dict[Frame | None, list[Frame]] = defaultdict(list)
        for frame in explained.recorder.frames:
            self.children[frame.parent].append(frame)
        self.weights = _attention_weights(explained.recorder.frames)
        self.one_context = any(type(frame.of).__name__ == "FixedContext" for frame in explained.recorder.frames)

    def chart(self) -> Chart:
        by_frame: dict[int, list[Operation]] = defaultdict(list)
        for operation in self.relevant:
            by_frame[operation.frame.number].append(operation)
        drawn = {number for number, operations in by_frame.items() if any(not one.moves for one in operations)}
        drawn |= self._only_moving(by_frame, drawn)
        for name in self._inputs_read():
            self._input(name)
        self._tree(None, None, by_frame, drawn)
        for node in self.nodes:
            if node.kind == "box":
                self._connect(node)
        self._outputs()
        self._groups()
        moves = [one.number for one in self.relevant if one.number not in self.box_of]
        steps = max((node.time or 0 for node in self.nodes), default=0)
        edges = [(first, second, value) for (first, second), value in self.edges.items()]
        explained = self.explained
        return Chart(explained.title, self.nodes, edges, self.values, moves, steps, explained.tokens, explained.written)

    def _only_moving(self, by_frame: dict[int, list[Operation]], drawn: set[int]) -> set[int]:
        """Return the last call of each named module that only moves data, such as a fixed context."""
        frames = set()
        for frame in self.explained.recorder.frames:
            if frame.kind == "module" and type(frame.of).__name__ in MODULES and not self._boxes(frame, drawn):
                calls = [one.number for one in self.children[frame] if by_frame.get(one.number)]
                frames |= set(calls[-1:])
        return frames

    def _inputs_read(self) -> list[str]:
        """Return the inputs that the relevant operations read, in order."""
        read = {tensor for operation in self.relevant for tensor in operation.sources}
        return [name for number, name in self.recording.inputs.items() if number in read]

    def _input(self, name: str) -> None:
        (number,) = (tensor for tensor, known in self.recording.inputs.items() if known == name)
        value = self._value(self.explained.recorder.view(number))
        time = int(name[1:]) + 1 if name[:1] == "y" and name[1:].isdecimal() else None
        written = self.explained.tokens.get("y", []) if time is not None else []
        label = f"{name}: {written[time - 1]}" if time is not None and written else name
        names = {"en": label, "zh": INPUTS.get(label, label)}
        node = Node(len(self.nodes), None, "input", names, time=time, value=value)
        self.node_of_input[name] = node.number
        self.nodes.append(node)

    def _tree(
        self, frame: Frame | None, parent: int | None, by_frame: dict[int, list[Operation]], drawn: set[int]
    ) -> None:
        """Add the nodes of a frame's children, in execution order."""
        for child in self.children[frame]:
            boxes = self._boxes(child, drawn)
            if not boxes:
                continue
            if len(boxes) == 1 and child.kind in ("module", "stage", "call"):
                self._box(boxes[0], parent, by_frame, name_of(child) if child is not boxes[0] else None)
                continue
            name = self._at_token(child, name_of(child))
            node = self._node("group", name, parent, child)
            node.value = self._value(child.outputs[0]) if child.outputs else None
            names = {name.en, name.en.rstrip(" 0123456789")}
            node.open = not names.isdisjoint(self.explained.open)
            self._tree(child, node.number, by_frame, drawn)

    def _at_token(self, frame: Frame, name: Name) -> Name:
        """Add the token to the name of a source position."""
        tokens = self.explained.tokens.get("Ts", [])
        if frame.name != "place" or not isinstance(frame.of, int) or frame.of > len(tokens):
            return name
        return name._replace(en=f"{name.en}: {tokens[frame.of - 1]}", zh=f"{name.zh}：{tokens[frame.of - 1]}")

    def _boxes(self, frame: Frame, drawn: set[int]) -> list[Frame]:
        """Return the drawn calls of a frame, stopping after the second."""
        if frame.number in drawn:
            return [frame]
        boxes: list[Frame] = []
        for child in self.children[frame]:
            boxes += self._boxes(child, drawn)
            if len(boxes) > 1:
                break
        return boxes

    def _node(self, kind: str, name: Name, parent: int | None, frame: Frame) -> Node:
        equation = name.equation.replace("cᵢ", "c") if self.one_context else name.equation
        node = Node(len(self.nodes), parent, kind, {"en": name.en, "zh": name.zh}, equation, name.rule, frame.time)
        self.nodes.append(node)
        return node

    def _box(
        self, frame: Frame, parent: int | None, by_frame: dict[int, list[Operation]], group_name: Name | None
    ) -> None:
        name = name_of(frame)
        if group_name is not None:
            name = Name(
                group_name.en, group_name.zh, group_name.equation or name.equation, name.rule or group_name.rule
            )
        if name.rule == "linear" and len(frame.inputs) == 2:
            name = name._replace(equation=without_bias(name.equation))
        node = self._node("box", name, parent, frame)
        for operation in by_frame[frame.number]:
            node.operations.append(operation.number)
            node.calls.append(str(operation.function).removesuffix(".default"))
            self.box_of[operation.number] = node.number
        if frame.outputs:
            node.value = self._value(frame.outputs[0])
        node.operands = [self._operand(view, node.number) for view in frame.inputs]

    def _value(self, view: TensorView) -> int:
        """Return the index of a value. Values that are equal bit by bit are stored once."""
        view = replace(
            view,
            letters=self.explained.recorder.letters_of(view.tensor),  # some are known only after the call
            scale=1.0 if view.tensor in self.weights else view.scale,
        )
        key = (view.letters, view.shape, view.scale, view.values.numpy().tobytes())
        if key not in self.numbers:
            self.numbers[key] = len(self.values)
            self.values.append(view)
        return self.numbers[key]

    def _operand(self, view: TensorView, box: int) -> Operand:
        boxes, tensors = self._reach(view.needs)
        if not view.needs:
            tensors = frozenset({view.tensor})
        names = [self.recording.weights.get(t) or self.recording.inputs.get(t, "") for t in sorted(tensors)]
        inputs = [self.node_of_input[name] for name in names if name in self.node_of_input]
        sources = (*sorted(boxes - {box}), *inputs)
        return Operand(self._value(view), next((name for name in names if name), "") if not boxes else "", sources)

    def _reach(self, operations: Iterable[int]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the boxes and external tensors that operations depend on, through operations that only move data."""
        boxes: frozenset[int] = frozenset()
        tensors: frozenset[int] = frozenset()
        for number in operations:
            origin = self.sources.get(number)
            if origin is None:
                if number in self.box_of:
                    origin = frozenset({self.box_of[number]}), frozenset()
                else:
                    one = self.recording.operations[number]
                    reached, read = self._reach(one.needs)
                    origin = reached, read | one.sources
                    self.sources[number] = origin
            boxes, tensors = boxes | origin[0], tensors | origin[1]
        return boxes, tensors

    def _connect(self, node: Node) -> None:
        """Add the edges into a box: from the sources of its operands and of other tensors that its operations read."""
        for operand in node.operands:
            for source in operand.sources:
                self.edges.setdefault((source, node.number), operand.value)
        own = set(node.operations)
        needs = {need for number in own for need in self.recording.operations[number].needs} - own
        boxes, tensors = self._reach(needs)
        read = tensors | {tensor for number in own for tensor in self.recording.operations[number].sources}
        inputs = {self.node_of_input[self.recording.inputs[t]] for t in read if t in self.recording.inputs}
        for source in (boxes | inputs) - {node.number}:
            value = self.nodes[source].value
            self.edges.setdefault((source, node.number), 0 if value is None else value)

    def _outputs(self) -> None:
        """Add the output nodes."""
        many = len(self.recording.outputs) > 1
        for index, number in enumerate(self.recording.outputs, 1):
            needs = {self.recording.writers.get(number), self.recording.makers.get(number)} - {None}
            boxes, _ = self._reach(need for need in needs if need is not None)
            value = self._value(self.explained.recorder.view(number))
            name = f"output {index}" if many else "output"
            zh = f"输出 {index}" if many else "输出"
            time = index if many else None
            node = Node(len(self.nodes), None, "output", {"en": name, "zh": zh}, time=time, value=value)
            self.nodes.append(node)
            for box in sorted(boxes):
                self.edges[box, node.number] = value

    def _groups(self) -> None:
        """Set the operands and the value of each group.

        The value of a module is its output. For other groups it is the tensor read from outside that ranks highest:
        first an output of the model, then a tensor read in the same step, then one with a batch or source dimension
        (concatenated weights have none), then the largest.
        """
        known = {node.number for node in self.nodes if node.value is not None}
        above: dict[int, set[int]] = {}
        best: dict[int, tuple[bool, bool, bool, int]] = {}
        for node in self.nodes:
            above[node.number] = set() if node.parent is None else {node.parent, *above[node.parent]}
        for first, second, value in sorted((a, b, v) for (a, b), v in self.edges.items()):
            reader, result = self.nodes[second], self.nodes[first].value
            for group in (self.nodes[one] for one in above[first] - above[second] - known):
                if result is None:
                    continue
                same_step = group.time in (None, reader.time)
                has_tokens = not {"B", "Ts"}.isdisjoint(self.values[result].letters)
                rank = reader.kind == "output", same_step, has_tokens, math.prod(self.values[result].shape)
                if rank > best.get(group.number, ()):
                    best[group.number], group.value = rank, result
            for group in (self.nodes[one] for one in above[second] - above[first]):
                if all(first not in operand.sources for operand in group.operands):
                    group.operands.append(Operand(value, "", (first,)))


def _attention_weights(frames: Iterable[Frame]) -> set[int]:
    """Return the numbers of the attention weights: the first factor of each weighted sum."""
    products = (frame for frame in frames if frame.parent is not None and frame.parent.name == "weighted sum")
    return {frame.inputs[0].tensor for frame in products if frame.name == "matmul" and frame.inputs}


def _value(view: TensorView) -> dict[str, Any]:
    """Return a tensor in JSON form: its letters, its shape, and its first cells as 16-bit integers."""
    cells = view.values
    finite = cells[cells.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return {
        "letters": list(view.letters),
        "shape": list(view.shape),
        "cells": list(cells.shape),
        "largest": largest,
        "scale": largest if view.scale is None else view.scale,
        "data": _packed(cells, largest),
    }


def _packed(cells: Tensor, largest: float) -> str:
    """Encode cells in base64 as little-endian 16-bit integers, with MAX_CODE for the largest.

    >>> _packed(torch.tensor([1.0, -0.5, -torch.inf]), 1.0)
    '/n8BwACA'
    """
    fraction = (cells / largest if largest else cells * 0).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    codes = (fraction * MAX_CODE).round()
    codes = torch.where(cells == -torch.inf, -32768.0, torch.where(cells.isfinite(), codes, 32767.0).double())
    return base64.b64encode(codes.to(torch.int16).contiguous().numpy().astype("<i2").tobytes()).decode()
