"""Names, letters and nesting of the boxes of a chart."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from regard.explain import MECHANISMS, Chart, draw, explain
from regard.explain.recorded_models import language_model, translator
from regard.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig


def boxes(chart: Chart, step: int | None = None) -> dict[str, str]:
    """Return the path of every node and its letters."""
    ways: dict[int, str] = {}
    result = {}
    for node in chart.nodes:
        above = "" if node.parent is None else ways[node.parent] + " > "
        ways[node.number] = above + node.name["en"]
        if node.time in (None, step) and node.value is not None:
            result[ways[node.number]] = " ".join(chart.values[node.value].letters)
    return result


@pytest.mark.parametrize(
    ("name", "equation"),
    [
        ("dot", "score = q·k"),
        ("scaled-dot", "score = 0.5 · q·k"),
        ("cosine", "score = q·k / (‖q‖ ‖k‖)"),
        ("bilinear", "score = q·W·k"),
        ("additive", "score = w·tanh(q + k)"),
        ("mlp", "score = w₂·tanh(W₁·[q; k])"),
    ],
)
def test_the_three_stages_of_attention_for_each_similarity(name: str, equation: str) -> None:
    chart = explain(name)
    result = boxes(chart)
    assert result["attention > similarity"] == "Tq Tk"
    assert result["attention > weighting"] == "Tq Tk"
    assert result["attention > weighted sum"] == "Tq Dv"
    (similarity,) = (node for node in chart.nodes if node.name["en"] == "similarity")
    assert similarity.equation == equation
    read = [chart.nodes[first].name["en"] for first, second, _ in chart.edges if second >= similarity.number]
    assert {"query", "key", "value"} <= set(read)


def test_context_state_and_output_at_every_step() -> None:
    chart = explain("bahdanau")
    assert chart.steps == len(chart.written) == 5
    for step in (1, 3):
        result = boxes(chart, step)
        at = f"step {step}"
        assert result[f"{at} > context c > attention > similarity"] == "B 1 1 Ts"
        assert result[f"{at} > context c"] == "B C"
        assert result[f"{at} > state f"] == "B S"
        assert result[f"{at} > output g"] == "B W"
        assert result[f"{at} > logits"] == result[f"output {step}"] == "B V"
    by_way = {node.number: node for node in chart.nodes}
    between = [
        (by_way[first].time, by_way[second].time)
        for first, second, _ in chart.edges
        if by_way[first].time != by_way[second].time and by_way[first].time is not None
    ]
    assert between and all(second == first + 1 for first, second in between)  # the state alone, from step to step


def test_a_group_shows_its_output_and_not_its_state() -> None:
    """The source keys and values, stored at the first step, are larger than the output of a decoder block."""
    result = boxes(explain("transformer"), 1)
    assert result["step 1 > decoder block 1"] == result["step 1 > decoder block 2"] == "B 1 W"
    assert result["encoder"] == "B Ts W"


def test_default_groups_are_open() -> None:
    def opened(name: str) -> set[str]:
        return {node.name["en"] for node in explain(name).nodes if node.open}

    assert "BERT" in opened("bert") and not {"encoder block 1"} & opened("bert")
    assert "causal block 1" in opened("gpt") and "causal block 2" not in opened("gpt")
    assert "decoder block 1" in opened("transformer") and "decoder block 2" not in opened("transformer")


def test_groups_are_opened_with_their_parents() -> None:
    chart = explain("bahdanau", "the cat")

    def opened() -> list[str]:
        return [node.name["en"] for node in chart.nodes if node.open]

    chart.unfold(["forward > place 2", "none"])
    assert opened() == ["encoder", "recurrent encoder", "GRU", "forward", "place 2: cat"]
    chart.unfold(["none"])
    assert opened() == []
    chart.unfold(["all"])
    assert opened() == [node.name["en"] for node in chart.nodes if node.kind == "group"]
    with pytest.raises(
        ValueError, match=r"open \(forward > GRU\) must be a part of Bahdanau attention: all, none, or encoder, "
    ):
        chart.unfold(["forward > GRU"])


def test_the_input_of_a_step_is_named_by_its_token() -> None:
    chart = explain("bahdanau")
    names = [node.name["en"] for node in chart.nodes if node.kind == "input"]
    assert names[2:4] == ["y0: <s>", f"y1: {chart.written[0]}"]


def test_a_fixed_context_is_the_same_at_every_step() -> None:
    chart = explain("encoder-decoder")
    contexts = [node.value for node in chart.nodes if node.name["en"] == "context c"]
    assert len(contexts) == chart.steps > 1 and len(set(contexts)) == 1


def test_blocks_open_to_their_parts() -> None:
    result = boxes(explain("bert"))
    block = "BERT > encoder block 2 > attention and residual"
    assert result[f"{block} > multi-head attention > attention > similarity"] == "B H T T"
    assert result[f"{block} > multi-head attention > join the heads"] == "B T W"
    assert result["BERT > encoder block 1 > feed-forward and residual > feed-forward > widen"] == "B T F"
    assert result["BERT > encoder block 1 > feed-forward and residual > normalisation"] == "B T W"
    assert result["classes"] == result["output"] == "B K"


def test_a_language_model_predicts_the_next_token() -> None:
    chart = explain("gpt", "the cat")
    result = boxes(chart)
    attention = "causal block 2 > attention and residual > masked multi-head attention"
    assert result[f"{attention} > attention > mask"] == result[f"{attention} > attention > weighting"] == "B H T T"
    assert result[f"{attention} > join the heads"] == "B T W"
    assert result["causal block 1 > feed-forward and residual > feed-forward > widen"] == "B T F"
    assert result["normalisation"] == "B T W" and result["logits"] == "B T V"
    assert result["probabilities"] == "B V" and result["likeliest next tokens"] == result["output"] == "B K"
    by_name = {node.name["en"]: chart.values[node.value].values[0, 0] for node in chart.nodes}
    probabilities, likeliest = by_name["probabilities"], by_name["output"]
    assert probabilities.sum().item() == pytest.approx(1)
    assert [chart.tokens["V"][int(index)] for index in probabilities.topk(5).indices] == chart.tokens["K"]
    assert torch.equal(likeliest, probabilities.topk(5).values)
    assert (by_name["mask"] == -torch.inf).tolist() == [False, True]  # the first token does not attend to the second


def names_and_equations(config: GPTConfig) -> dict[str, str]:
    torch.manual_seed(0)
    chart = draw(language_model(GPT(config).eval(), [1, 2, 3], lambda ids: [*map(str, ids)], ""))
    return {node.name["en"]: node.equation for node in chart.nodes}


def test_the_parts_of_llama_have_their_names_and_equations() -> None:
    llama = names_and_equations(GPTConfig.llama(vocabulary=9, width=8, heads=2, layers=1))
    assert llama["rotary position"] == "(a·cos pθ − b·sin pθ, b·cos pθ + a·sin pθ)" and "position" not in llama
    assert llama["RMS normalisation"] == "x / √(mean x²) · g" and "normalisation" not in llama
    assert llama["gated feed-forward"] == "y = W₂ · (activation(g) ⊙ h)" and llama["gate"] == "g = x·Wgᵀ"
    assert llama["widen"] == "h = x·W₁ᵀ" and llama["narrow"] == "y = (activation(g) ⊙ h)·W₂ᵀ"
    assert llama["queries"] == "q = x·Wqᵀ" and llama["silu"] == "y = x·σ(x)"
    qwen = names_and_equations(GPTConfig.llama(vocabulary=9, width=8, heads=2, layers=1, bias="qkv"))
    assert qwen["queries"] == "q = x·Wqᵀ + b" and qwen["join the heads"] == "y = heads·Woᵀ"


def test_the_parts_of_gpt_2_have_their_names_and_equations() -> None:
    gpt = names_and_equations(GPTConfig(vocabulary=9, width=8, heads=2, layers=1))
    assert gpt["position"] == "x + table[position]" and gpt["normalisation"] == "(x − mean)/σ · g + b"
    assert gpt["feed-forward"] == "W₂ · activation(W₁·x + b₁) + b₂"
    assert gpt["widen"] == "h = x·W₁ᵀ + b₁" and gpt["narrow"] == "y = h·W₂ᵀ + b₂"
    bare = names_and_equations(GPTConfig(vocabulary=9, width=8, heads=2, layers=1, bias="none"))
    assert bare["feed-forward"] == "W₂ · activation(W₁·x)" and bare["widen"] == "h = x·W₁ᵀ"


def test_the_last_block_of_a_vision_transformer_is_a_block_too() -> None:
    result = boxes(explain("vit"))
    assert "encoder block 1 > attention and residual > multi-head attention > attention > similarity" in result
    assert result["encoder block 2 > multi-head attention > attention > similarity"] == "B H 1 T"
    assert result["image"] == "B C Y X" and result["patch embedding"] == result["position"] == "B P W"
    assert result["class token"] == "W" and result["class token first"] == "B T W"
    chart = explain("vit")
    (patches,) = (node for node in chart.nodes if node.name["en"] == "patch embedding")
    assert [" ".join(chart.values[one.value].letters) for one in patches.operands] == ["B P C·p·p", "W C·p·p", "W"]


def test_later_steps_of_a_transformer_read_the_keys_of_earlier_ones() -> None:
    chart = explain("transformer", "a b")
    times = {(chart.nodes[first].time, chart.nodes[second].time) for first, second, _ in chart.edges}
    assert {(1, 3), (2, 3), (None, 1)} <= times
    assert all(first is None or first <= second for first, second in times)
    result = boxes(chart, 3)
    assert (
        "step 3 > decoder block 2 > cross-attention and residual > cross-attention > attention > similarity" in result
    )


def test_the_mask_hides_later_tokens() -> None:
    chart = explain("masked", "a b c")
    (mask,) = (node for node in chart.nodes if node.name["en"] == "mask")
    scores = chart.values[mask.value].values[0]
    assert (scores.triu(1)[scores.triu(1) != 0] == -float("inf")).all()
    assert scores.isinf().sum() == 3


def test_a_chart_is_json_and_small() -> None:
    for name, most in (("multi-head", 20_000), ("bert", 90_000)):
        response = json.dumps(explain(name).to_dict(), allow_nan=False)
        assert len(response) < most


def test_both_languages_and_every_name() -> None:
    for name in MECHANISMS:
        for node in explain(name).nodes:
            assert node.name["en"] and node.name["zh"]


def test_letters_are_correct_if_sizes_are_equal() -> None:
    """Eight words beside a width of eight: the letters follow the operations, not the sizes."""
    result = boxes(explain("multi-head", "a b c d e f g h"))
    assert result["queries"] == "B T W"
    assert result["attention > similarity"] == "B H T T"
    assert result["attention > weighted sum"] == "B H T D"
    assert result["output"] == "B T W"


def test_letters_of_a_selection_are_correct_if_sizes_are_equal() -> None:
    """Three keys beside three queries."""
    result = boxes(explain("hard", "a b c"))
    assert {letters for way, letters in result.items() if way.endswith("weighting")} == {"Tq Tk"}


def test_letters_of_a_decoder_are_correct_if_sizes_are_equal() -> None:
    """Three words make a vocabulary of seven, as wide as a state."""
    for name in ("bahdanau", "encoder-decoder"):
        result = boxes(explain(name, "a b c"), 2)
        assert result["step 2 > state f"] == "B S" and result["output 2"] == "B V", name
        letters = {letters for way, letters in result.items() if way.startswith("step 2 > state f >")}
        assert not any("V" in one for one in letters), letters


def test_a_shared_embedding_is_named_by_its_use() -> None:
    torch.manual_seed(0)
    for config in (
        Seq2SeqConfig(9, 9, width=4, hidden=4, tie="all"),
        TransformerConfig(9, 9, width=4, heads=2, tie="all"),
    ):
        model: Any = (Seq2Seq if isinstance(config, Seq2SeqConfig) else Transformer)(config)  # type: ignore[arg-type]
        chart = draw(
            translator(model.eval(), [4, 3], [5, 3], lambda ids: [*map(str, ids)], lambda ids: [*map(str, ids)], "")
        )
        named = [(node.time, node.name["en"]) for node in chart.nodes if "embedding" in node.name["en"]]
        assert named == [(None, "source embedding"), (1, "embedding of y"), (2, "embedding of y")]


def test_errors_name_the_value() -> None:
    with pytest.raises(ValueError, match=r"mechanism \('rnn'\) must be one of encoder-decoder, bahdanau"):
        explain("rnn")
    with pytest.raises(ValueError, match=r"text \(25 words\) must have 1 to 24"):
        explain("bert", "word " * 25)
    for name in MECHANISMS.keys() - {"vit"}:
        for nothing in ("", " "):
            with pytest.raises(ValueError, match=r"text \(0 words\) must have 1 to 24.*Pass --text WORDS"):
                explain(name, nothing)
    with pytest.raises(ValueError, match=r"text \('a cat'\) must be omitted: vit processes an image"):
        explain("vit", "a cat")


def test_a_base_is_not_an_exponent() -> None:
    powers = {node.equation for node in explain("transformer").nodes if node.name["en"] == "power"}
    assert powers == {"10000ˣ"}


def test_a_fixed_context_has_no_index() -> None:
    equations = {
        mechanism: " ".join(node.equation for node in explain(mechanism).nodes)
        for mechanism in ("encoder-decoder", "bahdanau")
    }
    assert "cᵢ" in equations["bahdanau"] and "cᵢ" not in equations["encoder-decoder"]
    assert "sᵢ = f(c, sᵢ₋₁, yᵢ₋₁)" in equations["encoder-decoder"]


def test_the_first_state_of_a_recurrent_layer_has_its_letters() -> None:
    chart = explain("bahdanau", "the cat sat")  # as many tokens, with the end of the sentence, as E
    assert boxes(chart)["encoder > recurrent encoder > GRU > zeros"] == "2 B E"


def test_no_letter_is_both_a_size_and_a_matrix() -> None:
    for mechanism in MECHANISMS:
        assert "V·" not in " ".join(node.equation for node in explain(mechanism).nodes)


@pytest.mark.parametrize(
    "mechanism", ["scaled-dot", "hard", "additive", "multi-head", "bahdanau", "transformer", "gpt", "vit"]
)
def test_weights_are_scaled_from_zero_to_one(mechanism: str) -> None:
    """Otherwise equal weights of 0.1 would have the strongest colour."""
    chart = explain(mechanism)
    drawn = chart.to_dict()["values"]
    weights = [node.value for node in chart.nodes if node.name["en"] in ("weighting", "hard weighting")]
    assert weights and all(drawn[value]["scale"] == 1.0 for value in weights if value is not None)
    others = [value for value in drawn if value["scale"] != 1.0]
    assert others and all(value["scale"] == value["largest"] for value in others)
