"""Greedy generation with a language model of SmolLM2-135M's size: ours against `generate` of transformers.

Both have the same random weights in float32, and must generate the same tokens from a prompt of 512. transformers runs
with SDPA and its fastest cache: dynamic, static, or static with the forward pass compiled by Inductor with frozen
weights, determined on a few tokens. Prompt and new tokens are timed together, and a step of ours also against the speed
at which this machine reads memory: every token needs all weights, and keys and values of all tokens before it. The same
generation is watched, too, which must not change its tokens; the maps of all steps are compared with those that the
model computes for the whole text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench.harness import Case, Figure, Options, Versus
from bench.parity import Parity
from regard.attention.native.few_rows import bind_linear
from regard.lens import Seen
from regard.models import GPT, GPTConfig
from regard.models.fast_gpt import FastGPT, fast_gpt

SIZES = {"vocabulary": 49152, "width": 576, "heads": 9, "kv_heads": 3, "hidden": 1536, "layers": 30}
SMALL = {"vocabulary": 499, "width": 60, "heads": 6, "kv_heads": 2, "hidden": 96, "layers": 2}
PROMPT, NEW = 512, 128
TRIAL = 32
"""New tokens for which the settings of transformers are compared."""
STEPS = 8
READ = 2**28
"""Numbers that are read to measure the bandwidth: 1 GiB, far more than the caches hold."""


def cases(options: Options) -> Iterator[Case]:
    model = build(options.quick)
    fast = fast_gpt(model)
    prompt, new = (24, 6) if options.quick else (PROMPT, NEW)
    for batch in (1, 8):
        yield from _steps(fast, batch, prompt, new, options)
    yield _watched(fast, prompt, new, options)
    theirs = transformers_model(model)
    for batch in (1, 8):
        ids = torch.randint(model.config.vocabulary, (batch, prompt), generator=torch.Generator().manual_seed(batch))
        contenders: dict[str, Callable[[], Tensor]] = {
            "ours": partial(generate, fast, ids, new),
            "transformers": _Fastest(theirs, ids, new, compiled=not options.quick),
        }
        shape = f"batch {batch}, prompt {prompt}, {new} new tokens"
        bar = None if options.quick else ">= 1.5"
        parity = Parity("transformers", rtol=0, atol=0)
        yield Case("generate", shape, contenders, (Versus("ours", "transformers", bar),), parity, most_rounds=5)


def _watched(fast: FastGPT, prompt: int, new: int, options: Options) -> Case:
    """A generation that is watched against one that is not."""
    ids = torch.randint(fast.model.config.vocabulary, (1, prompt), generator=torch.Generator().manual_seed(1))
    contenders: dict[str, Callable[[], object]] = {
        "watched": partial(watched, fast, ids, new),
        "unwatched": partial(generate, fast, ids, new),
    }
    versus = Versus("watched", "unwatched", None if options.quick else "<= 1.05", "ours/peer")
    parity = Parity("unwatched", rtol=0, atol=0, view=lambda result: result[0] if isinstance(result, tuple) else result)
    shape = f"batch 1, prompt {prompt}, {new} new tokens"
    return Case("generate, watched", shape, contenders, (versus,), parity, most_rounds=9, close=0.02)


def watched(fast: FastGPT, ids: Tensor, count: int) -> tuple[Tensor, Seen]:
    """Return the tokens of a greedy generation, (B, count), and the maps of its steps."""
    with regard.watch(fast.model) as seen:
        return generate(fast, ids, count), seen


def figures(options: Options) -> Iterator[Figure]:
    prompt, new = (24, 6) if options.quick else (PROMPT, NEW)
    yield Figure(
        "watched maps against the model's",
        f"{prompt} + {new} tokens",
        partial(difference, options),
        "max |Δ|",
        "<= 0.00001",
    )


@torch.no_grad()
def difference(options: Options) -> float:
    """Return the largest difference of a weight in the maps of a watched generation and in those of the whole text."""
    model, prompt, new = build(options.quick), *((24, 6) if options.quick else (PROMPT, NEW))
    ids = torch.randint(model.config.vocabulary, (1, prompt), generator=torch.Generator().manual_seed(1))
    tokens, seen = watched(fast_gpt(model), ids, new)
    _, maps = model.hidden(torch.cat((ids, tokens[:, :-1]), 1), return_maps=True)
    assert len(seen) == len(maps) and seen.missed == []
    return max(float((mine.dense() - other.dense()).abs().max()) for mine, other in zip(seen, maps, strict=True))


def build(quick: bool) -> GPT:
    """Return a model of the Llama family with random weights."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = SMALL if quick else SIZES
    return GPT(GPTConfig.llama(**sizes, positions=2048)).eval()


def generate(fast: FastGPT, ids: Tensor, count: int) -> Tensor:
    """Return the tokens of a greedy generation, (B, count)."""
    state, logits = fast.begin(ids, capacity=ids.shape[1] + count)
    tokens = [logits.argmax(-1)]
    while len(tokens) < count:
        tokens.append(fast.step(tokens[-1], state).argmax(-1))
    return torch.stack(tokens, 1)


