"""Generation of tokens: equal to transformers, exact in batches, and continued from any step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.models import GPT, GPTConfig
from regard.models.generation import NOTHING, TokenSteps, generate, generate_steps
from regard.models.sampling import Sampling

VOCABULARY, WITHIN = 53, 1e-5
GREEDY = Sampling(temperature=0.0)
CONFIGS = {
    "gpt2": GPTConfig(vocabulary=VOCABULARY, width=12, heads=3, layers=2, positions=40),
    "llama": GPTConfig.llama(vocabulary=VOCABULARY, width=24, heads=6, kv_heads=2, hidden=20, layers=2, positions=40),
    "window": GPTConfig.llama(vocabulary=VOCABULARY, width=24, heads=6, kv_heads=2, layers=2, positions=40, window=5),
}
PROMPTS = [[5, 6, 7, 8, 9], [3], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], [30, 31, 32, 33, 34]]


def build(name: str) -> GPT:
    """Return a model whose weights are large enough for texts that differ."""
    torch.manual_seed(0)
    model = GPT(CONFIGS[name]).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> GPT:
    return build(request.param)


def from_huggingface(kind: str) -> tuple[Any, GPT]:
    """Return a tiny random model of transformers, and a GPT with the same weights."""
    transformers = pytest.importorskip("transformers")
    ours = build(kind)
    if kind == "gpt2":
        sizes = {"n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 40}
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, **sizes))
        names = {"transformer.wte": "tokens", "transformer.wpe": "positions", "transformer.ln_f": "norm"}
        parts = {"ln_1": "around_attention.norm", "attn.c_proj": "attention.out", "ln_2": "around_feedforward.norm"}
        parts |= {"mlp.c_fc": "feedforward.up", "mlp.c_proj": "feedforward.down"}
        block = "transformer.h"
    else:
        sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 20}
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            num_hidden_layers=2,
            max_position_embeddings=40,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            **sizes,
        )
        theirs = transformers.LlamaForCausalLM(config)
        names = {"model.embed_tokens": "tokens", "model.norm": "norm"}
        parts = {"input_layernorm": "around_attention.norm", "post_attention_layernorm": "around_feedforward.norm"}
        parts |= {f"self_attn.{x[0]}_proj": f"attention.{x}" for x in ("query", "key", "value")}
        parts |= {"self_attn.o_proj": "attention.out"}
        parts |= {f"mlp.{x}_proj": f"feedforward.{x}" for x in ("gate", "up", "down")}
        block = "model.layers"
    for layer in range(2):
        names |= {f"{block}.{layer}.{one}": f"blocks.{layer}.{other}" for one, other in parts.items()}
    with torch.no_grad():
        for one, other in names.items():
            copy_weights(theirs.get_submodule(one), ours.get_submodule(other))
        for layer in range(2 if kind == "gpt2" else 0):
            fused = theirs.transformer.h[layer].attn.c_attn
            attention = ours.blocks[layer].attention
            linears = [attention.query, attention.key, attention.value]  # type: ignore[union-attr]
            fused.weight.copy_(torch.cat([linear.weight.T for linear in linears], 1))  # type: ignore[union-attr]
            fused.bias.copy_(torch.cat([linear.bias for linear in linears]))  # type: ignore[union-attr]
    return theirs.eval(), ours


def copy_weights(theirs: Any, ours: Any) -> None:
    turned = type(theirs).__name__ == "Conv1D"  # GPT-2 stores weights as (input, output)
    theirs.weight.copy_(ours.weight.T if turned else ours.weight)
    if getattr(ours, "bias", None) is not None:
        theirs.bias.copy_(ours.bias)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_texts_equal_those_of_transformers(kind: str, penalty: float) -> None:
    theirs, ours = from_huggingface(kind)
    sampling = Sampling(temperature=0.0, repetition_penalty=penalty)
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "repetition_penalty": penalty, "pad_token_id": 0, "eos_token_id": None}
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, **options)
        (one,) = generate(ours, [prompt], sampling, max_new_tokens=20)
        assert list(one.tokens) == expected[0, len(prompt) :].tolist()
        assert len(set(one.tokens)) > 2


def expected_logits(model: GPT, ids: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([ids]))[0, -1]
    return logits


def test_a_prompt_has_the_same_logits_in_a_batch_as_alone(model: GPT) -> None:
    lengths = torch.tensor([len(prompt) for prompt in PROMPTS])
    ids = torch.zeros(len(PROMPTS), int(lengths.max()), dtype=torch.long)
    texts = [list(prompt) for prompt in PROMPTS]
    for row, prompt in zip(ids, PROMPTS, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    with torch.no_grad():
        state, logits = model.begin(ids, lengths, capacity=2)
        for step in range(20):  # beyond the capacity
            for row, text in enumerate(texts):
                assert torch.allclose(logits[row], expected_logits(model, text), atol=WITHIN)
            tokens = (torch.arange(len(texts)) * 7 + step) % VOCABULARY
            for text, token in zip(texts, tokens.tolist(), strict=True):
                text.append(token)
            logits = model.step(tokens, state)
            if step == 9:
                state.reorder(torch.tensor([2, 0]))
                logits, texts = logits[[2, 0]], [texts[2], texts[0]]
            if step == 14:
                state.truncate(torch.tensor([20, 11]))
                texts = [texts[0][:21], texts[1][:12]]
                logits = model.step(torch.tensor([text[-1] for text in texts]), state)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, top_p=0.9, repetition_penalty=1.2)])
def test_a_prompt_gives_the_same_text_in_a_batch_as_alone(model: GPT, sampling: Sampling) -> None:
    end = 7
    together = generate(model, PROMPTS, sampling, max_new_tokens=18, end_ids=[end])
    for prompt, one in zip(PROMPTS, together, strict=True):
        (alone,) = generate(model, [prompt], sampling, max_new_tokens=18, end_ids=[end])
        assert (one.tokens, one.reason) == (alone.tokens, alone.reason)
        assert one.log_probabilities == pytest.approx(alone.log_probabilities, abs=1e-4)


def test_seeds_give_reproducible_and_different_texts(model: GPT) -> None:
    texts = [generate(model, PROMPTS[:1], Sampling(seed=seed), max_new_tokens=12)[0].tokens for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_steps_report_probabilities_and_runners_up() -> None:
    model = build("gpt2")
    text = list(PROMPTS[0])
    for step in generate_steps(model, [text], Sampling(seed=3), max_new_tokens=6, runners_up=3):
        probabilities = expected_logits(model, text).softmax(-1)
        token = int(step.tokens[0])
        assert float(step.log_probabilities[0].exp()) == pytest.approx(float(probabilities[token]), abs=1e-5)
        order = [id for id in probabilities.argsort(descending=True).tolist() if id != token][:3]
        assert step.runners_up[0].tolist() == order
        assert torch.allclose(step.probabilities[0], probabilities[order], atol=1e-5)
        text.append(token)


def test_runners_up_are_at_most_all_other_tokens() -> None:
    step = next(generate_steps(build("gpt2"), [[1]], max_new_tokens=1, runners_up=1000))
    assert sorted([int(step.tokens[0]), *step.runners_up[0].tolist()]) == list(range(VOCABULARY))
    none = next(generate_steps(build("gpt2"), [[1]], max_new_tokens=1))
    assert none.runners_up.shape == (1, 0)


def test_a_text_ends_at_an_end_id_and_the_others_continue() -> None:
    model = build("gpt2")
    free = generate(model, PROMPTS, GREEDY, max_new_tokens=10)
    end = free[1].tokens[3]
    first = free[1].tokens.index(end)
    results = generate(model, PROMPTS, GREEDY, max_new_tokens=10, end_ids=[end])
    assert results[1].tokens == free[1].tokens[: first + 1] and results[1].reason == "end"
    for one, other in zip(results, free, strict=True):
        if end not in other.tokens:
            assert (one.tokens, one.reason) == (other.tokens, "length")


def test_a_finished_text_has_no_more_tokens() -> None:
    steps = generate_steps(build("gpt2"), PROMPTS, GREEDY, max_new_tokens=4, runners_up=2)
    first = next(steps)
    assert first.reasons == (None,) * 4
    steps.finish(2)
    later = list(steps)
    assert [step.tokens[2].item() for step in later] == [NOTHING] * 3
    assert later[0].runners_up[2].tolist() == [NOTHING] * 2 and later[0].probabilities[2].tolist() == [0.0] * 2
    assert later[-1].reasons == ("length", "length", "stop", "length")
    assert [len(one.tokens) for one in steps.results()] == [4, 4, 1, 4]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_text_ends_with_the_context(name: str) -> None:
    model = build(name)
    long, short = generate(model, [list(range(37)), [1]], GREEDY, max_new_tokens=10)
    assert (len(long.tokens), long.reason) == (4, "context")  # 37 + 3 tokens are read
    assert (len(short.tokens), short.reason) == (10, "length")
    (last,) = generate(model, [list(range(40))], GREEDY, max_new_tokens=10)
    assert (len(last.tokens), last.reason) == (1, "context")


def test_a_window_has_no_context_limit() -> None:
    model = build("window")
    (one,) = generate(model, [list(range(37))], GREEDY, max_new_tokens=20)
    assert (len(one.tokens), one.reason) == (20, "length")
    # two layers of a window of 5: only the last nine tokens matter, except for their positions
    ids = [*range(37), *one.tokens]
    assert int(expected_logits(model, ids[:-1]).argmax()) == one.tokens[-1]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=8, repetition_penalty=1.3)])
def test_a_branch_equals_a_new_prompt(model: GPT, sampling: Sampling) -> None:
    for step in (0, 1, 6):
        steps = generate_steps(model, PROMPTS[:1], sampling, max_new_tokens=9, runners_up=1)
        list(steps)
        before = steps.tokens[0][:step]
        token = (steps.tokens[0][step] + 1) % VOCABULARY
        steps.branch(step, token)
        later = list(steps)
        assert steps.tokens[0][: step + 1] == [*before, token] and steps.reasons == ["length"]
        prompt = [*PROMPTS[0], *before]
        score = expected_logits(model, prompt).log_softmax(-1)[token]
        assert float(later[0].log_probabilities[0]) == pytest.approx(float(score), abs=WITHIN)
        if step < 8:
            (fresh,) = generate(model, [[*prompt, token]], sampling, max_new_tokens=8 - step)
            assert tuple(steps.tokens[0][step + 1 :]) == fresh.tokens


def test_a_branch_from_a_prompt_of_one_token() -> None:
    model = build("llama")
    steps = generate_steps(model, [[3]], GREEDY, max_new_tokens=3)
    list(steps)
    steps.branch(0, 9)
    list(steps)
    assert tuple(steps.tokens[0][1:]) == generate(model, [[3, 9]], GREEDY, max_new_tokens=2)[0].tokens


def test_impossible_branches_are_refused() -> None:
    model = build("gpt2")
    steps = generate_steps(model, PROMPTS[:1], GREEDY, max_new_tokens=3)
    with pytest.raises(ValueError, match=r"branch \(0\) must be a step of one open text, in 0…-1; got 0"):
        steps.branch(0, 1)
    next(steps)
    with pytest.raises(ValueError, match=r"branch \(1\) must be a step of one open text, in 0…0; got 1"):
        steps.branch(1, 1)
    with pytest.raises(ValueError, match=r"token \(53\) must lie in 0…52"):
        steps.branch(0, VOCABULARY)
    several = generate_steps(model, PROMPTS, GREEDY, max_new_tokens=3)
    next(several)
    with pytest.raises(ValueError, match="got 4 texts"):
        several.branch(0, 1)
    steps.close()
    with pytest.raises(ValueError, match="got a closed one"):
        steps.branch(0, 1)


def test_a_generation_can_be_closed_at_any_time() -> None:
    steps = generate_steps(build("gpt2"), PROMPTS[:1], GREEDY, max_new_tokens=5)
    first = next(steps)
    steps.close()
    assert list(steps) == []
    (one,) = steps.results()
    assert one.tokens == (int(first.tokens[0]),) and one.reason == "stop"


def test_gradients_and_training_mode_are_restored_between_steps() -> None:
    model = build("gpt2").train()
    steps = generate_steps(model, PROMPTS[:1], GREEDY, max_new_tokens=5)
    next(steps)
    assert torch.is_grad_enabled() and model.training
    dropping = GPT(GPTConfig(vocabulary=VOCABULARY, width=12, heads=3, layers=2, positions=40, dropout=0.9))
    texts = [generate(dropping, PROMPTS, GREEDY, max_new_tokens=8) for _ in range(2)]
    assert texts[0] == texts[1] and dropping.training


def test_logits_without_a_finite_value_are_refused() -> None:
    model = build("gpt2")
    with torch.no_grad():
        model.norm.bias.fill_(torch.nan)  # type: ignore[union-attr]
    for sampling in (GREEDY, Sampling()):
        with pytest.raises(ValueError, match="must be finite for some token; got none for token 1"):
            generate(model, PROMPTS[:1], sampling)


def test_all_wrong_arguments_are_listed() -> None:
    with pytest.raises(ValueError) as error:
        TokenSteps(
            build("gpt2"),
            [[], list(range(41)), [1], list(range(42))],
            Sampling(top_k=-1),
            max_new_tokens=0,
            runners_up=-1,
        )
    assert str(error.value).splitlines() == [
        "generate: prompt 1 ([]) must have at least one token.",
        "generate: prompt 2 (41 tokens) must have at most 40, the context of the model. Shorten it and 1 more.",
        "generate: max_new_tokens (0) must be at least 1.",
        "generate: runners_up (-1) must be 0 or more.",
        "generate: top_k (-1) must be 0 or more; 0 is all tokens.",
    ]
    with pytest.raises(ValueError, match=r"prompts \(\[\]\) must not be empty"):
        generate(build("gpt2"), [])
    with pytest.raises(ValueError, match=r"ids \(99\) must lie in 0…52"):
        generate(build("gpt2"), [[99]])


@pytest.mark.parametrize("prompts", [PROMPTS[:1], [PROMPTS[0], PROMPTS[3]]])
def test_a_watched_generation_is_one_map_per_layer(model: GPT, prompts: list[list[int]]) -> None:
    plain = generate(model, prompts, GREEDY, max_new_tokens=12)
    with regard.watch(model) as seen:
        watched = generate(model, prompts, GREEDY, max_new_tokens=12)
    assert plain == watched and not seen.missed
    assert seen.names == ["blocks.0.attention", "blocks.1.attention"]
    ids = torch.tensor([[*prompt, *one.tokens[:-1]] for prompt, one in zip(prompts, plain, strict=True)])
    with torch.no_grad():
        _, expected = model(ids, return_maps=True)
    for m, other in zip(seen, expected, strict=True):
        assert m.shape == (len(prompts), m.shape[1], 16, 16)
        assert torch.allclose(m.dense(), other.dense(), atol=WITHIN)


def test_maps_before_a_branch_stay_valid(model: GPT) -> None:
    with regard.watch(model) as seen:
        steps = generate_steps(model, PROMPTS[:1], GREEDY, max_new_tokens=8)
        list(steps)
        first = list(steps.tokens[0])
        steps.branch(3, (first[3] + 1) % VOCABULARY)  # overwrites keys of the first text
        list(steps)
    assert not seen.missed
    with torch.no_grad():
        _, expected = model(torch.tensor([[*PROMPTS[0], *first[:-1]]]), return_maps=True)
    for m, other in zip(seen.filter(name="*attention").maps, expected, strict=False):
        assert torch.allclose(m.dense(), other.dense(), atol=WITHIN)
