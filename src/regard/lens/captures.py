"""Captures: what was seen, in one safetensors file.

The tensors are queries, keys and masks, each stored once however many maps share it; everything else is JSON in the
file's metadata under "regard". Nothing in it is code, so a capture from a stranger is safe to open.

    version   digest
    1         "sha256": of the tensors
    2         "sha256" likewise, and "regard_sha256": of that and the description together; both are required
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..attention import validation
from ..attention.masks import Mask
from ..attention.request import Request
from ..attention.similarity import Additive, Dot, Similarity
from ..core.digests import Damaged
from ..core.files import replacing
from ..core.tensor_files import digest, read_tensors_and_metadata
from ..core.tensors import broadcasts
from .capture_description import FLOATS, LARGEST, Fields
from .patch_weights import Patches
from .recorded_call import KINDS, Call, Found, Plain
from .seen import Seen

VERSION = 2
MOST_ENTRIES = 2**16
"""Batch entries times heads of a map."""
WHOLE = (torch.int64, torch.int32)
MASKS = (torch.bool, *FLOATS)


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
    of_tensors = digest(store.tensors)
    metadata = {"format": "pt", "sha256": of_tensors, "regard": words, "regard_sha256": _digest(of_tensors, words)}
    with replacing(path) as made:
        save_file(store.tensors, made, metadata)
    return path


def _digest(of_tensors: str, words: str) -> str:
    """Of tensors and description together."""
    return hashlib.sha256(f"{of_tensors}\n{words}".encode()).hexdigest()


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
        contents = Fields(json.loads(metadata["regard"]), tensors, "the description")
        version = contents.integer("version")
        if version <= VERSION:
            _check_digest(version, metadata)
            return _seen(contents)
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"capture: {path} must describe its maps; got a description that does not hold: {error}."
        ) from error
    raise ValueError(f"capture: {path} must be of version {VERSION} or before; got {version}. Upgrade regard.")


def _check_digest(version: int, metadata: dict[str, str]) -> None:
    if version < 1:
        raise ValueError(f"version ({version}) must be at least 1")
    of_tensors = metadata.get("sha256")
    if of_tensors is None:
        raise ValueError("the digest of the tensors is missing")
    if version > 1 and metadata.get("regard_sha256") != _digest(of_tensors, metadata["regard"]):
        raise ValueError("its digest is not the one written into the file: the contents changed")


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


def _seen(contents: Fields) -> Seen:
    tables = contents.tables("tokens")
    seen = Seen(missed=contents.texts("missed"))
    for fields in contents.objects("calls"):
        call = Call(fields.text("module"), Found(Plain(_request(fields)), None))
        call.sink = _sink(fields, call.request)
        kind = fields.text("kind")
        if kind not in KINDS:
            raise fields.refuse("kind", f"one of {', '.join(KINDS)}")
        call.hint = kind
        call.query_tokens = _tokens(fields, "query_tokens", tables, call.request.queries)
        call.key_tokens = _tokens(fields, "key_tokens", tables, call.request.keys)
        call.name = fields.text("name")
        call.renew()
        seen.calls.append(call)
    seen.image = None if contents.absent("image") else contents.tensor("image", (torch.uint8,))
    if not contents.absent("patches"):
        patches = contents.integers("patches", high=2**20)
        if len(patches) != 3:
            raise contents.refuse("patches", "rows, columns and the number of tokens before them")
        seen.patches = Patches(*patches)
    return seen


def _tokens(fields: Fields, name: str, tables: list[list[str]], size: int) -> list[str] | None:
    if fields.absent(name):
        return None
    tokens = tables[fields.integer(name, high=len(tables) - 1)]
    if len(tokens) != size:
        raise fields.refuse(name, f"the index of a list of {size} tokens; got {len(tokens)}")
    return tokens


def _request(fields: Fields) -> Request:
    """A request whose parts fit one another: a file may say anything."""
    lead = fields.integers("lead")
    if not 2 <= len(lead) <= 8 or math.prod(lead) > MOST_ENTRIES:
        raise fields.refuse("lead", f"2 to 8 sizes, of batch and heads, for at most {MOST_ENTRIES:,} entries")
    dense = None if fields.absent("dense") else fields.tensor("dense", MASKS)
    left, right = (None if fields.absent(side) else fields.integer(side) for side in ("left", "right"))
    offset = 0 if fields.absent("offset") else _number(fields, "offset", low=-LARGEST)
    lengths = None if fields.absent("lengths") else _number(fields, "lengths", low=0)
    softcap = None if fields.absent("softcap") else fields.number("softcap")
    request = Request.of_parts(
        fields.tensor("q", FLOATS),
        fields.tensor("k", FLOATS),
        None,
        _similar(fields.object("similarity")),
        lead=lead,
        hard=fields.flag("hard"),
        mask=Mask(dense, left, right, offset, lengths),
        softcap=softcap,
        groups=fields.integer("groups", low=1),
    )
    validation.numbers(request.similarity, request.mask, request.k)
    return request


def _similar(fields: Fields) -> Similarity:
    kind = fields.text("kind")
    if kind == "dot":
        return Dot(fields.number("scale"))
    if kind == "additive":
        return Additive(fields.tensor("weight", FLOATS))
    raise fields.refuse("kind", "dot or additive")


def _number(fields: Fields, name: str, low: int) -> int | Tensor:
    """A whole number, or a tensor of them."""
    if not isinstance(fields.value(name), dict):
        return fields.integer(name, low)
    x = fields.object(name).tensor("tensor", WHOLE).to(torch.int64)
    if x.numel() and not low <= int(x.min()) <= int(x.max()) <= LARGEST:
        raise fields.refuse(name, f"whole numbers in {low:,}…{LARGEST:,}")
    return x


def _sink(fields: Fields, request: Request) -> Tensor | None:
    if fields.absent("sink"):
        return None
    sink = fields.tensor("sink", FLOATS)
    if request.hard:
        raise fields.refuse("sink", "null for hard weights, which are not summed")
    if not broadcasts(sink.shape, (*request.lead, request.queries)):
        raise fields.refuse("sink", f"scores that broadcast to {(*request.lead, request.queries)}")
    return sink
