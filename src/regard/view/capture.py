"""Captures: what was seen, in one safetensors file.

The tensors are queries, keys and masks, each stored once however many maps share it; everything else is JSON in the
file's metadata under "regard". Nothing in it is code, so a capture from a stranger is safe to open.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..attention.check import DTYPES, broadcasts
from ..attention.masks import Mask
from ..attention.request import Request
from ..attention.similarity import Additive, Dot, Similarity
from ..data.files import replacing
from ..training.files import Damaged, digest, read_tensors_and_metadata
from .call import KINDS, Call, Found, Plain
from .seen import Patches, Seen

VERSION = 1


def save(seen: Seen, path: Path) -> Path:
    """Write a capture that is whole or absent."""
    store = _Store()
    calls = [_call(store, call) for call in seen.calls]
    image = None if seen.image is None else store.tensor(seen.image)
    patches = seen.patches
    contents = {
        "version": VERSION,
        "calls": calls,
        "tokens": store.tables,
        "image": image,
        "patches": None if patches is None else [patches.rows, patches.columns, patches.first],
        "missed": seen.missed,
    }
    words = json.dumps(contents, ensure_ascii=False)
    with replacing(path) as made:
        save_file(store.tensors, made, {"format": "pt", "sha256": digest(store.tensors), "regard": words})
    return path


def load_capture(path: str | Path) -> Seen:
    """What `Seen.save` wrote.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: for a file that is damaged, is no capture, or is one of a later version.

    >>> import regard, tempfile
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> path = seen.save(Path(tempfile.mkdtemp()) / "x.safetensors")
    >>> torch.equal(regard.load_capture(path)[0].dense(), seen[0].dense())
    True
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"capture: {path} must be a file; there is none. Seen.save writes one.")
    try:
        tensors, metadata = read_tensors_and_metadata(path)
    except Damaged as error:
        raise Damaged(str(error).replace("training:", "capture:", 1)) from error
    if "regard" not in metadata:
        raise ValueError(f"capture: {path} must be a file that Seen.save wrote; got one with other tensors in it.")
    try:
        contents = json.loads(metadata["regard"])
        version = contents["version"]
        if isinstance(version, int) and version > VERSION:
            raise _Later(f"capture: {path} must be of version {VERSION} or before; got {version}. Upgrade regard.")
        return _seen(contents, tensors)
    except _Later as error:
        raise ValueError(str(error)) from None
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RuntimeError) as error:
        raise Damaged(
            f"capture: {path} must describe its maps; got a description that does not hold: {error}."
        ) from error


class _Later(Exception):
    pass


