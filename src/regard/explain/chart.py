"""The chart of a recording: boxes in boxes, the tensors that flowed between them, and a small picture of each.

A box is a call of PyTorch by our code. Calls that only reshape or move numbers are no boxes but part of an edge; a
module or stage that makes one call is that box, under its own name.
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

from .box_names import INPUTS, MODULES, Name, name_of
from .mechanisms import Explained
from .recording import Frame, Operation, Recording, Shown

FULL = 32766
"""The code of the largest cell of a picture; below −FULL stands −∞, above FULL what is no number."""


@dataclass
class Operand:
    """A tensor that a box was given."""

    value: int
    """Its number among the values of the chart."""
    name: str = ""
    """Of a weight or an input."""
    sources: tuple[int, ...] = ()
    """The boxes it came from."""


@dataclass
class Node:
    number: int
    parent: int | None
    kind: str
    """box, group, input or output"""
    name: dict[str, str]
    equation: str = ""
    rule: str = ""
    time: int | None = None
    value: int | None = None
    """What it gave."""
    operands: list[Operand] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    """Of the recording."""
    calls: list[str] = field(default_factory=list)
    """The names of these."""
    open: bool = False


@dataclass
class Chart:
    """Nodes in the order in which they ran; every node after its parent.

    >>> from regard.explain import explain
    >>> chart = explain("scaled-dot")
    >>> [node.name["en"] for node in chart.nodes if node.kind == "box"]
    ['times', 'product', 'weighting', 'weighted sum']
    """

    title: str
    nodes: list[Node]
    edges: list[tuple[int, int, int]]
    """From, to, and the value that flowed."""
    values: list[Shown]
    moves: list[int]
    """Operations that are part of an edge."""
    steps: int
    tokens: dict[str, list[str]]
    written: list[str]

    def unfold(self, parts: Iterable[str]) -> None:
        """Open these parts and whatever they lie in, close all others: "GRU", "forward > place 2"; "all", "none".

        Raises:
            ValueError: for a part that the chart does not have.
        """
        ways: dict[int, list[str]] = {}
        groups = [node for node in self.nodes if node.kind == "group"]
        for node in groups:
            above = [] if node.parent is None else ways[node.parent]
            ways[node.number] = [*above, node.name["en"].partition(":")[0]]
            node.open = False
        for part in parts:
            wanted = [word.strip() for word in part.split(">")]
            found = [node for node in groups if part == "all" or ways[node.number][-len(wanted) :] == wanted]
            if not found and part != "none":
                names = ", ".join(dict.fromkeys(way[-1] for way in ways.values()))
                raise ValueError(f"explain: open ({part}) must be a part of {self.title}: all, none, or {names}.")
            for node in found:
                self._open_to(node)

    def _open_to(self, node: Node) -> None:
        node.open = True
        if node.parent is not None:
            self._open_to(self.nodes[node.parent])

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
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
    """The chart of what was recorded."""
    return _Drawing(explained).chart()


class _Drawing:
    def __init__(self, explained: Explained) -> None:
        self.explained = explained
        self.recording: Recording = explained.recorder.found
        self.kept = self.recording.kept()
        self.values: list[Shown] = []
        self.numbers: dict[object, int] = {}
        self.nodes: list[Node] = []
        self.edges: dict[tuple[int, int], int] = {}
        self.box_of: dict[int, int] = {}  # operation → node
        self.node_of_input: dict[str, int] = {}
        self.sources: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
        self.below: dict[Frame | None, list[Frame]] = defaultdict(list)
        for frame in explained.recorder.frames:
            self.below[frame.parent].append(frame)
        self.weights = _attention_weights(explained.recorder.frames)
        self.one_context = any(type(frame.of).__name__ == "FixedContext" for frame in explained.recorder.frames)

    def chart(self) -> Chart:
        by_frame: dict[int, list[Operation]] = defaultdict(list)
        for operation in self.kept:
            by_frame[operation.frame.number].append(operation)
        drawn = {number for number, found in by_frame.items() if any(not one.moves for one in found)}
        drawn |= self._only_moving(by_frame, drawn)
        for name in self._inputs_read():
            self._input(name)
        self._tree(None, None, by_frame, drawn)
        for node in self.nodes:
            if node.kind == "box":
                self._connect(node)
        self._outputs()
        self._groups()
        moves = [one.number for one in self.kept if one.number not in self.box_of]
        steps = max((node.time or 0 for node in self.nodes), default=0)
        edges = [(first, second, value) for (first, second), value in self.edges.items()]
        explained = self.explained
        return Chart(explained.title, self.nodes, edges, self.values, moves, steps, explained.tokens, explained.written)

    def _only_moving(self, by_frame: dict[int, list[Operation]], drawn: set[int]) -> set[int]:
        """Parts with a name that only hand numbers on, as a fixed context does: the last call of each is a box."""
        found = set()
        for frame in self.explained.recorder.frames:
            if frame.kind == "module" and type(frame.of).__name__ in MODULES and not self._boxes(frame, drawn):
                calls = [one.number for one in self.below[frame] if by_frame.get(one.number)]
                found |= set(calls[-1:])
        return found

    def _inputs_read(self) -> list[str]:
        """Inputs that what was kept reads, in the order they were given."""
        read = {tensor for operation in self.kept for tensor in operation.sources}
        return [name for number, name in self.recording.inputs.items() if number in read]

    def _input(self, name: str) -> None:
        (number,) = (tensor for tensor, known in self.recording.inputs.items() if known == name)
        tensor, letters = self.recording.tensors[number], self.explained.recorder.letters_of(number)
        value = self._value(self.explained.recorder.look(number, letters, tensor))
        time = int(name[1:]) + 1 if name[:1] == "y" and name[1:].isdecimal() else None
        written = self.explained.tokens.get("y", []) if time is not None else []
        told = f"{name}: {written[time - 1]}" if time is not None and written else name
        node = Node(len(self.nodes), None, "input", {"en": told, "zh": INPUTS.get(told, told)}, time=time, value=value)
        self.node_of_input[name] = node.number
        self.nodes.append(node)

    def _tree(
        self, frame: Frame | None, parent: int | None, by_frame: dict[int, list[Operation]], drawn: set[int]
    ) -> None:
        """The nodes below a frame, in the order in which they ran."""
        for child in self.below[frame]:
            boxes = self._boxes(child, drawn)
            if not boxes:
                continue
            if len(boxes) == 1 and child.kind in ("module", "stage", "call"):
                self._box(boxes[0], parent, by_frame, name_of(child) if child is not boxes[0] else None)
                continue
            name = self._at_token(child, name_of(child))
            node = self._node("group", name, parent, child)
            node.value = self._value(child.made[0]) if child.made else None
            names = {name.en, name.en.rstrip(" 0123456789")}
            node.open = not names.isdisjoint(self.explained.open)
            self._tree(child, node.number, by_frame, drawn)

    def _at_token(self, frame: Frame, name: Name) -> Name:
        """A place of the source with the token there."""
        tokens = self.explained.tokens.get("Ts", [])
        if frame.name != "place" or not isinstance(frame.of, int) or frame.of > len(tokens):
            return name
        return name._replace(en=f"{name.en}: {tokens[frame.of - 1]}", zh=f"{name.zh}：{tokens[frame.of - 1]}")

    def _boxes(self, frame: Frame, drawn: set[int]) -> list[Frame]:
        """The calls of a frame that are drawn, two at the most."""
        if frame.number in drawn:
            return [frame]
        found: list[Frame] = []
        for child in self.below[frame]:
            found += self._boxes(child, drawn)
            if len(found) > 1:
                break
        return found

    def _node(self, kind: str, name: Name, parent: int | None, frame: Frame) -> Node:
        equation = name.equation.replace("cᵢ", "c") if self.one_context else name.equation
        made = Node(len(self.nodes), parent, kind, {"en": name.en, "zh": name.zh}, equation, name.rule, frame.time)
        self.nodes.append(made)
        return made

    def _box(self, frame: Frame, parent: int | None, by_frame: dict[int, list[Operation]], named: Name | None) -> None:
        name = name_of(frame)
        if named is not None:
            name = Name(named.en, named.zh, named.equation or name.equation, name.rule or named.rule)
        if name.rule == "linear" and len(frame.given) == 2:
            name = name._replace(equation=name.equation.removesuffix(" + b"))
        node = self._node("box", name, parent, frame)
        for operation in by_frame[frame.number]:
            node.operations.append(operation.number)
            node.calls.append(str(operation.function).removesuffix(".default"))
            self.box_of[operation.number] = node.number
        if frame.made:
            node.value = self._value(frame.made[0])
        node.operands = [self._operand(shown, node.number) for shown in frame.given]

    def _value(self, shown: Shown) -> int:
        """The number of a value; one that is there already, to the bit, is not kept twice."""
        shown = replace(
            shown,
            letters=self.explained.recorder.letters_of(shown.tensor),  # they may be known only after the call
            scale=1.0 if shown.tensor in self.weights else shown.scale,
        )
        key = (shown.letters, shown.shape, shown.scale, shown.values.numpy().tobytes())
        if key not in self.numbers:
            self.numbers[key] = len(self.values)
            self.values.append(shown)
        return self.numbers[key]

    def _operand(self, shown: Shown, box: int) -> Operand:
        boxes, tensors = self._reach(shown.needs)
        if not shown.needs:
            tensors = frozenset({shown.tensor})
        names = [self.recording.weights.get(t) or self.recording.inputs.get(t, "") for t in sorted(tensors)]
        given = [self.node_of_input[name] for name in names if name in self.node_of_input]
        sources = (*sorted(boxes - {box}), *given)
        return Operand(self._value(shown), next((name for name in names if name), "") if not boxes else "", sources)

    def _reach(self, operations: Iterable[int]) -> tuple[frozenset[int], frozenset[int]]:
        """The boxes, and the tensors from outside, that operations come from, through those that only move."""
        boxes: frozenset[int] = frozenset()
        tensors: frozenset[int] = frozenset()
        for number in operations:
            found = self.sources.get(number)
            if found is None:
                if number in self.box_of:
                    found = frozenset({self.box_of[number]}), frozenset()
                else:
                    one = self.recording.operations[number]
                    reached, read = self._reach(one.needs)
                    found = reached, read | one.sources
                    self.sources[number] = found
            boxes, tensors = boxes | found[0], tensors | found[1]
        return boxes, tensors

    def _connect(self, node: Node) -> None:
        """Edges into a box: from what its operands came from, and from whatever else its operations read."""
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
        """What the model gave, after everything else."""
        many = len(self.recording.outputs) > 1
        for place, number in enumerate(self.recording.outputs, 1):
            needs = {self.recording.writers.get(number), self.recording.makers.get(number)} - {None}
            boxes, _ = self._reach(need for need in needs if need is not None)
            recorder = self.explained.recorder
            value = self._value(recorder.look(number, recorder.letters_of(number), self.recording.tensors[number]))
            name = f"output {place}" if many else "output"
            zh = f"输出 {place}" if many else "输出"
            time = place if many else None
            node = Node(len(self.nodes), None, "output", {"en": name, "zh": zh}, time=time, value=value)
            self.nodes.append(node)
            for box in sorted(boxes):
                self.edges[box, node.number] = value

    def _groups(self) -> None:
        """What a group was given from outside, and what it gave. A module tells what it gave; else it is, of all that
        is read from outside, the output; or what this step reads, not a later one; or the largest of what belongs to
        the sentences, as weights laid side by side do not."""
        told = {node.number for node in self.nodes if node.value is not None}
        above: dict[int, set[int]] = {}
        best: dict[int, tuple[bool, bool, bool, int]] = {}
        for node in self.nodes:
            above[node.number] = set() if node.parent is None else {node.parent, *above[node.parent]}
        for first, second, value in sorted((a, b, v) for (a, b), v in self.edges.items()):
            reader, made = self.nodes[second], self.nodes[first].value
            for group in (self.nodes[one] for one in above[first] - above[second] - told):
                if made is None:
                    continue
                now = group.time in (None, reader.time)
                ours = not {"B", "Ts"}.isdisjoint(self.values[made].letters)
                rank = reader.kind == "output", now, ours, math.prod(self.values[made].shape)
                if rank > best.get(group.number, ()):
                    best[group.number], group.value = rank, made
            for group in (self.nodes[one] for one in above[second] - above[first]):
                if all(first not in known.sources for known in group.operands):
                    group.operands.append(Operand(value, "", (first,)))


def _attention_weights(frames: Iterable[Frame]) -> set[int]:
    """The tensors that hold attention weights: the first factor of each weighted sum."""
    products = (frame for frame in frames if frame.parent is not None and frame.parent.name == "weighted sum")
    return {frame.given[0].tensor for frame in products if frame.name == "matmul" and frame.given}


def _value(shown: Shown) -> dict[str, Any]:
    """A tensor as the page has it: its letters, its shape, and its first cells as 16-bit numbers."""
    cells = shown.values
    finite = cells[cells.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return {
        "letters": list(shown.letters),
        "shape": list(shown.shape),
        "cells": list(cells.shape),
        "largest": largest,
        "scale": largest if shown.scale is None else shown.scale,
        "data": _packed(cells, largest),
    }


def _packed(cells: Tensor, largest: float) -> str:
    """Cells in base64: little-endian whole numbers of 16 bits, FULL for the largest.

    >>> _packed(torch.tensor([1.0, -0.5, -torch.inf]), 1.0)
    '/n8BwACA'
    """
    share = (cells / largest if largest else cells * 0).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    codes = (share * FULL).round()
    codes = torch.where(cells == -torch.inf, -32768.0, torch.where(cells.isfinite(), codes, 32767.0).double())
    return base64.b64encode(codes.to(torch.int16).contiguous().numpy().astype("<i2").tobytes()).decode()
