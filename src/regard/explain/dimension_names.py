"""The glossary's letter of every dimension, followed from the inputs and weights through each operation.

    B batch   H heads   T tokens (Tq, Tk queries and keys; Ts source)   W width   D width of a head   F feed-forward
    S state of the decoder   C of the encoder   V vocabulary   P patches   K classes

A dimension is a product of letters, W = H·D where the heads are concatenated; reshaping redistributes the letters. So
the letters are right even if two sizes happen to be equal. A dimension that no rule covers is looked up by its size; if
several letters have that size, it stays a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Atom = tuple[str, int]
Dim = tuple[Atom, ...]
"""Atoms whose sizes multiply to that of the dimension; none for a 1 that stands for nothing."""


class Letters:
    """The dimensions of every tensor seen, by its id; whoever asks keeps the tensors alive."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)
        self._by_size = _unique(sizes)
        self._dims: dict[int, tuple[Dim, ...]] = {}

    def of(self, tensor: Tensor) -> tuple[str, ...]:
        return tuple(_told(dim) for dim in self._of(tensor))

    def give(self, tensor: Tensor, letters: str) -> None:
        """Letters of the dimensions, with spaces between; 1 for none."""
        named = letters.split()
        assert len(named) == tensor.ndim, f"{letters} for {tuple(tensor.shape)}"
        self._dims[id(tensor)] = tuple(
            () if name == "1" else self._dim(name, size) for name, size in zip(named, tensor.shape, strict=True)
        )

    def weight(self, tensor: Tensor, name: str, model: nn.Module) -> None:
        """Letters of a weight, by the layer it is in."""
        owner, _, own = name.rpartition(".")
        above, _, attribute = owner.rpartition(".")
        around = type(model.get_submodule(above)).__name__
        named = WEIGHTS.get((around, f"{attribute}.{own}")) or WEIGHTS.get((around, attribute), "")
        letters = named.split()[: tensor.ndim]
        for place, letter in enumerate(letters):  # n·S: as many states side by side as the cell has gates
            if letter.startswith("n·") and (one := self._sizes.get(letter[2:])):
                letters[place] = f"{tensor.shape[place] // one}{letter[1:]}"
        fits = len(letters) == tensor.ndim and all(
            self._sizes.get(letter, size) == size for letter, size in zip(letters, tensor.shape, strict=True)
        )
        if fits:
            self.give(tensor, " ".join(letters))

    def follow(self, function: Any, args: Any, kwargs: Any, given: Sequence[Any]) -> None:
        """Letters of what an operation gives, from those of what it was given."""
        name = function.overloadpacket.__name__
        for place, tensor in enumerate(given):
            if not isinstance(tensor, Tensor):
                continue
            try:
                dims = self._rule(name, args, tensor, place)
            except (IndexError, TypeError, ValueError):  # a form that no rule foresaw: sizes speak
                dims = None
            sizes = tuple(tensor.shape)
            if dims is None or len(dims) != len(sizes):
                dims = tuple(self._size(size) for size in sizes)
            self._dims[id(tensor)] = tuple(
                dim if _size_of(dim) == size else self._part(dim, size) for dim, size in zip(dims, sizes, strict=True)
            )

    def unpacked(self, data: Tensor, padded: Tensor, batch_first: bool) -> None:
        """Letters of a padded batch, from those of its packed rows: PyTorch copies them slice by slice."""
        rows, width = self._of(data)[0], self._of(data)[-1]
        batch = self._dim("B", padded.shape[0 if batch_first else 1])
        self._dims[id(padded)] = (batch, rows, width) if batch_first else (rows, batch, width)

    def _of(self, tensor: Tensor) -> tuple[Dim, ...]:
        known = self._dims.get(id(tensor))
        return known if known is not None else tuple(self._size(size) for size in tensor.shape)

    def _dim(self, name: str, size: int) -> Dim:
        parts = name.split("·")
        sizes = [self._sizes.get(part) for part in parts]
        if len(parts) > 1 and None not in sizes:
            return tuple(zip(parts, (int(n) for n in sizes if n), strict=True))
        return ((name, size),)

    def _size(self, size: int) -> Dim:
        if size == 1:
            return ()
        return (self._cut(size),)

    def _part(self, dim: Dim, size: int) -> Dim:
        """Some of a dimension: of 3·S, the gates of a state side by side, S or 2·S."""
        letter = _alike(dim)
        one = self._sizes.get(letter, 0)
        if not one or not size or size % one:
            return self._size(size)
        return ((letter if size == one else f"{size // one}·{letter}", size),)

    def _cut(self, size: int) -> Atom:
        return self._by_size.get(size, str(size)), size

    def _rule(self, name: str, args: Any, out: Tensor, place: int) -> tuple[Dim, ...] | None:
        """How the dimensions of a result follow, by operation; those of other operations are broadcast."""
        given = [self._of(x) for x in tree_leaves(args) if isinstance(x, Tensor)]
        if not given:
            return None
        first = given[0]
        at: Any = args[1] if len(args) > 1 else 0
        match name if name.startswith("_") else name.rstrip("_"):
            case "view" | "_unsafe_view" | "reshape" | "_reshape_alias":
                return self.regroup(first, out.shape)
            case "permute":
                return tuple(first[one] for one in at)
            case "t" | "transpose":
                dims = list(first)
                one, other = args[1:3] if len(args) > 2 else (0, len(dims) - 1)
                dims[one], dims[other] = dims[other], dims[one]
                return tuple(dims)
            case "unsqueeze":
                return (*first[: at % out.ndim], (), *first[at % out.ndim :])
            case "squeeze":
                return _without(first, args[1]) if out.ndim < len(first) else first
            case "select" | "unbind":
                return _without(first, at)
            case (
                "slice" | "split" | "split_with_sizes" | "native_layer_norm" | "_softmax" | "clone" | "detach" | "alias"
            ):
                return first[: out.ndim]
            case "mm" | "bmm" | "addmm" | "baddbmm":
                return (*given[-2][:-1], given[-1][-1])
            case "mv":
                return first[:-1]
            case "embedding":
                return (*given[1], first[-1])
            case "index_select":
                at %= len(first)
                return (*first[:at], given[1][0], *first[at + 1 :])
            case "cat":
                return self._concatenated(given, at % out.ndim, out)
            case "stack":
                at %= out.ndim
                return (*first[:at], ((str(out.shape[at]), out.shape[at]),), *first[at:])
            case "_pack_padded_sequence":
                return (first[0 if args[2] is False else 1], first[-1]) if place == 0 else None
            case "sum" | "mean" | "amax" | "amin" | "argmax" | "any" | "all":
                if len(args) < 2 or at is None:
                    return ()
                return _without(first, at, kept=out.ndim == len(first))
        return self._broadcast(given, tuple(out.shape))

    def _broadcast(self, tensors: Sequence[tuple[Dim, ...]], shape: tuple[int, ...]) -> tuple[Dim, ...]:
        """Each dimension is called as the first operand calls it that has a letter for it, counted from the right."""
        dims = []
        for back in range(len(shape), 0, -1):
            size = shape[-back]
            found = [t[-back] for t in tensors if len(t) >= back and _size_of(t[-back]) == size and t[-back]]
            dims.append(_best(found) or self._size(size))
        return tuple(dims)

    def _joined(self, dim: Dim) -> Dim:
        """H·D is W again, and rows times columns of patches are patches."""
        whole = JOINED.get(tuple(letter for letter, _ in dim))
        if whole is not None and self._sizes.get(whole) == _size_of(dim):
            return ((whole, _size_of(dim)),)
        return self._size(_size_of(dim)) if len(dim) > 1 and all(name.isdecimal() for name, _ in dim) else dim

    def _concatenated(self, given: Sequence[tuple[Dim, ...]], at: int, out: Tensor) -> tuple[Dim, ...]:
        dims = [_best([dims[back] for dims in given]) for back in range(out.ndim)]
        dims[at] = self._side_by_side([dims[at] for dims in given if len(dims) == out.ndim], out.shape[at])
        return tuple(dims)

    def _side_by_side(self, parts: Sequence[Dim], size: int) -> Dim:
        """The dimension of parts one after the other: C of both directions' E, 3·S of S and 2·S, C+S+W of others."""
        names = [_told(part) for part in parts]
        whole = CONCATENATED.get(tuple(names))
        if whole is not None and self._sizes.get(whole) == size:
            return ((whole, size),)
        if all(name.isdecimal() for name in names):
            return ((str(size), size),)
        if len({_alike(part) for part in parts}) == 1 and any("·" in name for name in names):
            return self._part(parts[0], size)
        return (("+".join(names), size),) if len(names) < 4 else self._size(size)

    def regroup(self, dims: tuple[Dim, ...], shape: Sequence[int]) -> tuple[Dim, ...]:
        """The same atoms in the same order under other dimensions."""
        atoms = [atom for dim in dims for atom in dim]
        found: list[Dim] = []
        for size in shape:
            taken: list[Atom] = []
            while _size_of(taken) < size:
                letter, held = atoms.pop(0)
                wanted = size // _size_of(taken)
                if held > wanted:  # an atom is cut: W = H · D
                    heads = letter == "W" and self._sizes.get("H") == wanted
                    rest = ("D", held // wanted) if heads else self._cut(held // wanted)
                    atoms[:0] = [("H", wanted) if heads else self._cut(wanted), rest]
                else:
                    taken.append((letter, held))
            if size == 1 and atoms and atoms[0][1] == 1:
                taken.append(atoms.pop(0))
            found.append(self._joined(tuple(taken)))
        return tuple(found)


def _unique(sizes: Mapping[str, int]) -> dict[int, str]:
    """Size → letter, for the sizes that only one letter has; H and D are left out, as they come of splitting W.

    >>> _unique({"T": 5, "W": 8, "F": 8, "H": 2})
    {5: 'T'}
    """
    letters = [letter for letter in sizes if letter not in ("H", "D")]
    named = [sizes[letter] for letter in letters]
    return {sizes[letter]: letter for letter in letters if named.count(sizes[letter]) == 1}


def _best(dims: Sequence[Dim]) -> Dim:
    """The first that has a letter, else the first that is more than a 1, else ()."""
    lettered = (dim for dim in dims if any(not name.isdecimal() for name, _ in dim))
    return next(lettered, None) or next((dim for dim in dims if dim), ())


def _without(dims: tuple[Dim, ...], at: int | Sequence[int], kept: bool = False) -> tuple[Dim, ...]:
    """The dimensions but those at some positions, which a reduction may keep as 1."""
    gone = {one % len(dims) for one in ([at] if isinstance(at, int) else at)}
    return tuple(() if one in gone else dim for one, dim in enumerate(dims) if kept or one not in gone)


def _size_of(dim: Sequence[Atom]) -> int:
    size = 1
    for _, atom in dim:
        size *= atom
    return size


def _alike(dim: Dim) -> str:
    """S of S and of 3·S; nothing of others."""
    if len(dim) != 1:
        return ""
    count, dot, letter = dim[0][0].partition("·")
    return letter if dot and count.isdecimal() else "" if dot else count


def _told(dim: Dim) -> str:
    letters = "·".join(letter for letter, _ in dim) or "1"
    return {"Yp·p": "Y", "Xp·p": "X"}.get(letters, letters)


JOINED: dict[tuple[str, ...], str] = {("H", "D"): "W", ("Yp", "Xp"): "P", ("2", "E"): "C"}
"""Concatenated heads; rows and columns of patches, Y = Yp·p and X = Xp·p; both directions of an encoder."""


CONCATENATED: dict[tuple[str, ...], str] = {("E", "E"): "C", ("1", "P"): "T"}
"""The states of both directions of an encoder; the class token before the patches."""


WEIGHTS: dict[tuple[str, str], str] = {
    **{("MultiHeadAttention", name): "W W" for name in ("query", "key", "value", "out")},
    ("FeedForward", "up"): "F W",
    ("FeedForward", "down"): "W F",
    ("Residual", "norm"): "W",
    ("Seq2Seq", "source"): "Vs W",
    ("Seq2Seq", "target"): "V W",
    ("Seq2Seq", "vocabulary"): "V W",
    ("Seq2Seq", "initial"): "S C",
    ("RecurrentState", "rnn.weight_ih_l0"): "n·S W+C",
    ("RecurrentState", "rnn"): "n·S S",
    ("AttentiveContext", "query"): "D S",
    ("AttentiveContext", "key"): "D C",
    ("AttentiveContext", "similarity"): "D",
    ("Output", "mix"): "W C+S+W",
    ("Transformer", "source"): "Vs W",
    ("Transformer", "target"): "V W",
    ("Transformer", "vocabulary"): "V W",
    ("Bert", "tokens"): "V W",
    ("Bert", "positions"): "N W",
    ("Bert", "segments"): "2 W",
    ("Bert", "norm"): "W",
    ("Bert", "pooler"): "W W",
    ("SequenceClassifier", "classes"): "K W",
    ("ViT", ".first"): "W",
    ("ViT", ".positions"): "T W",
    ("ViT", "patches"): "W C p p",
    ("ViT", "classifier"): "K W",
    ("ViT", "norm"): "W",
}
"""Letters of weights by the class around a layer and the layer, or the weight in it; a bias has the first of them."""

RECURRENT: dict[str, dict[str, str]] = {
    "RecurrentEncoder": {"in": "W", "out": "E", "all": "C", "rows": "Ts"},
    "Seq2Seq": {"in": "S", "out": "S", "all": "S", "rows": "B"},
}
"""Letters of a recurrent layer by the class around it: of what it reads, of a state, of those of all directions."""
