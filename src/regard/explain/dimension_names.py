"""Letters of the glossary for every dimension, propagated from inputs and weights through each operation.

    B batch   H heads (Hk of keys)   T tokens (Tq, Tk queries and keys; Ts source)   W width   D width of a head
    F feed-forward   S state of the decoder   C of the encoder   V vocabulary   P patches   K classes or predictions

A dimension is a product of letters: W = H·D if the heads are concatenated. Reshaping redistributes the letters, so they
are correct even if two sizes are equal. A dimension that no rule covers is looked up by its size. If several letters
have that size, the dimension is labelled with the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Atom = tuple[str, int]
Dim = tuple[Atom, ...]
"""Atoms whose sizes multiply to the size of the dimension; empty for a dimension of size 1 without a letter."""


class Letters:
    """The dimensions of every recorded tensor, by its id. The caller must keep the tensors alive."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)
        self._by_size = _unique(sizes)
        self._dims: dict[int, tuple[Dim, ...]] = {}

    def of(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the letters of a tensor."""
        return tuple(_format(dim) for dim in self._of(tensor))

    def assign(self, tensor: Tensor, letters: str) -> None:
        """Set the letters of a tensor: one word per dimension, separated by spaces; 1 for none."""
        named = letters.split()
        assert len(named) == tensor.ndim, f"{letters} for {tuple(tensor.shape)}"
        self._dims[id(tensor)] = tuple(
            () if name == "1" else self._dim(name, size) for name, size in zip(named, tensor.shape, strict=True)
        )

    def weight(self, tensor: Tensor, name: str, model: nn.Module) -> None:
        """Set the letters of a weight, depending on its layer."""
        owner, _, own = name.rpartition(".")
        above, _, attribute = owner.rpartition(".")
        around = type(model.get_submodule(above)).__name__
        named = WEIGHTS.get((around, f"{attribute}.{own}")) or WEIGHTS.get((around, attribute), "")
        if around == "MultiHeadAttention" and attribute in ("key", "value") and "Hk" in self._sizes:
            named = "Hk·D W"  # grouped heads
        letters = named.split()[: tensor.ndim]
        for index, letter in enumerate(letters):  # n·S: one state for each gate of the cell
            if letter.startswith("n·") and (one := self._sizes.get(letter[2:])):
                letters[index] = f"{tensor.shape[index] // one}{letter[1:]}"
        fits = len(letters) == tensor.ndim and all(
            self._sizes.get(letter, size) == size for letter, size in zip(letters, tensor.shape, strict=True)
        )
        if fits:
            self.assign(tensor, " ".join(letters))

    def follow(self, function: Any, args: Any, kwargs: Any, outputs: Sequence[Any]) -> None:
        """Set the letters of the outputs of an operation from those of its inputs."""
        name = function.overloadpacket.__name__
        for index, tensor in enumerate(outputs):
            if not isinstance(tensor, Tensor):
                continue
            try:
                dims = self._rule(name, args, tensor, index)
            except (IndexError, TypeError, ValueError):  # no rule applies: fall back to sizes
                dims = None
            sizes = tuple(tensor.shape)
            if dims is None or len(dims) != len(sizes):
                dims = tuple(self._size(size) for size in sizes)
            self._dims[id(tensor)] = tuple(
                dim if _size_of(dim) == size else self._part(dim, size) for dim, size in zip(dims, sizes, strict=True)
            )

    def unpacked(self, data: Tensor, padded: Tensor, batch_first: bool) -> None:
        """Set the letters of a padded batch from those of its packed rows. PyTorch copies them slice by slice."""
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
        return (self._atom(size),)

    def _part(self, dim: Dim, size: int) -> Dim:
        """Return a part of a dimension: S or 2·S of 3·S, the concatenated gates of a state; D/2, a half of D."""
        letter = _repeated_letter(dim)
        one = self._sizes.get(letter, 0)
        if letter == "D" and one == 2 * size:  # rotary positions rotate pairs
            return (("D/2", size),)
        if not one or not size or size % one:
            return self._size(size)
        return ((letter if size == one else f"{size // one}·{letter}", size),)

    def _atom(self, size: int) -> Atom:
        return self._by_size.get(size, str(size)), size

    def _rule(self, name: str, args: Any, out: Tensor, index: int) -> tuple[Dim, ...] | None:
        """Return the dimensions of an output by the rule of the operation, or by broadcasting if it has none."""
        inputs = [self._of(x) for x in tree_leaves(args) if isinstance(x, Tensor)]
        if not inputs:
            return None
        first = inputs[0]
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
                "slice"
                | "split"
                | "split_with_sizes"
                | "native_layer_norm"
                | "_fused_rms_norm"
                | "_softmax"
                | "clone"
                | "detach"
                | "alias"
            ):
                return first[: out.ndim]
            case "mm" | "bmm" | "addmm" | "baddbmm":
                return (*inputs[-2][:-1], inputs[-1][-1])
            case "topk":
                return (*first[:-1], (("K", out.shape[-1]),))
            case "mv":
                return first[:-1]
            case "embedding":
                return (*inputs[1], first[-1])
            case "index_select":
                at %= len(first)
                return (*first[:at], inputs[1][0], *first[at + 1 :])
            case "cat":
                return self._concatenate(inputs, at % out.ndim, out)
            case "stack":
                at %= out.ndim
                return (*first[:at], ((str(out.shape[at]), out.shape[at]),), *first[at:])
            case "_pack_padded_sequence":
                return (first[0 if args[2] is False else 1], first[-1]) if index == 0 else None
            case "sum" | "mean" | "amax" | "amin" | "argmax" | "any" | "all":
                if len(args) < 2 or at is None:
                    return ()
                return _without(first, at, kept=out.ndim == len(first))
        return self._broadcast(inputs, tuple(out.shape))

    def _broadcast(self, tensors: Sequence[tuple[Dim, ...]], shape: tuple[int, ...]) -> tuple[Dim, ...]:
        """Return the letters of the first operand that has one for each dimension, aligned from the right."""
        dims = []
        for back in range(len(shape), 0, -1):
            size = shape[-back]
            matches = [t[-back] for t in tensors if len(t) >= back and _size_of(t[-back]) == size and t[-back]]
            dims.append(_best(matches) or self._size(size))
        return tuple(dims)

    def _merge(self, dim: Dim) -> Dim:
        """Merge letters: H·D to W, rows times columns of patches to P, and key heads repeated for query heads to H."""
        repeated = len(dim) == 2 and dim[0][0] == "Hk" and dim[1][0] != "D"
        letter = "H" if repeated else JOINED.get(tuple(letter for letter, _ in dim))
        if letter is not None and self._sizes.get(letter) == _size_of(dim):
            return ((letter, _size_of(dim)),)
        return self._size(_size_of(dim)) if len(dim) > 1 and all(name.isdecimal() for name, _ in dim) else dim

    def _concatenate(self, inputs: Sequence[tuple[Dim, ...]], at: int, out: Tensor) -> tuple[Dim, ...]:
        dims = [_best([dims[back] for dims in inputs]) for back in range(out.ndim)]
        dims[at] = self._concatenate_dim([dims[at] for dims in inputs if len(dims) == out.ndim], out.shape[at])
        return tuple(dims)

    def _concatenate_dim(self, parts: Sequence[Dim], size: int) -> Dim:
        """Return the dimension of concatenated parts: C for E and E (two directions), 3·S for S and 2·S, else C+S+W."""
        names = [_format(part) for part in parts]
        letter = CONCATENATED.get(tuple(names))
        if letter is not None and self._sizes.get(letter) == size:
            return ((letter, size),)
        if all(name.isdecimal() for name in names):
            return ((str(size), size),)
        if len({_repeated_letter(part) for part in parts}) == 1 and any("·" in name for name in names):
            return self._part(parts[0], size)
        return (("+".join(names), size),) if len(names) < 4 else self._size(size)

    def regroup(self, dims: tuple[Dim, ...], shape: Sequence[int]) -> tuple[Dim, ...]:
        """Distribute the atoms, in order, over the dimensions of another shape."""
        atoms = [atom for dim in dims for atom in dim]
        result: list[Dim] = []
        for size in shape:
            taken: list[Atom] = []
            while _size_of(taken) < size:
                letter, held = atoms.pop(0)
                wanted = size // _size_of(taken)
                if held > wanted:  # split an atom: W = H · D
                    heads = letter == "W" and self._sizes.get("H") == wanted
                    rest = ("D", held // wanted) if heads else self._atom(held // wanted)
                    atoms[:0] = [("H", wanted) if heads else self._atom(wanted), rest]
                else:
                    taken.append((letter, held))
            if size == 1 and atoms and atoms[0][1] == 1:
                taken.append(atoms.pop(0))
            result.append(self._merge(tuple(taken)))
        return tuple(result)


def _unique(sizes: Mapping[str, int]) -> dict[int, str]:
    """Map sizes that only one letter has to that letter. H, Hk and D are omitted: they result from splitting W.

    >>> _unique({"T": 5, "W": 8, "F": 8, "H": 2})
    {5: 'T'}
    """
    letters = [letter for letter in sizes if letter not in ("H", "Hk", "D")]
    named = [sizes[letter] for letter in letters]
    return {sizes[letter]: letter for letter in letters if named.count(sizes[letter]) == 1}


def _best(dims: Sequence[Dim]) -> Dim:
    """Return the first dimension with a letter, else the first with a size above 1, else ()."""
    lettered = (dim for dim in dims if any(not name.isdecimal() for name, _ in dim))
    return next(lettered, None) or next((dim for dim in dims if dim), ())


def _without(dims: tuple[Dim, ...], at: int | Sequence[int], kept: bool = False) -> tuple[Dim, ...]:
    """Remove the dimensions at some positions, or replace them by 1 with `kept`."""
    removed = {one % len(dims) for one in ([at] if isinstance(at, int) else at)}
    return tuple(() if one in removed else dim for one, dim in enumerate(dims) if kept or one not in removed)


def _size_of(dim: Sequence[Atom]) -> int:
    size = 1
    for _, atom in dim:
        size *= atom
    return size


def _repeated_letter(dim: Dim) -> str:
    """Return S for S and for 3·S; an empty string for other dimensions."""
    if len(dim) != 1:
        return ""
    count, dot, letter = dim[0][0].partition("·")
    return letter if dot and count.isdecimal() else "" if dot else count


def _format(dim: Dim) -> str:
    letters = "·".join(letter for letter, _ in dim) or "1"
    return {"Yp·p": "Y", "Xp·p": "X"}.get(letters, letters)


JOINED: dict[tuple[str, ...], str] = {("H", "D"): "W", ("Yp", "Xp"): "P", ("2", "E"): "C"}
"""Letters of products: concatenated heads, rows and columns of patches (Y = Yp·p, X = Xp·p), encoder directions."""


CONCATENATED: dict[tuple[str, ...], str] = {("E", "E"): "C", ("1", "P"): "T", ("D/2", "D/2"): "D"}
"""Letters of concatenations: the states of both encoder directions, the class token before the patches, and the
rotated halves of a head."""


WEIGHTS: dict[tuple[str, str], str] = {
    **{("MultiHeadAttention", name): "W W" for name in ("query", "key", "value", "out")},
    ("FeedForward", "up"): "F W",
    ("FeedForward", "down"): "W F",
    ("GatedFeedForward", "gate"): "F W",
    ("GatedFeedForward", "up"): "F W",
    ("GatedFeedForward", "down"): "W F",
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
    ("GPT", "tokens"): "V W",
    ("GPT", "positions"): "N W",
    ("GPT", "norm"): "W",
    ("GPT", "vocabulary"): "V W",
    ("ViT", ".first"): "W",
    ("ViT", ".positions"): "T W",
    ("ViT", "patches"): "W C p p",
    ("ViT", "classifier"): "K W",
    ("ViT", "norm"): "W",
}
"""Letters of weights, by class of the parent module and layer or weight name. A bias has the first letter."""

RECURRENT: dict[str, dict[str, str]] = {
    "RecurrentEncoder": {"in": "W", "out": "E", "all": "C", "rows": "Ts"},
    "Seq2Seq": {"in": "S", "out": "S", "all": "S", "rows": "B"},
}
"""Letters of a recurrent layer, by class of the parent: input, state, states of all directions, rows."""
