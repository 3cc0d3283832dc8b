"""What runs of BERTs share: the sizes beside the weights, and a start from a run or from a Hugging Face directory."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..data.digests import text_digest
from ..data.wordpiece import WordPiece
from ..models.bert import Bert, BertConfig, check
from ..models.bert_files import config_from, load_bert, save_bert
from ..models.bert_heads import MaskedTokens, Pretraining, SequenceClassifier
from ..tasks.labelled import read_labels
from .arguments import from_json, to_json
from .checkpoint import states
from .files import write
from .run import read_config, read_weights
from .weights import load_weights

CONFIG = "bert.json"


@dataclass(frozen=True)
class Sizes:
    """The sizes of a BERT that starts anew."""

    vocabulary: int = 8000
    """Pieces of the vocabulary, at most; they are found in the text."""
    width: int = 256
    """Of embeddings and of every block."""
    heads: int = 4
    """Of every attention; the width is divisible by them."""
    hidden: int = 1024
    """Of the feed-forward layers, inside."""
    layers: int = 4
    """Blocks."""
    positions: int = 512
    """Pieces of the longest text that it can ever read."""
    dropout: float = 0.1
    """Share of embeddings and of each part's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels have none."""
    pool: Literal["first", "mean"] = "first"
    """What a text is classified by, and next sentences are told by: its first token, [CLS], or the mean of all."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        try:
            check(BertConfig(**asdict(self)), "model")
        except ValueError as error:
            return [str(error)]
        return []

    def config(self, words: WordPiece) -> BertConfig:
        """Those of a BERT that reads these pieces."""
        return BertConfig(**{**asdict(self), "vocabulary": len(words), "pad": words.pad})


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of ours; else it may be a directory of Hugging Face."""
    return "recipe" in read_config(folder)


def begun(folder: Path) -> bool:
    """Whether a run has a state to go on from: then its first weights are not asked for."""
    return bool(states(folder))


def keep_config(folder: Path, config: BertConfig) -> dict[str, str]:
    """Write the configuration beside the weights to be (of several processes the first does); returns its digest."""
    text = to_json(config)
    if os.environ.get("RANK", "0") == "0":
        write(folder / CONFIG, text.encode())
    return {CONFIG: text_digest(text)}


def config_of(folder: Path) -> BertConfig:
    """The configuration of the BERT of a run."""
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(f"training: {path} must exist; got a run without. Train there first, or give another folder.")
    return from_json(BertConfig, path.read_text(encoding="utf-8"))


def positions(folder: Path) -> int:
    """Ids of the longest text that the BERT of a run or of a Hugging Face directory reads."""
    return config_of(folder).positions if is_run(folder) else config_from(read_config(folder), folder).positions


def pretrained(folder: Path) -> MaskedTokens | Pretraining:
    """The best model of a run of `regard train pretrain`."""
    weights = read_weights(folder)  # first: it checks the files that are read below
    texts = read_config(folder).get("texts")
    if not isinstance(texts, dict) or not isinstance(texts.get("next_sentence"), bool):
        raise ValueError(f"training: {folder} must be a run of pretrain; its config.json has no texts.next_sentence.")
    paired = texts["next_sentence"]
    config = config_of(folder)
    model = Pretraining(Bert(config)) if paired else MaskedTokens(Bert(config, pooler=False))
    load_weights(model, weights, str(folder / "model.safetensors"))
    return model.eval()


def classifier(folder: Path) -> SequenceClassifier:
    """The best model of a run of `regard train classify` on texts."""
    weights = read_weights(folder)  # first: it checks the files that are read below
    model = SequenceClassifier(Bert(config_of(folder)), read_labels(folder))
    load_weights(model, weights, str(folder / "model.safetensors"))
    return model.eval()


MODELS = {"pretrain": pretrained, "classify": classifier}


def best(folder: str | os.PathLike[str]) -> nn.Module:
    """The best model of a run with a BERT."""
    folder = Path(folder)
    recipe = str(read_config(folder).get("recipe"))
    if recipe not in MODELS or not (folder / CONFIG).exists():
        raise ValueError(f"training: {folder} must be a run of pretrain or of classify on texts; got {recipe}.")
    return MODELS[recipe](folder)


def start(folder: Path, labels: list[str], **changes: Any) -> SequenceClassifier:
    """A classifier on the BERT of a run or of a Hugging Face directory; layers that it lacks start anew.

    changes: settings of its `BertConfig` that are to be others.
    """
    if not is_run(folder):
        return load_bert(folder, SequenceClassifier, fresh=True, classes=labels, **changes).train()
    source = best(folder)
    found = source.bert
    assert isinstance(found, Bert)
    made = SequenceClassifier(Bert(replace(found.config, **changes)), labels)
    weights = found.state_dict()
    with torch.no_grad():
        for name, value in made.bert.state_dict().items():
            if name in weights:  # all but the pooler, which masked pieces have no use for
                value.copy_(weights[name])
    return made


def to_huggingface(run: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Write the best model of a run as a directory that `transformers` opens."""
    run, folder = Path(run), Path(folder)
    save_bert(best(run), folder)
    WordPiece.load(run).save(folder)
    return folder


def told(settings: Any, /, **more: object) -> dict[str, object]:
    """What a run keeps of a recipe besides the settings of training."""
    found = asdict(settings)
    del found["training"]
    return {**more, **found}
