"""Captures: the recorded attention of a model in one safetensors file.

The tensors are queries, keys and masks. A tensor that several maps share is stored once. Everything else is JSON in the
file's metadata under "regard". A capture contains no code, so a file from an untrusted source is safe to open.

    version   digest
    1         "sha256" covers the tensors
    2         "sha256" as before; "regard_sha256" covers "sha256" and the description; both are required
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
from .capture_description import FLOATS, MAX_INTEGER, Fields
from .patch_weights import Patches
from .recorded_call import KINDS, Call, Record, StoredRequest
from .seen import Seen

VERSION = 2
MAX_ENTRIES = 2**16
"""Maximum number of batch entries times heads of a map."""
INTEGERS = (torch.int64, torch.int32)
MASKS = (torch.bool, *FLOATS)


def save(seen: Seen, path: Path) -> Path:
    """Write a capture atomically and return its path."""
    store = _Store()
    calls = [_call_to_dict(store, call) for call in seen.calls]
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
    description = json.dumps(contents, ensure_ascii=False)
    tensor_digest = digest(store.tensors)
    metadata = {
        "format": "pt",
        "sha256": tensor_digest,
        "regard": description,
        "regard_sha256": _digest(tensor_digest, description),
    }
    with replacing(path) as temporary:
        save_file(store.tensors, temporary, metadata)
    return path


def _digest(tensor_digest: str, description: str) -> str:
    """Return the digest of the tensors and the description together."""
    return hashlib.sha256(f"{tensor_digest}\n{description}".encode()).hexdigest()


def load_capture(path: str | Path) -> Seen:
    """Load a capture written by `Seen.save`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is damaged, is not a capture, or has a later version.

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
        raise FileNotFoundError(
            f"capture: {path} must be a file; {'got a folder' if path.is_dir() else 'it does not exist'}. Seen.save "
            "writes one."
        )
    try:
        tensors, metadata = read_tensors_and_metadata(path)
    except Damaged as error:
        raise Damaged(str(error).replace("training:", "capture:", 1)) from error
    if "regard" not in metadata:
        raise ValueError(
            f"capture: {path} must be a file written by Seen.save; got one without a description. For the weights of a "
            "model, give the folder of the model."
        )
    try:
        contents = Fields(json.loads(metadata["regard"]), tensors, "the description")
        version = contents.integer("version")
        if version <= VERSION:
            _check_digest(version, metadata)
            return _read_seen(contents)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"capture: {path} must describe its maps; got an invalid description: {error}.") from error
    raise ValueError(f"capture: {path} must have version {VERSION} or earlier; got {version}. Upgrade regard.")


def _check_digest(version: int, metadata: dict[str, str]) -> None:
    if version < 1:
        raise ValueError(f"version ({version}) must be at least 1")
    tensor_digest = metadata.get("sha256")
    if tensor_digest is None:
        raise ValueError("the digest of the tensors is missing")
    if version > 1 and metadata.get("regard_sha256") != _digest(tensor_digest, metadata["regard"]):
        raise ValueError("the digest does not match the contents: the file was changed")