class _Store:
    """Tensors and lists of tokens by a key each, equal ones once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.tables: list[list[str]] = []
        self._known: dict[tuple[Any, ...], str] = {}

    def tensor(self, x: Tensor) -> str:
        known = (x.data_ptr(), tuple(x.shape), x.stride(), x.dtype, x.device)
        if known not in self._known or not x.numel():
            name = self._known[known] = str(len(self.tensors))
            self.tensors[name] = x.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        return self._known[known]

    def number(self, x: int | Tensor | None) -> Any:
        return {"tensor": self.tensor(x)} if isinstance(x, Tensor) else x

    def table(self, tokens: list[str] | None) -> int | None:
        if tokens is None:
            return None
        if tokens not in self.tables:
            self.tables.append(tokens)
        return self.tables.index(tokens)


def _call(store: _Store, call: Call) -> dict[str, Any]:
    request, mask = call.request, call.request.mask
    return {
        "name": call.name,
        "module": call.module,
        "kind": call.kind,
        "q": store.tensor(request.q),
        "k": store.tensor(request.k),
        "similarity": _similarity(store, call.name, request.similarity),
        "hard": request.hard,
        "softcap": request.softcap,
        "groups": request.groups,
        "lead": list(request.lead),
        "dense": None if mask.dense is None else store.tensor(mask.dense),
        "left": mask.left,
        "right": mask.right,
        "offset": store.number(mask.offset),
        "lengths": store.number(mask.lengths),
        "sink": None if call.sink is None else store.tensor(call.sink),
        "query_tokens": store.table(call.query_tokens),
        "key_tokens": store.table(call.key_tokens),
    }


def _similarity(store: _Store, name: str, similarity: Similarity) -> dict[str, Any]:
    if isinstance(similarity, Dot):
        return {"kind": "dot", "scale": similarity.scale}
    if isinstance(similarity, Additive):
        return {"kind": "additive", "weight": store.tensor(similarity.weight)}
    raise ValueError(
        f"capture: the similarity of {name} must be a dot product, cosine, bilinear or additive one; got "
        f"{type(similarity).__name__}, which is code. Save the pictures of this map, or leave it out: seen.filter(…)."
    )


def _seen(contents: dict[str, Any], tensors: dict[str, Tensor]) -> Seen:
    tables = contents["tokens"]
    seen = Seen(missed=contents["missed"])
    for fields in contents["calls"]:
        call = Call(fields["module"], Found(Plain(_request(fields, tensors)), _optional(tensors, fields["sink"])))
        if fields["kind"] not in KINDS:
            raise ValueError(f"kind {fields['kind']!r}")
        call.hint = fields["kind"]
        for side, size in (("query_tokens", call.request.queries), ("key_tokens", call.request.keys)):
            tokens = None if fields[side] is None else tables[fields[side]]
            if tokens is not None and len(tokens) != size:
                raise ValueError(f"{len(tokens)} tokens for {size} of {call.module}")
            setattr(call, side, tokens)
        seen.calls.append(call)
        call.name = str(fields["name"])
    seen.image = _optional(tensors, contents["image"])
    seen.patches = None if contents["patches"] is None else Patches(*map(int, contents["patches"]))
    return seen


def _request(fields: dict[str, Any], tensors: dict[str, Tensor]) -> Request:
    """A request whose shapes fit one another: a file may say anything."""
    q, k = tensors[fields["q"]], tensors[fields["k"]]
    lead, groups = tuple(map(int, fields["lead"])), int(fields["groups"])
    dense = _optional(tensors, fields["dense"])
    offset, lengths = (_number(tensors, fields[name]) for name in ("offset", "lengths"))
    weights = (*lead, q.shape[-2], k.shape[-2])
    spread = k.shape[:-2] if groups == 1 else (*k.shape[:-3], k.shape[-3] * groups)
    fits = [broadcasts(q.shape[:-2], lead), broadcasts(spread, lead), q.dtype in DTYPES, k.dtype == q.dtype]
    fits += [broadcasts(x.shape, weights) and x.ndim >= 2 for x in (dense, offset, lengths) if isinstance(x, Tensor)]
    similarity = _similar(fields["similarity"], tensors)
    fits += [q.shape[-1] == k.shape[-1]]
    fits += [w.shape[-1] == q.shape[-1] and broadcasts(w.shape[:-1], lead) for w in similarity.parameters]
    if not all(fits):
        raise ValueError(f"shapes of {fields['name']} that do not fit one another")
    left, right = (None if fields[side] is None else int(fields[side]) for side in ("left", "right"))
    mask = Mask(dense, left, right, 0 if offset is None else offset, lengths)
    softcap = None if fields["softcap"] is None else float(fields["softcap"])
    return Request(q, k, None, similarity, bool(fields["hard"]), mask, softcap, 0.0, groups, lead)


def _similar(fields: dict[str, Any], tensors: dict[str, Tensor]) -> Similarity:
    if fields["kind"] == "dot":
        return Dot(float(fields["scale"]))
    if fields["kind"] == "additive":
        return Additive(tensors[fields["weight"]])
    raise ValueError(f"similarity {fields['kind']!r}")


def _optional(tensors: dict[str, Tensor], key: str | None) -> Tensor | None:
    return None if key is None else tensors[key]


def _number(tensors: dict[str, Tensor], value: Any) -> int | Tensor | None:
    return tensors[value["tensor"]] if isinstance(value, dict) else None if value is None else int(value)
