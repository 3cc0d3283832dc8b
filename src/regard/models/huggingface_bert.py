"""BERT models of Hugging Face: reading and writing of model directories, with all heads and with older tensor names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

from torch import Tensor, nn

from .bert import ACTIVATIONS, Bert, BertConfig
from .bert_heads import MaskedTokens, NextSentence, Pretraining, SentenceEmbedder, SequenceClassifier, TokenClassifier
from .model_directory import (
    architectures_of,
    block_names,
    class_names,
    fill,
    label_names,
    read_config,
    read_tensors,
    refuse_run,
    tensor_names,
    write,
)

Head = TypeVar("Head", bound=nn.Module)
ARCHITECTURES: dict[str, type[nn.Module]] = {
    "BertModel": Bert,
    "BertForMaskedLM": MaskedTokens,
    "BertForNextSentencePrediction": NextSentence,
    "BertForPreTraining": Pretraining,
    "BertForSequenceClassification": SequenceClassifier,
    "BertForTokenClassification": TokenClassifier,
}
LABELLED = (SequenceClassifier, TokenClassifier)
POOLED = (NextSentence, Pretraining, SequenceClassifier)
UNPOOLED = (MaskedTokens, TokenClassifier)
"""Heads that `transformers` builds without a pooler."""
PREFIX = "bert."
# our name → theirs, and their default
_SIZES: dict[str, tuple[str, Any]] = {
    "vocabulary": ("vocab_size", 30522),
    "width": ("hidden_size", 768),
    "heads": ("num_attention_heads", 12),
    "hidden": ("intermediate_size", 3072),
    "layers": ("num_hidden_layers", 12),
    "positions": ("max_position_embeddings", 512),
    "segments": ("type_vocab_size", 2),
    "activation": ("hidden_act", "gelu"),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "head_dropout": ("classifier_dropout", None),
    "epsilon": ("layer_norm_eps", 1e-12),
    "pad": ("pad_token_id", 0),
    "tied": ("tie_word_embeddings", True),
}
_TRUNK = {
    "tokens": "embeddings.word_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "positions": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
_BLOCK = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "around_attention.norm": "attention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "around_feedforward.norm": "output.LayerNorm",
}
_PREDICTIONS = {
    "dense": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "vocabulary": "cls.predictions.decoder",
}
_NEXT, _CLASSES = tensor_names({"next": "cls.seq_relationship"}), tensor_names({"classes": "classifier"})
_BIAS = "cls.predictions.bias"
"""Equal to the bias of the decoder if weights are tied, otherwise unused."""
# parts of other heads, which a checkpoint may contain and the loaded head does not use
_OTHERS = ("*position_ids", "cls.*", "classifier.*", "qa_outputs.*", "pooler.*", "bert.pooler.*")


@overload
def load_bert(
    folder: str | Path,
    head: None = None,
    *,
    fresh: bool = False,
    classes: int | Sequence[str] | None = None,
    **changes: int | float | str | None,
) -> nn.Module: ...
@overload
def load_bert(
    folder: str | Path,
    head: type[Head],
    *,
    fresh: bool = False,
    classes: int | Sequence[str] | None = None,
    **changes: int | float | str | None,
) -> Head: ...
def load_bert(
    folder: str | Path,
    head: type[nn.Module] | None = None,
    *,
    fresh: bool = False,
    classes: int | Sequence[str] | None = None,
    **changes: int | float | str | None,
) -> nn.Module:
    """Load a BERT from a model directory, in evaluation mode.

    Args:
        folder: with `config.json` and `model.safetensors` or `pytorch_model.bin`.
        head: `Bert`, `MaskedTokens`, `NextSentence`, `Pretraining`, `SequenceClassifier`, `TokenClassifier` or
            `SentenceEmbedder`; None uses the one in the config.
        fresh: whether layers of the head that are missing in the checkpoint are initialized; otherwise they are errors.
            Layers of other heads in the checkpoint are ignored.
        classes: number or names of the classes of a new classifier; None uses those of the checkpoint.
        changes: settings of `BertConfig` to override, such as attention_dropout=0.0.

    Raises:
        ValueError: for an unsupported config and for tensors that do not fit. The message lists all problems.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2))
    >>> save_bert(SequenceClassifier(bert, ["bad", "good"]), folder)
    >>> load_bert(folder, SequenceClassifier).labels
    ('bad', 'good')
    >>> load_bert(folder, Bert, attention_dropout=0.2).config.attention_dropout
    0.2
    """
    stored = read_config(folder)
    settings: dict[str, Any] = changes
    config = replace(config_from(stored, folder), **settings)
    head = _head(stored, folder) if head is None else head
    if head is not SentenceEmbedder and head not in ARCHITECTURES.values():
        raise ValueError(f"bert: head ({head!r}) must be a class of regard.models that holds a BERT.")
    tensors = _with_current_names(read_tensors(folder))
    prefix = PREFIX if any(name.startswith(PREFIX) for name in tensors) else ""
    pooled = head in POOLED or (head not in UNPOOLED and f"{prefix}pooler.dense.weight" in tensors)
    bert = Bert(config, pooler=pooled)
    model: nn.Module
    if head in LABELLED:
        if classes is not None and fresh:
            tensors = {name: value for name, value in tensors.items() if not name.startswith("classifier.")}
        model = head(bert, _classes(stored, tensors, folder) if classes is None else classes)
    else:
        model = bert if head is Bert else head(bert)
    names = names_of(model, prefix)
    new_layers = [name for name in names if "bert." not in name or "bert.pooler." in name]
    fill(model, tensors, names, optional=new_layers if fresh and head is not Bert else (), ignored=_OTHERS)
    return model.eval()


def save_bert(model: nn.Module, folder: str | Path) -> None:
    """Write a BERT with its head as a model directory for `transformers`; a `SentenceEmbedder` as a BertModel.

    Use `WordPiece.save(folder)` for the vocabulary. Other files in the folder stay.

    Raises:
        ValueError: if `transformers` has no counterpart: another class, or a pooler that reads the mean.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2))
    >>> save_bert(SequenceClassifier(bert, ["bad", "good"]), folder)
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    inner = model.bert if isinstance(model, SentenceEmbedder) else model
    architecture = {kind: name for name, kind in ARCHITECTURES.items()}.get(type(inner))
    if architecture is None:
        raise ValueError(f"bert: model ({type(model).__name__}) must be a Bert or hold one as one of its heads.")
    bert = inner if isinstance(inner, Bert) else inner.bert
    assert isinstance(bert, Bert)
    values = inner.state_dict()
    left_out = ("pooler.",) if isinstance(inner, UNPOOLED) else ()
    if bert.config.pool != "first" and bert.pooler is not None and not left_out:
        raise ValueError(
            f"bert: pool ({bert.config.pool!r}) must be 'first' in a directory of Hugging Face: its pooler reads the "
            "token [CLS]. Fine-tune with --pool first to export a classifier."
        )
    names = names_of(inner, "" if inner is bert else PREFIX)
    tensors = {
        theirs: values[ours] for ours, theirs in names.items() if not ours.removeprefix(PREFIX).startswith(left_out)
    }
    if "cls.predictions.decoder.bias" in tensors:
        tensors[_BIAS] = tensors["cls.predictions.decoder.bias"].clone()
    write(folder, config_to(bert.config, architecture, getattr(inner, "labels", ())), tensors)