class _Store:
    """Tensors and token lists to be written. Equal ones are stored once and share a key."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.tables: list[list[str]] = []
        self._keys: dict[tuple[Any, ...], str] = {}

    def tensor(self, x: Tensor) -> str:
        identity = (x.data_ptr(), tuple(x.shape), x.stride(), x.dtype, x.device)
        if identity not in self._keys or not x.numel():
            name = self._keys[identity] = str(len(self.tensors))
            self.tensors[name] = x.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        return self._keys[identity]

    def number(self, x: int | Tensor | None) -> Any:
        return {"tensor": self.tensor(x)} if isinstance(x, Tensor) else x

    def table(self, tokens: list[str] | None) -> int | None:
        if tokens is None:
            return None
        if tokens not in self.tables:
            self.tables.append(tokens)
        return self.tables.index(tokens)


def _call_to_dict(store: _Store, call: Call) -> dict[str, Any]:
    request, mask = call.request, call.request.mask
    return {
        "name": call.name,
        "module": call.module,
        "kind": call.kind,
        "q": store.tensor(request.q),
        "k": store.tensor(request.k),
        "similarity": _similarity_to_dict(store, call.name, request.similarity),
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


def _similarity_to_dict(store: _Store, name: str, similarity: Similarity) -> dict[str, Any]:
    if isinstance(similarity, Dot):
        return {"kind": "dot", "scale": similarity.scale}
    if isinstance(similarity, Additive):
        return {"kind": "additive", "weight": store.tensor(similarity.weight)}
    raise ValueError(
        f"capture: the similarity of {name} must be a dot product, cosine, bilinear or additive one; got "
        f"{type(similarity).__name__}, which is code. Save pictures of this map, or exclude it with seen.filter(…)."
    )


def _read_seen(contents: Fields) -> Seen:
    tables = contents.tables("tokens")
    seen = Seen(missed=contents.texts("missed"))
    for fields in contents.objects("calls"):
        call = Call(fields.text("module"), Record(StoredRequest(_read_request(fields)), None))
        call.sink = _read_sink(fields, call.request)
        kind = fields.text("kind")
        if kind not in KINDS:
            raise fields.error("kind", f"one of {', '.join(KINDS)}")
        call.hint = kind
        call.query_tokens = _read_tokens(fields, "query_tokens", tables, call.request.queries)
        call.key_tokens = _read_tokens(fields, "key_tokens", tables, call.request.keys)
        call.name = fields.text("name")
        call.reset()
        seen.calls.append(call)
    seen.image = None if contents.is_null("image") else contents.tensor("image", (torch.uint8,))
    if not contents.is_null("patches"):
        patches = contents.integers("patches", high=2**20)
        if len(patches) != 3:
            raise contents.error("patches", "a list of rows, columns and the number of tokens before them")
        seen.patches = Patches(*patches)
    return seen


def _read_tokens(fields: Fields, name: str, tables: list[list[str]], size: int) -> list[str] | None:
    if fields.is_null(name):
        return None
    tokens = tables[fields.integer(name, high=len(tables) - 1)]
    if len(tokens) != size:
        raise fields.error(name, f"the index of a list of {size} tokens; got {len(tokens)}")
    return tokens


def _read_request(fields: Fields) -> Request:
    """Build a request and validate that its parts fit together. The file is untrusted."""
    lead = fields.integers("lead")
    if not 2 <= len(lead) <= 8 or math.prod(lead) > MAX_ENTRIES:
        raise fields.error("lead", f"2 to 8 sizes (batch and heads) with at most {MAX_ENTRIES:,} entries")
    dense = None if fields.is_null("dense") else fields.tensor("dense", MASKS)
    left, right = (None if fields.is_null(side) else fields.integer(side) for side in ("left", "right"))
    offset = 0 if fields.is_null("offset") else _read_integers(fields, "offset", low=-MAX_INTEGER)
    lengths = None if fields.is_null("lengths") else _read_integers(fields, "lengths", low=0)
    softcap = None if fields.is_null("softcap") else fields.number("softcap")
    request = Request.of_parts(
        fields.tensor("q", FLOATS),
        fields.tensor("k", FLOATS),
        None,
        _read_similarity(fields.object("similarity")),
        lead=lead,
        hard=fields.flag("hard"),
        mask=Mask(dense, left, right, offset, lengths),
        softcap=softcap,
        groups=fields.integer("groups", low=1),
    )
    validation.numbers(request.similarity, request.mask, request.k)
    return request


def _read_similarity(fields: Fields) -> Similarity:
    kind = fields.text("kind")
    if kind == "dot":
        return Dot(fields.number("scale"))
    if kind == "additive":
        return Additive(fields.tensor("weight", FLOATS))
    raise fields.error("kind", "dot or additive")


def _read_integers(fields: Fields, name: str, low: int) -> int | Tensor:
    """Return an integer, or a tensor of integers."""
    if not isinstance(fields.value(name), dict):
        return fields.integer(name, low)
    x = fields.object(name).tensor("tensor", INTEGERS).to(torch.int64)
    if x.numel() and not low <= int(x.min()) <= int(x.max()) <= MAX_INTEGER:
        raise fields.error(name, f"integers in {low:,}…{MAX_INTEGER:,}")
    return x


def _read_sink(fields: Fields, request: Request) -> Tensor | None:
    if fields.is_null("sink"):
        return None
    sink = fields.tensor("sink", FLOATS)
    if request.hard:
        raise fields.error("sink", "null if hard is true: hard weights have no sum")
    if not broadcasts(sink.shape, (*request.lead, request.queries)):
        raise fields.error("sink", f"scores that broadcast to {(*request.lead, request.queries)}")
    return sink