def _steps(fast: FastGPT, batch: int, prompt: int, new: int, options: Options) -> Iterator[Case]:
    """Steps in the middle of a generation against reading memory: the fastest of two ways to read."""
    model, config = fast.model, fast.model.config
    start = prompt + new // 2
    ids = torch.randint(config.vocabulary, (batch, start), generator=torch.Generator().manual_seed(batch))
    state, _ = fast.begin(ids, capacity=start + STEPS)
    rows = torch.ones(READ // (4096 if options.quick else 1) // 512, 512)
    x, y = torch.ones(1, 512), torch.empty(1, len(rows))
    tokens = ids[:, -1].clone()

    def ours() -> Tensor:
        state.truncate(start)
        for _ in range(STEPS):
            logits = fast.step(tokens, state)
        return logits

    kv_heads = config.heads if config.kv_heads is None else config.kv_heads
    keys = 2 * config.layers * kv_heads * (config.width // config.heads) * (start + STEPS // 2) * batch
    weights = sum(parameter.numel() for parameter in model.parameters())
    moved = {"ours": 4.0 * STEPS * (weights + keys), "sum": 4.0 * rows.numel(), "product": 4.0 * rows.numel()}
    readers: dict[str, Callable[[], object]] = {"sum": rows.sum, "product": bind_linear(x, rows, None, y)}
    bar = ">= 0.7" if batch == 1 and not options.quick else None
    versus = Versus("ours", ("sum", "product"), bar, per="bytes")
    shape = f"batch {batch}, {STEPS} steps at {start} tokens"
    yield Case("step against reading memory", shape, {"ours": ours, **readers}, (versus,), bytes=moved)


def transformers_model(model: GPT) -> Any:
    """Return a `LlamaForCausalLM` of transformers with the weights of `model`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = model.config
    settings: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.inner_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": config.positions,
        "rms_norm_eps": config.epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "tie_word_embeddings": config.tied,
        "attn_implementation": "sdpa",
    }
    theirs: Any = LlamaForCausalLM(LlamaConfig(bos_token_id=None, eos_token_id=None, pad_token_id=0, **settings))
    weights: dict[str, Any] = {
        "model.embed_tokens": model.tokens,
        "model.norm": model.norm,
        "lm_head": model.vocabulary,
    }
    blocks: Any = model.blocks
    for index, block in enumerate(blocks):
        attention, feedforward, name = block.attention, block.feedforward, f"model.layers.{index}"
        weights |= {
            f"{name}.self_attn.q_proj": attention.query,
            f"{name}.self_attn.k_proj": attention.key,
            f"{name}.self_attn.v_proj": attention.value,
            f"{name}.self_attn.o_proj": attention.out,
            f"{name}.mlp.gate_proj": feedforward.gate,
            f"{name}.mlp.up_proj": feedforward.up,
            f"{name}.mlp.down_proj": feedforward.down,
            f"{name}.input_layernorm": block.around_attention.norm,
            f"{name}.post_attention_layernorm": block.around_feedforward.norm,
        }
    theirs.load_state_dict({f"{name}.weight": module.weight.detach() for name, module in weights.items()})
    return theirs.eval()


class _Fastest:
    """`generate` of transformers with its fastest settings, which are determined and printed at the first call."""

    def __init__(self, model: Any, ids: Tensor, count: int, *, compiled: bool) -> None:
        self.model, self.ids, self.count = model, ids, count
        self.ways: dict[str, Callable[[int], Tensor]] = {
            "a dynamic cache": partial(self._generate, None),
            "a static cache": partial(self._generate, "static"),
        }
        if compiled:
            self.ways["a static cache, compiled"] = self._compiled
        self.best: str | None = None
        self._forward: Any = None

    def __call__(self) -> Tensor:
        if self.best is None:
            self.best = self._fastest()
        return self.ways[self.best](self.count)

    def _fastest(self) -> str:
        taken = {}
        for name, run in self.ways.items():
            run(TRIAL)  # compiles, and warms up
            start = time.perf_counter()
            run(TRIAL)
            taken[name] = time.perf_counter() - start
        best = min(taken, key=lambda name: taken[name])
        timings = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in taken.items())
        shape = f"batch {len(self.ids)}, {TRIAL} tokens"
        print(f"generate: transformers is fastest with {best} ({shape}: {timings})", file=sys.stderr)
        return best

    @torch.no_grad()
    def _generate(self, cache: str | None, count: int) -> Tensor:
        options = {"cache_implementation": cache} if cache else {}
        mask = torch.ones_like(self.ids)
        tokens = self.model.generate(
            self.ids, attention_mask=mask, max_new_tokens=count, do_sample=False, disable_compile=True, **options
        )
        new: Tensor = tokens[:, self.ids.shape[1] :]  # (B, count)
        return new

    def _compiled(self, count: int) -> Tensor:
        import torch._inductor.config as inductor

        plain = self.model.forward
        if self._forward is None:
            self._forward = torch.compile(plain, dynamic=False)
        self.model.forward = self._forward
        try:
            with inductor.patch(freezing=True):
                return self._generate("static", count)
        finally:
            self.model.forward = plain
