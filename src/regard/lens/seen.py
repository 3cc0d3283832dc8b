"""The recorded attention maps of a watched model, by module name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..core import widget_hook
from ..core.messages import check_tokens, counted, few
from ..core.tensors import shape_of
from ..core.widget_hook import Widget
from .layer_filter import LayerFilter, Layers, is_below
from .recorded_call import KINDS, Call, Kind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from PIL.Image import Image

    from ..pictures.alignment_matrix import AlignmentOptions
    from ..pictures.figure import Picture
    from ..pictures.head_grid import GridOptions
    from ..pictures.link_diagram import LinkOptions
    from .head_profile import Profile, ProfileOptions
    from .patch_weights import Patches, Query
    from .rollout import Rollout, RolloutOptions

NO_MAPS = (
    "seen: there is no map; the model must run inside the `with` block and call scaled_dot_product_attention, "
    "nn.MultiheadAttention, FlexAttention or regard.attend. Attention computed by matmul and softmax cannot be "
    "recorded: with transformers, call model.set_attn_implementation('sdpa') or ('regard') first."
)


class Seen:
    """The maps of a watched model, in the order of the calls: a sequence, and a mapping by name.

        seen[3]                            the fourth map                       AttentionMap (B, H, Tq, Tk)
        seen["encoder.layer.3.attention"]  by name, or by a prefix that only one module has
        seen[2:5], seen.filter(…)          a subset, as another Seen

    Repeated calls of a module are named "name#2", "name#3", …. Consecutive steps of a generation with a cache form one
    map.

    >>> import regard
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> seen.names, seen.kinds, seen["self_attn"].shape
    (['self_attn'], ['self'], (1, 2, 5, 5))

    >>> [m.shape for m in seen.maps], seen.keys() == seen.names, seen.values()[0].shape, seen.items()[0][0]
    ([(1, 2, 5, 5)], True, (1, 2, 5, 5), 'self_attn')

    Select, label and save:

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> len(seen.filter(kind="cross")), seen.tokens(list("abcde"))[0].query_tokens
    (0, ['a', 'b', 'c', 'd', 'e'])
    >>> regard.load_capture(seen.save(folder / "seen.safetensors")).names
    ['self_attn']

    Summaries and pictures:

    >>> seen.rollout().row(0).shape, seen.flow(source=2).shape, seen.profile()["entropy"].shape
    (torch.Size([5]), torch.Size([2, 5]), torch.Size([1, 2]))
    >>> pictures = [seen.grid(folder / "grid.png"), seen.links(path=folder / "links.png", top=1), seen.alignment()]
    >>> sorted(path.name for path in folder.glob("*.png"))
    ['grid.png', 'links.png']
    """

    def __init__(self, calls: Iterable[Call] = (), missed: Iterable[str] = ()) -> None:
        self.calls: list[Call] = []
        self._counts: dict[str, int] = {}
        self.missed: list[str] = list(missed)
        """Attention calls that could not be recorded, with the reason."""
        self._image: Tensor | None = None
        self.patches: Patches | None = None
        """The layout of the tokens on the image."""
        for call in calls:
            self.add(call)

    def add(self, call: Call) -> None:
        """Append a call under a unique name.

        >>> import regard
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> with regard.watch(model) as seen:
        ...     y = model(torch.randn(1, 5, 8))
        >>> both = Seen()
        >>> both.add(seen.calls[0])
        >>> both.names
        ['self_attn']
        """
        again = self._counts[call.module] = self._counts.get(call.module, 0) + 1
        call.name = call.module if again == 1 else f"{call.module}#{again}"
        self.calls.append(call)

    def remove(self, call: Call) -> None:
        """Remove a call. The names of the others do not change.

        >>> import regard
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> with regard.watch(model) as seen:
        ...     y = model(torch.randn(1, 5, 8))
        >>> seen.remove(seen.calls[0])
        >>> seen
        Seen(nothing)
        """
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
        lines = [f"  {call.name}: {call.kind}, {shape_of(call.request.shape)}" for call in self.calls]
        if len(lines) > 12:
            lines[6:-5] = [f"  … {len(lines) - 11} more …"]
        return "\n".join([f"Seen({counted(len(self), 'map')})", *lines])

    @property
    def names(self) -> list[str]:
        """The names of the calls, in order."""
        return [call.name for call in self.calls]

    @property
    def maps(self) -> list[AttentionMap]:
        """The attention maps, (B, H, Tq, Tk) each. Weights are computed lazily."""
        return list(self)

    @property
    def kinds(self) -> list[Kind]:
        """The kind of each map: "causal", "cross" (queries and keys are of different sequences) or "self"."""
        return [call.kind for call in self.calls]

    def keys(self) -> list[str]:
        """Return the names of the calls, as for a dictionary."""
        return self.names

    def values(self) -> list[AttentionMap]:
        """Return the attention maps, as for a dictionary."""
        return self.maps

    def items(self) -> list[tuple[str, AttentionMap]]:
        """Return (name, map) pairs, as for a dictionary."""
        return list(zip(self.names, self.maps, strict=True))

    @overload
    def __getitem__(self, at: int | str) -> AttentionMap: ...
    @overload
    def __getitem__(self, at: slice) -> Seen: ...
    def __getitem__(self, at: int | str | slice) -> AttentionMap | Seen:
        if isinstance(at, slice):
            return self._subset(self.calls[at])
        if isinstance(at, str):
            return self._one(at).map
        if not -len(self) <= at < len(self):
            raise IndexError(NO_MAPS if not self else f"seen: index {at} must lie in 0…{len(self) - 1}.")
        return self.calls[at].map

    def _named(self, name: str) -> list[Call]:
        """Return the call of this name, or else the calls of modules below it."""
        exact = [call for call in self.calls if call.name == name]
        return exact or [call for call in self.calls if is_below(call.module, name)]

    def _one(self, name: str) -> Call:
        calls = self._named(name)
        modules = sorted({call.module for call in calls})
        if len(modules) == 1:
            return calls[0]
        if modules:
            raise KeyError(
                f"seen: {name!r} must name one module; got {few(modules, 8)}. Use seen.filter(layers={name!r})."
            )
        missed = [reason for reason in self.missed if reason.startswith(name)]
        if not self.calls and not missed:
            raise KeyError(NO_MAPS)
        raise KeyError(
            missed[0] if missed else f"seen: {name!r} must name an attention module; got {few(self.names, 8)}."
        )

    def filter(self, layers: Layers = None, kind: Kind | None = None, name: str | None = None) -> Seen:
        """Return a subset of the maps as another `Seen` over the same calls.

        Args:
            layers: indices of attention modules in the order of their first call, names, or patterns.
            kind: "self", "causal" or "cross".
            name: a pattern such as "*cross*".

        Raises:
            ValueError: for an unknown kind, and an index that is out of range.
        """
        if kind is not None and kind not in KINDS:
            raise ValueError(f"seen: kind ({kind!r}) must be one of {', '.join(KINDS)}.")
        modules = list(dict.fromkeys(call.module for call in self.calls))
        selected = LayerFilter(layers)
        selected.check_indices(len(modules))
        return self._subset(
            call
            for call in self.calls
            if selected(call.module, modules.index(call.module), len(modules))
            and (kind is None or call.kind == kind)
            and (name is None or fnmatchcase(call.name, name) or fnmatchcase(call.module, name))
        )

    def _subset(self, calls: Iterable[Call]) -> Seen:
        subset = Seen(missed=self.missed)
        subset.calls = list(calls)  # the names do not change
        subset._image, subset.patches = self._image, self.patches
        return subset

    def tokens(self, query: Sequence[str] | None = None, key: Sequence[str] | None = None) -> Seen:
        """Set the tokens of every map that has the same lengths. Return self.

        For one sequence, `query` is enough: it labels both axes of "self" and "causal" maps. For an encoder and a
        decoder, `query` is the target and `key` the source. Both label cross-attention. The decoder's self-attention
        gets the target on both axes, the encoder's gets the source.

        Raises:
            ValueError: if the lengths match no map.
        """
        check_tokens("seen", query=query, key=key)
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
            lengths = ", ".join(f"{n} {len(x)}" for n, x in (("query", query), ("key", key)) if x is not None)
            sizes = sorted({(call.request.queries, call.request.keys) for call in self.calls})
            raise ValueError(
                f"seen: tokens ({lengths}) must match the numbers of queries and keys of some map; got maps of "
                f"{few([f'{a}×{b}' for a, b in sizes], 8)}."
            )
        return self

    @property
    def image(self) -> Tensor | None:
        """The input image of a vision model, uint8 (height, width, 3).

        >>> import regard
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> with regard.watch(model) as seen:
        ...     y = model(torch.randn(1, 10, 8))
        >>> seen.image = torch.zeros(24, 24, 3, dtype=torch.uint8)
        >>> seen.image.shape
        torch.Size([24, 24, 3])
        """
        return self._image

    @image.setter
    def image(self, image: Tensor | ArrayLike | Image | None) -> None:
        pixels = None if image is None else torch.as_tensor(_array(image))
        if pixels is not None and (pixels.ndim != 3 or pixels.shape[-1] != 3 or pixels.dtype != torch.uint8):
            raise ValueError(
                f"seen: image must be uint8 (height, width, 3); got {pixels.dtype} {tuple(pixels.shape)}. "
                "For a tensor (3, height, width) in 0…1: (x.permute(1, 2, 0) * 255).round().to(torch.uint8)."
            )
        self._image = pixels

    def save(self, path: str | Path) -> Path:
        """Save everything to a safetensors file. `regard.load_capture` loads it on any machine."""
        from .captures import save

        return save(self, Path(path))

    def rollout(self, residual: float = 0.5, heads: str | int | Sequence[int] = "mean") -> Rollout:
        """Return the attention rollout through all layers: see `regard.lens.rollout.Rollout`."""
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
        """Return the flow from source to target through each token of each layer, (layers + 1, N)."""
        return self.rollout(residual, heads).flow(source, target, batch=batch)

    # Pictures: their modules, and matplotlib with them, are imported on first use.

    def grid(self, path: str | Path | None = None, *, layers: Layers = None, **options: Unpack[GridOptions]) -> Picture:
        """Draw layers × heads as thumbnails; `layers` as in `filter`. Options: `regard.pictures.head_grid.grid`."""
        from ..pictures.figure import check_path
        from ..pictures.head_grid import grid

        path = None if path is None else check_path("grid", path)
        subset = self if layers is None else self.filter(layers)
        if not self:
            raise ValueError(NO_MAPS)
        if not subset:
            known = few(self.names, 4)
            raise ValueError(f"grid: layers ({layers!r}) must select some of the {len(self)} recorded layers: {known}.")
        return grid(subset.items(), path, **options)

    def profile(self, **options: Unpack[ProfileOptions]) -> Profile:
        """Compute five statistics of every head. See `regard.lens.head_profile.profile`."""
        from .head_profile import profile

        if not self:
            raise ValueError(NO_MAPS)
        return profile(self.items(), **options)

    def links(self, layer: int | str = -1, **options: Unpack[LinkOptions]) -> Picture:
        """Draw the strongest links of a span of tokens as lines. Options: `regard.pictures.link_diagram.links`."""
        from ..pictures.link_diagram import links

        return links(self[layer], **options)

    def alignment(self, layer: int | str = -1, **options: Unpack[AlignmentOptions]) -> Picture:
        """Draw one layer as words × words. Options: `regard.pictures.alignment_matrix.alignment`."""
        from ..pictures.alignment_matrix import alignment

        return alignment(self[layer], **options)

    def patch_weights(
        self,
        layer: int | str = -1,
        head: int | str = "mean",
        query: Query = None,
        rollout: bool = False,
        batch: int = 0,
        **options: Unpack[RolloutOptions],
    ) -> tuple[Tensor, tuple[int, int] | None]:
        """Return the weights on the image patches, (rows, columns), and the query patch. Arguments as in `overlay`.

        >>> import regard
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> with regard.watch(model) as seen:
        ...     y = model(torch.randn(1, 10, 8))
        >>> weights, patch = seen.patch_weights(query=(1, 2))          # of 3 × 3 patches after a class token
        >>> weights.shape, patch
        (torch.Size([3, 3]), (1, 2))
        """
        from .patch_weights import patch_weights

        if not self:
            raise ValueError(NO_MAPS)
        if options and not rollout:
            raise ValueError(f"overlay: {', '.join(options)} must be passed with rollout=True.")
        rolled_out = self.rollout(**options) if rollout else None
        return patch_weights(self[layer], self.patches, head, query, batch, rolled_out)

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
        **options: Unpack[RolloutOptions],
    ) -> Picture:
        """Draw the input image beside itself with the attention of one query overlaid.

        `image` must be set. `patches` gives the layout of the tokens; it may be None if the patches form a square, with
        or without a class token in front.

        Args:
            path: also save the picture to this file (.png, .svg or .pdf).
            layer: index or name of the map.
            head: index of the head, or "mean" of all heads.
            query: index of a token, or (row, column) of a patch, which is framed. None selects the class token or, if
                there is none, the average over all patches.
            rollout: draw the rollout through all layers instead of one layer. `options` are passed to `rollout`.

        Raises:
            ValueError: if there is no image, if the tokens do not fit it, or if a selection is out of range.

        >>> import regard
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> with regard.watch(model) as seen:
        ...     y = model(torch.randn(1, 10, 8))
        >>> seen.image = torch.zeros(24, 24, 3, dtype=torch.uint8)
        >>> picture = seen.overlay(head=1, query=(1, 2))
        >>> picture.get_suptitle()
        'self_attn, head 1'
        """
        from ..pictures.figure import check_path
        from ..pictures.image_overlay import overlay

        path = None if path is None else check_path("overlay", path)
        if self.image is None:
            raise ValueError("overlay: seen.image (None) must be the input image, uint8 (height, width, 3).")
        weights, mark = self.patch_weights(layer, head, query, rollout, batch, **options)
        if title is None:
            name = self.names[layer] if isinstance(layer, int) else layer
            heads = "mean of heads" if head == "mean" else f"head {head}"
            title = f"rollout of {len(self)} layers" if rollout else f"{name}, {heads}"
        return overlay(self.image.numpy(), weights.numpy(), path, title, mark)

    def widget(self, height: int = 640) -> Widget:
        """Return a widget that shows all maps in a notebook, with the page of `regard view`.

        A notebook displays a `Seen` as its widget, if `regard[notebook]` is installed. The widget sends messages to the
        kernel; it opens no port. It shows the first entry of a batch.

        Raises:
            ImportError: without anywidget.
            FileNotFoundError: if the page is not built.
            ValueError: if there are no maps.

        >>> Seen().widget(height=100)
        Traceback (most recent call last):
        ValueError: widget: height (100) must be at least 200 pixels; got 100.
        """
        return widget_hook.create(self, height)

    def _ipython_key_completions_(self) -> list[str]:
        return self.names

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, object], dict[str, object]]:
        return widget_hook.mimebundle(self)

    def _repr_html_(self) -> str:
        from ..pictures.notebook_html import of_layers

        return of_layers(list(zip(self.names, self.kinds, self.maps, strict=True)))


def _fits(tokens: Sequence[str] | None, size: int) -> bool:
    return tokens is None or len(tokens) == size


def _array(image: Any) -> Any:
    if isinstance(image, Tensor):
        return image
    import numpy

    return numpy.array(image)  # a copy, because the pixels of a PIL image are read-only