def config_from(stored: Mapping[str, Any], where: str | Path = "config") -> BertConfig:
    """Return our configuration for that of a `config.json`.

    Raises:
        ValueError: for unsupported settings and invalid sizes. The message lists them all.
    """
    refuse_run("bert", stored, where)
    wrong = [
        f"{name} ({stored[name]!r}) must be {expected!r}"
        for name, expected in (
            ("model_type", "bert"),
            ("position_embedding_type", "absolute"),
            ("is_decoder", False),
            ("add_cross_attention", False),
            ("pruned_heads", {}),
        )
        if stored.get(name, expected) not in (expected, None)
    ]
    settings = {ours: stored.get(theirs, default) for ours, (theirs, default) in _SIZES.items()}
    settings["pad"] = 0 if settings["pad"] is None else settings["pad"]
    for ours, (theirs, default) in _SIZES.items():
        none = (type(None),) if default is None else ()
        kinds = (float, int, *none) if isinstance(default, float | None) else (type(default),)
        if not isinstance(settings[ours], kinds) or (isinstance(settings[ours], bool) and ours != "tied"):
            wrong.append(f"{theirs} ({settings[ours]!r}) must be a {kinds[0].__name__}")
            settings.pop(ours)
    if settings.get("activation", "gelu") not in ACTIVATIONS:
        wrong.append(f"hidden_act ({settings.pop('activation')!r}) must be one of {', '.join(ACTIVATIONS)}")
    config = BertConfig(**({"vocabulary": 1} | settings))
    wrong += [problem.removeprefix("bert: ").rstrip(".") for problem in config.errors()]
    if wrong:
        raise ValueError(f"bert: {where} must describe a supported BERT; got one whose {'; '.join(wrong)}.")
    return config


