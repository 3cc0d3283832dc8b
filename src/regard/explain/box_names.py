"""English and Chinese names of the boxes of a chart, their equations, and the operands of each cell.

Equations of similarities are read from the docstrings of their classes.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .recording import Frame


class Name(NamedTuple):
    """Names, equation and operand rule of a box."""

    en: str
    zh: str
    equation: str = ""
    rule: str = ""
    """The operand cells from which cell (i, j) of the result is computed:

    product  row i of the first, column j of the second
    linear   row i of the first, row j of the second: weights are stored as (out, in)
    pairs    row i of the first, row j of the second
    row      row i of the first
    lookup   the row of the first whose index is cell i of the second
    same     cell (i, j) of each
    """


CALLS: dict[str, Name] = {
    "linear": Name("linear", "线性变换", "y = x·Wᵀ + b", "linear"),
    "matmul": Name("product", "矩阵乘积", "C = A·B", "product"),
    "einsum": Name("product", "矩阵乘积", "q·W·kᵀ"),
    "softmax": Name("softmax", "softmax", "yⱼ = e^xⱼ / Σ e^x", "row"),
    "tanh": Name("tanh", "tanh", "y = tanh x", "same"),
    "sigmoid": Name("sigmoid", "sigmoid", "y = 1/(1 + e⁻ˣ)", "same"),
    "relu": Name("relu", "relu", "y = max(0, x)", "same"),
    "gelu": Name("gelu", "gelu", "y = x·Φ(x)", "same"),
    "silu": Name("silu", "silu", "y = x·σ(x)", "same"),
    "exp": Name("exponential", "指数", "y = eˣ", "same"),
    "sqrt": Name("square root", "平方根", "y = √x", "same"),
    "abs": Name("absolute value", "绝对值", "y = |x|", "same"),
    "sin": Name("sine", "正弦", "y = sin x", "same"),
    "cos": Name("cosine", "余弦", "y = cos x", "same"),
    "pow": Name("power", "幂", "y = aˣ", "same"),
    "rpow": Name("power", "幂", "y = aˣ", "same"),
    "add": Name("sum", "相加", "x + y", "same"),
    "sub": Name("difference", "相减", "x − y", "same"),
    "rsub": Name("difference", "相减", "y − x", "same"),
    "mul": Name("times", "相乘", "x ⊙ y", "same"),
    "div": Name("quotient", "相除", "x / y", "same"),
    "eq": Name("equal?", "相等？", "x = y", "same"),
    "le": Name("not after?", "不在其后？", "x ≤ y", "same"),
    "ge": Name("not before?", "不在其前？", "x ≥ y", "same"),
    "lt": Name("below?", "小于？", "x < y", "same"),
    "where": Name("choose", "选择", "x where true, else y", "same"),
    "masked_fill": Name("fill", "填充", "value where true", "same"),
    "sum": Name("sum over", "求和", "y = Σ x", "row"),
    "mean": Name("mean", "平均", "y = Σ x / n", "row"),
    "amax": Name("largest", "最大值", "y = max x", "row"),
    "argmax": Name("index of the largest", "最大值的位置", "y = argmax x", "row"),
    "layer_norm": Name("normalisation", "层归一化", "y = (x − mean)/σ · g + b", "row"),
    "rms_norm": Name("RMS normalisation", "RMS 归一化", "y = x / √(mean x²) · g", "row"),
    "embedding": Name("embedding", "词嵌入", "y = table[id]", "lookup"),
    "cat": Name("side by side", "拼接", "[x; y]"),
    "stack": Name("stack", "堆叠", "[x, y]"),
    "addmm": Name("add a product", "加上乘积", "M + A·B"),
    "addcmul": Name("add gated", "门控相加", "n + r ⊙ u", "same"),
    "lerp": Name("mix", "混合", "s′ = (1 − z) ⊙ n + z ⊙ s", "same"),
    "gru": Name("GRU", "GRU", "hⱼ = f(xⱼ, hⱼ₋₁)"),
    "lstm": Name("LSTM", "LSTM", "hⱼ = f(xⱼ, hⱼ₋₁)"),
    "scatter": Name("scatter", "按索引写入", "y[index] = x"),
    "arange": Name("positions", "位置", "0, 1, 2, …"),
    "repeat_interleave": Name("repeat", "重复", "one for each hypothesis"),
    "index_select": Name("take rows", "取行", "y = x[index]"),
    "pack_padded_sequence": Name("pack", "打包", "without padding"),
    "pad_packed_sequence": Name("unpack", "解包", "with padding"),
    "sort": Name("sort", "排序", "longest first"),
    "zeros": Name("zeros", "零", "0"),
}
"""PyTorch functions."""

STAGES: dict[str, Name] = {
    "similarity": Name("similarity", "相似度", "scores = similarity(q, k)", "pairs"),
    "mask": Name("mask", "掩码", "−∞ where attention is not allowed", "same"),
    "weighting": Name("weighting", "加权", "weights = softmax(scores)", "row"),
    "hard weighting": Name("hard weighting", "硬加权", "1 for the best key, else 0", "row"),
    "weighted sum": Name("weighted sum", "加权求和", "context = weights · v", "product"),
    "attention": Name("attention", "注意力", "weighting(similarity(q, k)) · v"),
    "patch embedding": Name("patch embedding", "图像块嵌入", "x = patch·Wᵀ + b"),
    "position": Name("position", "位置编码", "x + table[position]"),
    "segment": Name("segment", "段编码", "x + table[segment]"),
    "class token": Name("class token", "分类词元", "first + table[0]"),
    "class token first": Name("class token first", "分类词元在前", "[first; patches]"),
    "state": Name("state f", "状态 f", "sᵢ = f(cᵢ, sᵢ₋₁, yᵢ₋₁)"),
    "layer": Name("layer", "层"),
    "forward": Name("forward", "向前", "hⱼ = f(xⱼ, hⱼ₋₁)"),
    "backward": Name("backward", "向后", "hⱼ = f(xⱼ, hⱼ₊₁)"),
    "place": Name("place", "位置"),
    "of the input": Name("of the input", "来自输入", "W·x + b"),
    "of the state": Name("of the state", "来自状态", "U·h + b"),
    "reset gate": Name("reset gate", "重置门", "r = σ(W·x + U·h)"),
    "update gate": Name("update gate", "更新门", "z = σ(W·x + U·h)"),
    "input gate": Name("input gate", "输入门", "i = σ(W·x + U·h)"),
    "forget gate": Name("forget gate", "遗忘门", "f = σ(W·x + U·h)"),
    "output gate": Name("output gate", "输出门", "o = σ(W·x + U·h)"),
    "candidate": Name("candidate", "候选状态"),
    "memory": Name("memory", "记忆"),
    "new state": Name("new state", "新状态", "", "same"),
    "pack": Name("pack", "打包", "sentences without their padding"),
    "unpack": Name("unpack", "解包", "sentences with their padding"),
    "encoder": Name("encoder", "编码器", "h₁ … h_Ts = encode(x₁ … x_Ts)"),
    "next token": Name("probabilities", "概率", "p = softmax(logits[T])"),
    "likeliest tokens": Name("likeliest next tokens", "最可能的下一个词元", "p₁ ≥ p₂ ≥ …"),
    "begin": Name("before the first step", "第一步之前", "s₀ and values shared by all steps"),
    "step": Name("step", "第几步", ""),
}
"""Stages named in the code, and parts of a run."""

MODULES: dict[str, Name] = {
    "AttentiveContext": Name("context c", "上下文 c", "cᵢ = c(H, sᵢ₋₁)"),
    "FixedContext": Name("context c", "上下文 c", "c = the encoder's last state"),
    "Output": Name("output g", "输出 g", "g(cᵢ, sᵢ, yᵢ₋₁) = tanh(W·[c; s; y])"),
    "RecurrentEncoder": Name("recurrent encoder", "循环编码器", "hⱼ = f(xⱼ, hⱼ₋₁), both ways"),
    "GRU": Name("GRU", "GRU", "hⱼ = f(xⱼ, hⱼ₋₁)"),
    "LSTM": Name("LSTM", "LSTM", "hⱼ = f(xⱼ, hⱼ₋₁)"),
    "MultiHeadAttention": Name("multi-head attention", "多头注意力", "Wo · concat(head₁ … head_H)"),
    "EncoderBlock": Name("encoder block", "编码器块", "attention, then feed-forward"),
    "DecoderBlock": Name("decoder block", "解码器块", "attention, cross-attention, feed-forward"),
    "FeedForward": Name("feed-forward", "前馈", "W₂ · activation(W₁·x + b₁) + b₂"),
    "GatedFeedForward": Name("gated feed-forward", "门控前馈", "y = W₂ · (activation(g) ⊙ h) + b₂"),
    "SinusoidalPosition": Name("position", "位置编码", "x + sines and cosines of the position"),
    "LearnedPosition": Name("position", "位置编码", "x + table[position]"),
    "RotaryPosition": Name("rotary position", "旋转位置编码", "(a·cos pθ − b·sin pθ, b·cos pθ + a·sin pθ)"),
    "LayerNorm": Name("normalisation", "层归一化", "(x − mean)/σ · g + b"),
    "RMSNorm": Name("RMS normalisation", "RMS 归一化", "x / √(mean x²) · g"),
    "Bert": Name("BERT", "BERT", "x₀ = norm(token + segment + position), then blocks"),
}
"""Modules, by class name."""

CAUSAL: dict[str, Name] = {
    "EncoderBlock": Name("causal block", "因果块", "masked attention, then feed-forward"),
    "MultiHeadAttention": Name("masked multi-head attention", "掩码多头注意力", "Wo · concat(head₁ … head_H)"),
}
"""Modules called with is_causal, by class name."""

PARTS: dict[str, Name] = {
    "query": Name("queries", "查询", "q = x·Wqᵀ + b"),
    "key": Name("keys", "键", "k = x·Wkᵀ + b"),
    "value": Name("values", "值", "v = x·Wvᵀ + b"),
    "out": Name("join the heads", "合并各头", "y = heads·Woᵀ + b"),
    "gate": Name("gate", "门", "g = x·Wgᵀ + b"),
    "up": Name("widen", "升维", "h = x·W₁ᵀ + b₁"),
    "down": Name("narrow", "降维", "y = h·W₂ᵀ + b₂"),
    "GatedFeedForward.down": Name("narrow", "降维", "y = (activation(g) ⊙ h)·W₂ᵀ + b₂"),
    "mix": Name("mix", "混合", "W·[c; s; y] + b"),
    "vocabulary": Name("logits", "词表得分", "logits = hidden·Wᵀ"),
    "initial": Name("first state", "初始状态", "W·summary + b"),
    "source": Name("source embedding", "源词嵌入", "x = table[id]"),
    "target": Name("embedding of y", "目标词嵌入", "y = table[id]"),
    "tokens": Name("token embedding", "词嵌入", "x = table[id]"),
    "pooler": Name("pooler", "池化", "W·x[0] + b"),
    "classifier": Name("classes", "类别得分", "logits = W·x + b"),
    "classes": Name("classes", "类别得分", "logits = W·pooled + b"),
    "around_attention": Name("attention and residual", "注意力与残差", "x + attention(x)"),
    "around_cross_attention": Name(
        "cross-attention and residual", "交叉注意力与残差", "x + cross-attention(x, memory)"
    ),
    "around_feedforward": Name("feed-forward and residual", "前馈与残差", "x + feed-forward(x)"),
    "cross_attention": Name("cross-attention", "交叉注意力", "Wo · concat(head₁ … head_H)"),
}
"""Modules, by attribute name, or by class of the parent module and attribute name."""

INPUTS = {
    "source": "源句",
    "length": "长度",
    "ids": "词元编号",
    "image": "图像",
    "query": "查询",
    "key": "键",
    "value": "值",
}
"""Chinese names of the inputs. Other inputs are single letters."""

_SYMBOLS = {"add": "+", "sub": "−", "mul": "·", "div": "/", "pow": "^", "eq": "=", "le": "≤", "ge": "≥", "lt": "<"}


def name_of(frame: Frame) -> Name:
    """Return the name of a frame."""
    if frame.kind == "call":
        return _call_name(frame)
    if frame.kind == "module":
        return _module_name(frame)
    name = STAGES.get(frame.name, Name(frame.name, frame.name))
    if frame.kind == "step":
        return name._replace(en=f"step {frame.time}", zh=f"第 {frame.time} 步")
    if isinstance(frame.of, str):
        return name._replace(equation=frame.of)
    if isinstance(frame.of, int):
        return name._replace(en=f"{name.en} {frame.of}", zh=f"{name.zh} {frame.of}")
    return name._replace(equation=_equation(frame.of)) if frame.name == "similarity" and frame.of else name


def _call_name(frame: Frame) -> Name:
    name = CALLS.get(frame.name, Name(frame.name.replace("_", " "), frame.name.replace("_", " ")))
    if frame.name in _SYMBOLS and len(frame.inputs) == 1 and len(frame.numbers) == 1:
        return name._replace(equation=f"x {_SYMBOLS[frame.name]} {short(frame.numbers[0])}")
    if frame.name == "rpow":
        return name._replace(equation=f"{short(frame.numbers[0])}ˣ")
    if frame.name == "rsub" and len(frame.numbers) == 1:
        return name._replace(equation=f"{short(frame.numbers[0])} − x")
    return name


def _module_name(frame: Frame) -> Name:
    kind, path = type(frame.of).__name__, frame.name.split(".")
    attribute = path[-1]
    if kind == "Residual":
        first = getattr(frame.of, "norm_first", False)
        part = PARTS[attribute]
        inner = part.equation.replace("(x", "(norm(x)") if first else f"norm({part.equation})"
        return part._replace(equation=inner)
    around = "" if frame.parent is None else type(frame.parent.of).__name__
    part_name = PARTS.get(f"{around}.{attribute}") or PARTS.get(attribute)
    class_name = (CAUSAL.get(kind) if frame.causal else None) or MODULES.get(kind)
    name = class_name if kind in ("RecurrentEncoder", "GRU", "LSTM") else part_name or class_name
    name = name or Name(attribute.replace("_", " "), attribute.replace("_", " "))
    if getattr(getattr(frame.of, "up", None), "bias", True) is None:
        name = name._replace(equation=without_bias(name.equation))
    if attribute.isdecimal():
        number = int(attribute) + 1
        return name._replace(en=f"{name.en} {number}", zh=f"{name.zh} {number}")
    return name


def without_bias(equation: str) -> str:
    """Return the equation of a linear layer, or of a feed-forward layer, without biases.

    >>> without_bias("W₂ · activation(W₁·x + b₁) + b₂")
    'W₂ · activation(W₁·x)'
    """
    return re.sub(r" \+ b[₁₂]?(?=\)|$)", "", equation)


def _equation(similarity: Any) -> str:
    """Return the equation of a similarity: the first line of its docstring, or of its function's docstring."""
    source = getattr(similarity, "function", None) or similarity
    line = (type(source).__doc__ or "").strip().splitlines()
    equation = (
        re.split(r" \([A-Z]|;(?![^\[]*\])", line[0])[0].rstrip(".") if line and "=" in line[0] else "scores = f(q, k)"
    )
    scale = getattr(similarity, "scale", None)
    if scale is None:
        return equation
    return equation.replace("scale · ", "" if scale == 1 else f"{short(scale)} · ")


def short(number: float) -> str:
    """Format a number with three digits, or an integer with all digits.

    >>> short(0.28867513), short(10000.0), short(-float("inf"))
    ('0.289', '10000', '−∞')
    """
    if number in (float("inf"), -float("inf")):
        return "∞" if number > 0 else "−∞"
    is_integer = number == int(number) and abs(number) < 1e6
    return (str(int(number)) if is_integer else f"{number:.3g}").replace("-", "−")
