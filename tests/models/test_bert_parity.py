"""BERT against transformers, head by head: outputs, gradients, directories in both directions."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.models import Bert, MaskedTokens, Pretraining, SentenceEmbedder, SequenceClassifier, load_bert, save_bert
from regard.models.huggingface_bert import names_of
from tests.models.tiny_berts import HEADS, LENGTHS, V, inputs, ours, outputs, saved, theirs

transformers = pytest.importorskip("transformers")
each = pytest.mark.parametrize("architecture", HEADS)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@each
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_outputs_and_gradients(architecture: str, activation: str, tmp_path: Path) -> None:
    model = saved(architecture, tmp_path, hidden_act=activation)
    mine = load_bert(tmp_path)
    assert type(mine) is HEADS[architecture] and not mine.training
    ids, lengths, segments = inputs()
    expected, result = outputs(model, ids, segments), ours(mine, ids, lengths, segments)
    drawn = [torch.randn_like(x) / x.numel() ** 0.5 for x in expected]
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    for outs in (expected, result):
        sum((x * weight).sum() for x, weight in zip(outs, drawn, strict=True)).backward()
    of_theirs = dict(model.named_parameters())
    names = names_of(mine, "" if architecture == "BertModel" else "bert.")
    of_ours = dict(mine.named_parameters())
    assert set(names.values()) == set(of_theirs) and set(names) == set(of_ours)
    for mine_name, name in names.items():
        grad = of_theirs[name].grad
        scale = max(1.0, float(grad.abs().max()))  # gradients are sums over the batch: 1e-5 of the largest
        torch.testing.assert_close(of_ours[mine_name].grad / scale, grad / scale, **CLOSE, msg=lambda m, n=name: n + m)


@each
def test_there_and_back(architecture: str, tmp_path: Path) -> None:
    saved(architecture, tmp_path / "theirs")
    save_bert(load_bert(tmp_path / "theirs"), tmp_path / "ours")
    again, report = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    again.save_pretrained(tmp_path / "again")
    first = load_file(tmp_path / "theirs/model.safetensors")
    for folder in ("ours", "again"):
        result = load_file(tmp_path / folder / "model.safetensors")
        assert result.keys() == first.keys() and all(torch.equal(result[name], first[name]) for name in first)
    assert load_bert(tmp_path / "again").bert.config if architecture != "BertModel" else load_bert(tmp_path / "again")
    if "Classification" in architecture:
        assert again.config.id2label == dict(enumerate("vwxyz")) and again.config.label2id["z"] == 4
        assert load_bert(tmp_path / "again").labels == tuple("vwxyz")


def test_the_configuration_round_trips(tmp_path: Path) -> None:
    options = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}
    saved("BertForSequenceClassification", tmp_path, **options, layer_norm_eps=1e-6, hidden_act="relu")
    model = load_bert(tmp_path, attention_dropout=0.0)
    config = model.bert.config
    assert (config.dropout, config.attention_dropout, config.head_dropout) == (0.2, 0.0, 0.4)
    assert (config.epsilon, config.activation) == (1e-6, "relu") and model.dropout.p == 0.4
    assert model.bert.blocks[0].around_attention.norm.eps == 1e-6
    save_bert(model, tmp_path / "ours")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "ours").config
    assert (again.hidden_dropout_prob, again.classifier_dropout, again.layer_norm_eps) == (0.2, 0.4, 1e-6)
    assert load_bert(tmp_path / "ours").bert.config == config


def test_maps_are_the_weights_of_transformers(tmp_path: Path) -> None:
    model = saved("BertModel", tmp_path)
    model.set_attn_implementation("eager")
    ids, lengths, segments = inputs()
    _, maps = load_bert(tmp_path, Bert)(ids, lengths, segments, return_maps=True)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    expected = model(ids, attention_mask=mask, token_type_ids=segments, output_attentions=True).attentions
    for m, weights in zip(maps, expected, strict=True):
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(m.dense()[row, :, :length], weights[row, :, :length], **CLOSE)


def test_embeddings_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    model = saved("BertModel", tmp_path)
    ids, lengths, segments = inputs()
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).float()
    hidden = model(ids, attention_mask=mask, token_type_ids=segments).last_hidden_state
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    expected = torch.nn.functional.normalize(mean, dim=1)
    torch.testing.assert_close(load_bert(tmp_path, SentenceEmbedder)(ids, lengths, segments), expected, **CLOSE)


def test_old_names_and_the_old_format(tmp_path: Path) -> None:
    model = theirs("BertForPreTraining")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in model.state_dict().items()
        if name != "cls.predictions.decoder.weight"
    }
    assert any("gamma" in name for name in old) and "bert.embeddings.position_ids" not in old
    old["bert.embeddings.position_ids"] = torch.arange(19)[None]
    torch.save(old, tmp_path / "pytorch_model.bin")
    config = json.loads(model.config.to_json_string(use_diff=False))
    del config["model_type"]  # as in the first checkpoints
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": None}))
    ids, lengths, segments = inputs()
    result = ours(load_bert(tmp_path, Pretraining), ids, lengths, segments)
    for a, b in zip(result, outputs(model, ids, segments), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    assert type(load_bert(tmp_path)) is Bert


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_of_predictions_are_tied_or_not(tied: bool, tmp_path: Path) -> None:
    model = saved("BertForMaskedLM", tmp_path, tie_word_embeddings=tied)
    mine = load_bert(tmp_path)
    assert (mine.vocabulary.weight is mine.bert.tokens.weight) == tied
    ids, lengths, segments = inputs()
    torch.testing.assert_close(ours(mine, ids, lengths, segments), outputs(model, ids, segments), **CLOSE)
    save_bert(mine, tmp_path / "ours")
    assert ("cls.predictions.decoder.weight" in load_file(tmp_path / "ours/model.safetensors")) != tied


def test_a_head_on_a_checkpoint_that_has_another(tmp_path: Path) -> None:
    model = saved("BertForPreTraining", tmp_path)
    ids, lengths, segments = inputs()
    (result,) = ours(load_bert(tmp_path, MaskedTokens), ids, lengths, segments)
    torch.testing.assert_close(result, outputs(model, ids, segments)[0], **CLOSE)
    assert load_bert(tmp_path, Bert).pooler is not None
    with pytest.raises(ValueError, match=r"must have a classifier; got a checkpoint without one\. .* --from "):
        load_bert(tmp_path, SequenceClassifier)
    with pytest.raises(ValueError, match=r"missing: classifier\.bias, classifier\.weight\n"):
        load_bert(tmp_path, SequenceClassifier, classes=3)
    output = load_bert(tmp_path, SequenceClassifier, classes=["no", "yes"], fresh=True)
    assert output.labels == ("no", "yes") and torch.equal(output.bert.pooler.weight, model.bert.pooler.dense.weight)
    assert output.bert.tokens.weight.shape[0] == V
    save_bert(output, tmp_path / "two")
    assert load_bert(tmp_path / "two", SequenceClassifier, classes=7, fresh=True).classes.out_features == 7
    saved("BertForMaskedLM", tmp_path / "masked")
    with pytest.raises(ValueError, match=r"missing: bert\.pooler\.dense\.bias, .*, cls\.seq_relationship\.weight\n"):
        load_bert(tmp_path / "masked", Pretraining)
    assert load_bert(tmp_path / "masked", Pretraining, fresh=True).next.bias.eq(0).all()
    assert load_bert(tmp_path / "masked", SentenceEmbedder).bert.pooler is None