def config_to(config: BertConfig, architecture: str, labels: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the `config.json` of our configuration."""
    config_json: dict[str, Any] = {"architectures": [architecture], "model_type": "bert"}
    config_json |= {theirs: getattr(config, ours) for ours, (theirs, _) in _SIZES.items()}
    return config_json | (label_names(labels) if labels else {})


def names_of(model: nn.Module, prefix: str = PREFIX) -> dict[str, str]:
    """Map our tensor names of a BERT with a head to theirs. `prefix` precedes the names of BERT itself."""
    if isinstance(model, Bert):
        names = tensor_names(_TRUNK | block_names(model.config.layers, _BLOCK, "encoder.layer"))
        return {ours: f"{prefix}{theirs}" for ours, theirs in names.items() if ours in model.state_dict()}
    if isinstance(model, Pretraining):
        inner = {f"masked.{ours}": theirs for ours, theirs in names_of(model.masked, prefix).items()}
        return inner | _NEXT
    assert isinstance(model.bert, Bert)
    names = {f"bert.{ours}": theirs for ours, theirs in names_of(model.bert, prefix).items()}
    if isinstance(model, MaskedTokens):
        own = tensor_names(_PREDICTIONS)
        if model.bert.config.tied:
            del own["vocabulary.weight"]
            own["vocabulary.bias"] = _BIAS
        return names | own
    if isinstance(model, NextSentence):
        return names | _NEXT
    return names | (_CLASSES if isinstance(model, LABELLED) else {})


def _with_current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors with old names: scale and shift of a norm were gamma and beta in TensorFlow."""
    renamed = {}
    for name, value in tensors.items():
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        renamed[name] = value
    twin = "cls.predictions.decoder.bias"
    for name, other in ((_BIAS, twin), (twin, _BIAS)):  # checkpoints have one of them or both
        if other in renamed:
            renamed.setdefault(name, renamed[other])
    return renamed


def _head(stored: Mapping[str, Any], folder: str | Path) -> type[nn.Module]:
    named = architectures_of(stored) or ["BertModel"]
    for name in named:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise ValueError(
        f"bert: architectures ({', '.join(named)}) of {folder} must have one of {', '.join(ARCHITECTURES)}. "
        "The BERT in it can be loaded without that head: load_bert(folder, Bert)."
    )


def _classes(stored: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: str | Path) -> int | list[str]:
    """Return the class names of a checkpoint, or else the number of its classes."""
    if "classifier.weight" not in tensors:
        raise ValueError(
            f"bert: {folder} must have a classifier; got a checkpoint without one. Train one with regard train "
            f"classify RUN --from {folder}, or add an untrained one with load_bert(…, classes=…, fresh=True)."
        )
    rows = len(tensors["classifier.weight"])
    named = class_names(stored, folder)
    if not named:
        return rows
    if len(named) != rows:
        raise ValueError(f"bert: id2label ({len(named)} classes) of {folder} must name the {rows} of its classifier.")
    return named
