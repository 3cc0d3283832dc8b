"""BERT without a reference: initialization, padding and error messages."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.models import (
    Bert,
    BertConfig,
    MaskedTokens,
    NextSentence,
    Pretraining,
    SentenceEmbedder,
    SequenceClassifier,
    TokenClassifier,
    load_bert,
    save_bert,
)
from regard.models.huggingface_bert import _SIZES, config_from, config_to
from regard.models.model_directory import read_tensors, write
from tests.models.tiny_berts import B, C, T, V, W, inputs

CONFIG = BertConfig(vocabulary=V, width=W, heads=3, hidden=40, layers=2, positions=19, dropout=0.0)
MAKERS = {
    "masked": lambda: MaskedTokens(Bert(CONFIG, pooler=False)),
    "next": lambda: NextSentence(Bert(CONFIG)),
    "pretraining": lambda: Pretraining(Bert(CONFIG)),
    "sequence": lambda: SequenceClassifier(Bert(CONFIG), C),
    "tokens": lambda: TokenClassifier(Bert(CONFIG, pooler=False), C),
    "embedder": lambda: SentenceEmbedder(Bert(CONFIG)),
    "bert": lambda: Bert(CONFIG),
}
MEANS = {
    "next, mean": lambda: NextSentence(Bert(replace(CONFIG, pool="mean"))),
    "pretraining, mean": lambda: Pretraining(Bert(replace(CONFIG, pool="mean"))),
    "sequence, mean": lambda: SequenceClassifier(Bert(replace(CONFIG, pool="mean")), C),
}
"""Models without a counterpart in Hugging Face."""
each = pytest.mark.parametrize("kind", MAKERS)
every = pytest.mark.parametrize("kind", MAKERS | MEANS)


def flat(outputs: object) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else [x for part in outputs for x in flat(part)]  # type: ignore[attr-defined]


@every
def test_a_padded_batch_is_each_alone(kind: str) -> None:
    model, (ids, lengths, segments) = (MAKERS | MEANS)[kind]().eval(), inputs()
    together = flat(model(ids, lengths, segments))
    noise = ids.clone()
    noise[torch.arange(T) >= lengths[:, None]] = V - 1
    for a, b in zip(flat(model(noise, lengths, segments)), together, strict=True):
        if a.ndim < 3:
            torch.testing.assert_close(a, b)
    for row, length in enumerate(lengths.tolist()):
        alone = flat(model(ids[row : row + 1, :length], None, segments[row : row + 1, :length]))
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a[0], b[row, :length] if a.ndim == 3 else b[row], rtol=1e-4, atol=1e-5)


@every
@pytest.mark.host
def test_maps_change_nothing(kind: str) -> None:
    model, (ids, lengths, segments) = (MAKERS | MEANS)[kind]().eval(), inputs()
    result, maps = model(ids, lengths, segments, return_maps=True)
    for a, b in zip(flat(result), flat(model(ids, lengths, segments)), strict=True):
        assert torch.equal(a, b)
    assert [m.shape for m in maps] == [(B, 3, T, T)] * 2
    rows = maps[1].dense()[2, :, :7]
    torch.testing.assert_close(rows.sum(-1), torch.ones(3, 7)) and not rows[..., 7:].any()


@each
def test_load_returns_the_model_that_was_saved(kind: str, tmp_path: Path) -> None:
    model = MAKERS[kind]().eval()
    save_bert(model, tmp_path)
    again = load_bert(tmp_path, type(model))
    assert type(again) is type(model)
    values = again.state_dict()
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_pooled_is_the_pool_of_all(pool: str) -> None:
    """Though the last block computes first tokens alone: values and gradients, an empty text and full ones too."""
    ids, lengths, segments = inputs()
    for x_in in (lengths, lengths.clone().index_fill(0, torch.tensor([1]), 0), torch.full((B,), T), None):
        bert = Bert(replace(CONFIG, pool=pool)).double().eval()
        result, expected = bert.pooled(ids, x_in, segments), bert.pool(bert(ids, x_in, segments), x_in)
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
        weights = torch.randn_like(result)
        slopes = [torch.autograd.grad((x * weights).sum(), list(bert.parameters())) for x in (result, expected)]
        for parameter, a, b in zip(bert.state_dict(), *slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11, msg=lambda m, p=parameter: f"{p}: {m}")


def test_the_last_block_computes_first_tokens_alone() -> None:
    bert, (ids, lengths, segments) = Bert(CONFIG).eval(), inputs()
    rows: list[int] = []
    bert.blocks[-1].feedforward.register_forward_hook(
        lambda module, inputs, output: rows.append(output[..., 0].numel())
    )
    bert.pooled(ids, lengths, segments)
    assert rows == [B]
    with pytest.raises(ValueError, match="bert: lengths"):
        bert.pooled(ids, [T + 1] * B)


def test_maps_in_training_match_the_returned_output() -> None:
    bert, (ids, lengths, segments) = Bert(replace(CONFIG, dropout=0.5)).train(), inputs()
    calls: list[int] = []
    bert.norm.register_forward_hook(lambda *_: calls.append(1))
    pooled, maps = bert.pooled(ids, lengths, segments, return_maps=True)
    assert len(calls) == 1 and len(maps) == 2 and tuple(pooled.shape) == (B, W)


def test_the_mean_is_read_by_the_pooler() -> None:
    bert, (ids, lengths, _) = Bert(replace(CONFIG, pool="mean")).eval(), inputs()
    hidden = bert(ids, lengths)
    for row, length in enumerate(lengths.tolist()):
        expected = torch.tanh(bert.pooler(hidden[row, :length].mean(0)))
        torch.testing.assert_close(bert.pool(hidden, lengths)[row], expected)
    assert torch.equal(bert.pool(hidden, [0] * B), torch.tanh(bert.pooler(hidden.sum(1))))  # of nothing, no number


@pytest.mark.parametrize("kind", MEANS)
def test_a_mean_has_no_name_at_hugging_face(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bert: pool \('mean'\) must be 'first' in a directory of Hugging Face"):
        save_bert(MEANS[kind](), tmp_path)
    assert not list(tmp_path.iterdir())
    save_bert(MaskedTokens(Bert(replace(CONFIG, pool="mean"), pooler=False)), tmp_path)  # nothing is pooled there


@pytest.mark.parametrize(("width", "wanted"), [(768, 0.02), (192, 0.04)])
def test_initialization_follows_the_paper(width: int, wanted: float) -> None:
    model = SequenceClassifier(Bert(replace(CONFIG, width=width, hidden=width, vocabulary=500)), 3)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert not module.bias.any()
        if isinstance(module, nn.Linear | nn.Embedding) and module.weight.numel() > 2000:
            assert abs(module.weight.square().mean().sqrt() / wanted - 1) < 0.15, module
    assert not model.bert.tokens.weight[0].any() and model.bert.tokens.weight[1].any()


def test_near_places_begin_alike() -> None:
    indices = Bert(replace(CONFIG, width=66, positions=512), pooler=False).positions.weight
    alike = nn.functional.normalize(indices, dim=-1)
    near, far = (alike[:-1] * alike[1:]).sum(-1), (alike[:-64] * alike[64:]).sum(-1)
    assert near.min() > 0.9 > 0.75 > far.max() and near.std() < 1e-3  # the same wherever they are
    assert indices.requires_grad


def test_chosen_places_are_a_part_of_all() -> None:
    ids, lengths, segments = inputs()
    places = torch.rand(B, T) < 0.3
    for kind in ("masked", "pretraining"):
        model = MAKERS[kind]().eval()
        chosen, whole = flat(model(ids, lengths, segments, places=places)), flat(model(ids, lengths, segments))
        torch.testing.assert_close(chosen[0], whole[0][places])
    none = MAKERS["masked"]()(ids, places=torch.zeros(B, T, dtype=torch.bool))
    assert none.shape == (0, V)


def test_edges_of_shape() -> None:
    bert = Bert(CONFIG).eval()
    assert bert(torch.zeros(0, 5, dtype=torch.long)).shape == (0, 5, W)
    assert bert(torch.ones(2, 1, dtype=torch.long), [1, 0])[1].abs().sum() == 0
    assert SentenceEmbedder(bert)(torch.ones(2, 3, dtype=torch.long), [3, 0])[1].abs().sum() == 0
    assert bert(torch.ones(1, 19, dtype=torch.long)).shape == (1, 19, W)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": torch.zeros(3, dtype=torch.long)}, r"ids \(3\) must be integers \(batch, length\)"),
        ({"ids": torch.zeros(2, 3)}, r"ids \(2×3\) must be integers .*; got float32"),
        ({"ids": torch.zeros(2, 20, dtype=torch.long)}, r"ids \(2×20\) must be no longer than positions \(19\)"),
        ({"ids": torch.full((2, 3), V)}, rf"ids \({V}\) must lie in 0…{V - 1}, below vocabulary"),
        ({"ids": torch.full((2, 3), -1)}, r"ids \(-1\) must lie in 0"),
        ({"segments": torch.full((2, 3), 2)}, r"segments \(2\) must lie in 0…1"),
        ({"segments": torch.zeros(2, 4, dtype=torch.long)}, r"segments \(2×4\) must be .* of the shape of ids \(2×3\)"),
        ({"lengths": [3]}, r"lengths \(1\) must be 2 integers"),
        ({"lengths": [3, 4]}, r"lengths \(4\) must lie in 0…3"),
        ({"lengths": [3.0, 1.0]}, r"lengths \(2\) must be 2 integers, .*; got float32"),
    ],
)
def test_wrong_inputs(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"bert: {message}"):
        Bert(CONFIG)(**({"ids": torch.ones(2, 3, dtype=torch.long)} | arguments))


def test_wrong_sizes_all_at_once() -> None:
    with pytest.raises(ValueError) as raised:
        Bert(BertConfig(vocabulary=0, width=10, heads=3, layers=0, activation="mish", dropout=1.0, pool="max"))
    for part in (
        "vocabulary (0) must be at least 1",
        "layers (0) must be at least 1",
        "width (10) must be divisible by heads (3)",
        "activation ('mish') must be one of gelu",
        "dropout (1.0) must lie in [0, 1)",
        "pool ('max') must be one of first, mean",
    ):
        assert part in str(raised.value)
    for make in (NextSentence, Pretraining, lambda bert: SequenceClassifier(bert, 2)):
        with pytest.raises(ValueError, match="bert must have a pooler; got one without"):
            make(Bert(CONFIG, pooler=False))
    with pytest.raises(ValueError, match=r"bert: pooler \(None\) must exist"):
        Bert(CONFIG, pooler=False).pool(torch.zeros(1, 1, W))
    for wrong in (0, ["a", "a"]):
        with pytest.raises(ValueError, match=r"classifier: classes .* must be at least one, with different names"):
            TokenClassifier(Bert(CONFIG), wrong)


def test_every_setting_has_a_name_there() -> None:
    assert {field.name for field in fields(BertConfig)} == {*_SIZES, "pool"}
    config = replace(CONFIG, activation="swish", pad=7, tied=False, head_dropout=0.25, epsilon=1e-5, segments=3)
    assert config_from(config_to(config, "BertModel")) == config
    assert config_from({"pad_token_id": None, "position_embedding_type": None}).vocabulary == 30522


def test_a_configuration_that_is_not_served() -> None:
    wrong = {
        "model_type": "albert",
        "position_embedding_type": "relative_key",
        "is_decoder": True,
        "add_cross_attention": True,
        "pruned_heads": {"0": [1]},
        "hidden_act": "mish",
        "hidden_size": 30,
        "num_attention_heads": 4,
        "num_hidden_layers": "six",
        "vocab_size": None,
        "hidden_dropout_prob": None,
        "classifier_dropout": None,
    }
    with pytest.raises(ValueError) as raised:
        config_from(wrong, "some/folder")
    for part in (
        "bert: some/folder must describe a supported BERT",
        "model_type ('albert') must be 'bert'",
        "position_embedding_type ('relative_key') must be 'absolute'",
        "is_decoder (True) must be False",
        "add_cross_attention (True)",
        "pruned_heads ({'0': [1]})",
        "hidden_act ('mish') must be one of gelu, gelu_new",
        "width (30) must be divisible by heads (4)",
        "num_hidden_layers ('six') must be a int",
        "vocab_size (None) must be a int",
        "hidden_dropout_prob (None) must be a float",
    ):
        assert part in str(raised.value)
    assert "classifier_dropout" not in str(raised.value)


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    save_bert(SequenceClassifier(Bert(CONFIG), ["no", "yes"]), tmp_path)
    config, tensors = json.loads((tmp_path / "config.json").read_text()), read_tensors(tmp_path)
    more = {name: value for name, value in tensors.items() if "layer.1.output.dense" not in name}
    write(tmp_path / "a", config | {"vocab_size": 60}, more | {"bert.extra": torch.ones(1)})
    with pytest.raises(ValueError) as raised:
        load_bert(tmp_path / "a")
    for part in (
        "must be those of a SequenceClassifier",
        "missing: bert.encoder.layer.1.output.dense.bias, bert.encoder.layer.1.output.dense.weight",
        "unexpected: bert.extra",
        f"bert.embeddings.word_embeddings.weight ({V}, {W}) for (60, {W})",
    ):
        assert part in str(raised.value)
    write(tmp_path / "b", config | {"id2label": {"0": "a"}}, tensors)
    with pytest.raises(ValueError, match=r"id2label \(1 classes\) of .* must name the 2 of its classifier"):
        load_bert(tmp_path / "b")
    write(tmp_path / "c", config | {"id2label": {"a": "a"}}, tensors)
    with pytest.raises(ValueError, match="must have integers as keys"):
        load_bert(tmp_path / "c")
    write(tmp_path / "d", config | {"architectures": ["BertForQuestionAnswering"]}, tensors)
    with pytest.raises(
        ValueError, match=r"architectures \(BertForQuestionAnswering\) of .* must have one of BertModel"
    ):
        load_bert(tmp_path / "d")
    with pytest.raises(ValueError, match=r"must be a class of regard\.models that holds a BERT"):
        load_bert(tmp_path, nn.Linear)
    with pytest.raises(ValueError, match=r"model \(Linear\) must be a Bert"):
        save_bert(nn.Linear(2, 2), tmp_path)
    write(tmp_path / "e", {k: v for k, v in config.items() if k != "id2label"}, tensors)
    assert load_bert(tmp_path / "e").labels == ("LABEL_0", "LABEL_1")


def test_padding_is_not_computed_and_changes_nothing() -> None:
    """Texts packed, with padding of any id, against each text alone: values, and gradients of every parameter."""
    bert = Bert(CONFIG).double().eval()
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids, segments = torch.randint(1, V, (4, 9)), torch.randint(2, (4, 9))
    lengths = torch.tensor([9, 0, 4, 1])
    hidden = bert(ids, lengths, segments)
    alone = [bert(ids[row : row + 1, :n], segments=segments[row : row + 1, :n])[0] for row, n in enumerate(lengths)]
    for row, (n, expected) in enumerate(zip(lengths, alone, strict=True)):
        torch.testing.assert_close(hidden[row, :n], expected, rtol=1e-9, atol=1e-10)
        assert not hidden[row, n:].any()
    names, parameters = zip(*((n, p) for n, p in bert.named_parameters() if "pooler" not in n), strict=True)
    result = torch.autograd.grad(hidden.square().sum(), parameters)
    expected = torch.autograd.grad(torch.stack([one.square().sum() for one in alone]).sum(), parameters)
    for name, a, b in zip(names, result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8, msg=name)
