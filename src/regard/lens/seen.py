"""What was seen: maps by the names of the modules that attended."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from .recorded_call import KINDS, Call, Kind

if TYPE_CHECKING:
    from ..pictures.figure import Picture
    from .head_profile import Profile
    from .patch_weights import Patches, Query
    from .rollout import Rollout

Layers: TypeAlias = int | str | Iterable[int | str] | None
"""Which attending modules: numbers in the order of their first call, names, or patterns such as "decoder.*"."""

NOTHING = (
    "seen: there is no map; the model must run inside the `with`, and attend through scaled_dot_product_attention, "
    "nn.MultiheadAttention, FlexAttention or regard.attend. Attention that is spelled out as matmul and softmax cannot "
    "be seen: with transformers, call model.set_attn_implementation('sdpa') or ('regard') first."
)


class Seen:
    """The maps of a watched model, in the order of the calls: a sequence, and a mapping by name.

        seen[3]                            the fourth map                       AttentionMap (B, H, Tq, Tk)
        seen["encoder.layer.3.attention"]  by name; a beginning is enough where only one module has it
        seen[2:5], seen.filter(…)          some of them, as another Seen

    A module that was called again has further entries, "name#2", "name#3", …; consecutive steps of a generation with a
    cache are one entry.

    >>> import regard
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> seen.names, seen.kinds, seen["self_attn"].shape
    (['self_attn'], ['self'], (1, 2, 5, 5))
    """

    def __init__(self, calls: Iterable[Call] = (), missed: Iterable[str] = ()) -> None:
        self.calls: list[Call] = []
        self._counts: dict[str, int] = {}
        self.missed: list[str] = list(missed)
        """Attention that was noticed and could not be kept, and why."""
        self._image: Tensor | None = None
        self.patches: Patches | None = None
        """How tokens lie on the picture."""
        for call in calls:
            self.add(call)

    def add(self, call: Call) -> None:
        """Append a call, under a name that no other has."""
        again = self._counts[call.module] = self._counts.get(call.module, 0) + 1
        call.name = call.module if again == 1 else f"{call.module}#{again}"
        self.calls.append(call)

    def remove(self, call: Call) -> None:
        """Take a call out again; the names of the others stay."""
        self.calls = [other for other in self.calls if other is not call]

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[AttentionMap]:
        return (call.map for call in self.calls)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._named(name))

    def __repr__(self) -> str:
        if not self.calls:
            return "Seen(nothing)"
        lines = [f"  {call.name}: {call.kind}, {'×'.join(map(str, call.request.shape))}" for call in self.calls]
        if len(lines) > 12:
            lines[6:-5] = [f"  … {len(lines) - 11} more …"]
        return "\n".join([f"Seen({len(self)} maps)", *lines])

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    @property
    def maps(self) -> list[AttentionMap]:
        """(B, H, Tq, Tk) each; lazy."""
        return list(self)

    @property
    def kinds(self) -> list[Kind]:
        """ "causal": no query looks past itself; "cross": queries and keys of different sequences; else "self"."""
        return [call.kind for call in self.calls]

    def keys(self) -> list[str]:
        return self.names

    def values(self) -> list[AttentionMap]:
        return self.maps

    def items(self) -> list[tuple[str, AttentionMap]]:
        return list(zip(self.names, self.maps, strict=True))

    @overload
    def __getitem__(self, at: int | str) -> AttentionMap: ...
    @overload
    def __getitem__(self, at: slice) -> Seen: ...
    def __getitem__(self, at: int | str | slice) -> AttentionMap | Seen:
        if isinstance(at, slice):
            return self._some(self.calls[at])
        if isinstance(at, str):
            return self._one(at).map
        if not -len(self) <= at < len(self):
            raise IndexError(NOTHING if not self else f"seen: index {at} must lie in 0…{len(self) - 1}.")
        return self.calls[at].map

    def _named(self, name: str) -> list[Call]:
        """The call of this name; else those of modules whose name begins so."""
        exact = [call for call in self.calls if call.name == name]
        return exact or [call for call in self.calls if _below(call.module, name)]

    def _one(self, name: str) -> Call:
        found = self._named(name)
        modules = sorted({call.module for call in found})
        if len(modules) == 1:
            return found[0]
        if modules:
            raise KeyError(
                f"seen: {name!r} must name one module; got {_few(modules)}. Use seen.filter(layers={name!r})."
            )
        lost = [words for words in self.missed if words.startswith(name)]
        if not self.calls and not lost:
            raise KeyError(NOTHING)
        raise KeyError(lost[0] if lost else f"seen: {name!r} must name a module that attended; got {_few(self.names)}.")

    def filter(self, layers: Layers = None, kind: Kind | None = None, name: str | None = None) -> Seen:
        """Some of the maps, as another Seen over the same calls.

        Args:
            layers: numbers of attending modules in the order of their first call, names, or patterns.
            kind: "self", "causal" or "cross".
            name: a pattern, as in "*cross*".
        """
        if kind is not None and kind not in KINDS:
            raise ValueError(f"seen: kind ({kind!r}) must be one of {', '.join(KINDS)}.")
        modules = list(dict.fromkeys(call.module for call in self.calls))
        wanted = choice(layers)
        return self._some(
            call
            for call in self.calls
            if wanted(call.module, modules.index(call.module), len(modules))
            and (kind is None or call.kind == kind)
            and (name is None or fnmatchcase(call.name, name) or fnmatchcase(call.module, name))
        )

    def _some(self, calls: Iterable[Call]) -> Seen:
        some = Seen(missed=self.missed)
        some.calls = list(calls)  # names stay those of the whole
        some._image, some.patches = self._image, self.patches
        return some

    def tokens(self, query: Sequence[str] | None = None, key: Sequence[str] | None = None) -> Seen:
        """Name the tokens of every map whose lengths they fit; returns itself.

        For one sequence `query` is enough: it names both sides of "self" and "causal" maps. For an encoder and a
        decoder `query` is the target and `key` the source: they name cross-attention, the decoder's own maps get the
        target on both sides, the encoder's the source.

        Raises:
            ValueError: where they fit no map.
        """
        fitted = 0
        for call in self.calls:
            rows, cols = call.request.queries, call.request.keys
            pairs = [(query, key)] if call.kind == "cross" else [(query, query), (key, key)]
            if call.kind == "self":
                pairs.reverse()
            for one, other in [*pairs, (query, key)]:
                if (one is not None or other is not None) and _fits(one, rows) and _fits(other, cols):
                    call.query_tokens = call.query_tokens if one is None else [str(token) for token in one]
                    call.key_tokens = call.key_tokens if other is None else [str(token) for token in other]
                    fitted += 1
                    break
        if self.calls and not fitted and (query is not None or key is not None):
            given = ", ".join(f"{n} {len(x)}" for n, x in (("query", query), ("key", key)) if x is not None)
            sizes = sorted({(call.request.queries, call.request.keys) for call in self.calls})
            raise ValueError(
                f"seen: tokens ({given}) must be as many as the queries and keys of some map; got maps of "
                f"{_few([f'{a}×{b}' for a, b in sizes])}."
            )
        return self

    @property
    def image(self) -> Tensor | None:
        """The picture that a vision model looked at, uint8 (height, width, 3)."""
        return self._image

    @image.setter
    def image(self, image: Any) -> None:
        pixels = None if image is None else torch.as_tensor(_array(image))
        if pixels is not None and (pixels.ndim != 3 or pixels.shape[-1] != 3 or pixels.dtype != torch.uint8):
            raise ValueError(
                f"seen: image must be uint8 (height, width, 3); got {pixels.dtype} {tuple(pixels.shape)}. "
                "For a tensor (3, height, width) in 0…1: (x.permute(1, 2, 0) * 255).round().to(torch.uint8)."
            )
        self._image = pixels

    def save(self, path: str | Path) -> Path:
        """Write everything to a safetensors file; `regard.load_capture` reads it, on any machine."""
        from .captures import save

        return save(self, Path(path))

    def rollout(self, residual: float = 0.5, heads: str | int | Sequence[int] = "mean") -> Rollout:
        """What the last layer's tokens drew on, through all layers: see `regard.lens.rollout.Rollout`."""
        from .rollout import Rollout

        return Rollout.of(self.maps, residual, heads)

    def flow(
        self,
        source: int | Sequence[int] | None = None,
        target: int | Sequence[int] | None = None,
        *,
        residual: float = 0.5,
        heads: str | int | Sequence[int] = "mean",
        batch: int = 0,
    ) -> Tensor:
        """How much passes through each token of each layer on its way from source to target: (layers + 1, N)."""
        return self.rollout(residual, heads).flow(source, target, batch=batch)

    # Pictures: each in a file of its own, imported when it is asked for, and matplotlib with it.

    def grid(self, path: str | Path | None = None, *, layers: Layers = None, **options: Any) -> Picture:
        """Layers × heads as thumbnails; `layers` as in `filter`. Options: `regard.pictures.head_grid.grid`."""
        from ..pictures.figure import check_path
        from ..pictures.head_grid import grid

        path = None if path is None else check_path("grid", path)
        some = self if layers is None else self.filter(layers)
        if not self:
            raise ValueError(NOTHING)
        if not some:
            few = ", ".join(self.names[:4]) + (", …" if len(self) > 4 else "")
            raise ValueError(f"grid: layers ({layers!r}) must be some of the {len(self)} that were seen: {few}.")
        return grid(some.items(), path, **options)

    def profile(self, **options: Any) -> Profile:
        """Figures of every head: entropy, distance, shares on chosen tokens. See `regard.lens.head_profile.profile`."""
        from .head_profile import profile

        if not self:
            raise ValueError(NOTHING)
        return profile(self.items(), **options)

    def links(self, layer: int | str = -1, **options: Any) -> Picture:
        """The strongest links of a span of tokens, as lines. Options: `regard.pictures.link_diagram.links`."""
        from ..pictures.link_diagram import links

        return links(self[layer], **options)

    def alignment(self, layer: int | str = -1, **options: Any) -> Picture:
        """Words × words of one layer. Options: `regard.pictures.alignment_matrix.alignment`."""
        from ..pictures.alignment_matrix import alignment

        return alignment(self[layer], **options)

    def patch_weights(
        self,
        layer: int | str = -1,
        head: int | str = "mean",
        query: Query = None,
        rollout: bool = False,
        batch: int = 0,
        **options: Any,
    ) -> tuple[Tensor, tuple[int, int] | None]:
        """Weights on the patches of a picture, (rows, columns), and the patch of the query. Arguments: `overlay`."""
        from .patch_weights import patch_weights

        if not self:
            raise ValueError(NOTHING)
        if options and not rollout:
            raise ValueError(f"overlay: {', '.join(options)} must come with rollout=True.")
        through = self.rollout(**options) if rollout else None
        return patch_weights(self[layer], self.patches, head, query, batch, through)

    def overlay(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        layer: int | str = -1,
        head: int | str = "mean",
        query: Query = None,
        rollout: bool = False,
        batch: int = 0,
        title: str | None = None,
        **options: Any,
    ) -> Picture:
        """The picture that was looked at, beside itself under what one query drew on.

        `image` must be set; `patches` tells how tokens lie on it, and may be left out where they make a square, with
        or without a class token in front.

        Args:
            path: also save the picture there (.png, .svg or .pdf).
            layer, head: which map; a number, or "mean" of all heads.
            query: a token's number, or (row, column) of a patch, which is framed; None: the class token, and without
                one what all patches look at on average.
            rollout: through all layers (see `rollout`, which takes the `options`) instead of one.

        Raises:
            ValueError: without an image, where tokens do not fit it, for choices that there are not.
        """
        from ..pictures.figure import check_path
        from ..pictures.image_overlay import overlay

        path = None if path is None else check_path("overlay", path)
        if self.image is None:
            raise ValueError(
                "overlay: seen.image (None) must be the picture that was looked at, uint8 (height, width, 3)."
            )
        weights, mark = self.patch_weights(layer, head, query, rollout, batch, **options)
        if title is None:
            name = self.names[layer] if isinstance(layer, int) else layer
            heads = "mean of heads" if head == "mean" else f"head {head}"
            title = f"rollout of {len(self)} layers" if rollout else f"{name}, {heads}"
        return overlay(self.image.numpy(), weights.numpy(), path, title, mark)

    def _repr_html_(self) -> str:
        from ..pictures.notebook_html import of_layers

        return of_layers(list(zip(self.names, self.kinds, self.maps, strict=True)))


class choice:
    """Whether a module is one of the chosen layers."""

    def __init__(self, layers: Layers) -> None:
        self.all = layers is None
        given: list[int | str] = []
        if layers is not None:
            given = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
        for one in given:
            if isinstance(one, bool) or not isinstance(one, int | str):
                raise ValueError(
                    f"watch: layers ({one!r}) must be numbers, names or patterns; got {type(one).__name__}."
                )
        self.numbers = {one for one in given if isinstance(one, int)}
        self.patterns = [one for one in given if isinstance(one, str)]

    def __call__(self, module: str, number: int, count: int = 0) -> bool:
        if self.all or number in self.numbers or (count and number - count in self.numbers):
            return True
        return any(_below(module, pattern) or fnmatchcase(module, pattern) for pattern in self.patterns)


def _below(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _fits(tokens: Sequence[str] | None, size: int) -> bool:
    return tokens is None or len(tokens) == size


def _array(image: Any) -> Any:
    if isinstance(image, Tensor):
        return image
    import numpy

    return numpy.array(image)  # a copy: a picture of PIL lends its pixels read-only


def _few(names: Sequence[str], most: int = 8) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
