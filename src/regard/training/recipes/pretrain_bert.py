"""The recipe of `regard train pretrain`: plain text → a BERT that has learnt to say what is hidden."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ...core.settings import errors_of, from_values
from ...models.bert import Bert
from ...models.bert_heads import MaskedTokens, Pretraining
from ...tasks.plain import Plain, prepare
from ...tasks.pretraining import Pretrain
from ..config import Training, refuse
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from ..run_folder import check_settings, read_config
from .bert_sizes import Sizes, keep_config, told

NAME = "pretrain"


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe:
    """A BERT from plain text. Its vocabulary is found on the way."""

    texts: Plain
    model: Sizes = field(default_factory=Sizes)
    training: Training = field(
        default_factory=lambda: Training(epochs=10, learning_rate=1e-3, warmup=0.05, weight_decay=0.01)
    )

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        return fitting(self.texts.longest, self.model.positions)


def fitting(longest: int, positions: int) -> list[str]:
    if longest <= positions:
        return []
    return [f"model: positions ({positions}) must be at least longest; got {longest}. Try --longest {positions}."]


def train(recipe: PretrainRecipe, folder: str | os.PathLike[str], display: Display | None = None) -> Outcome:
    """Prepare the text, build the model, train; on a folder that holds the run, go on with it."""
    folder = Path(folder)
    refuse(errors_of(recipe))
    display = display or Display()
    seed = recipe.training.seed
    settings = told(recipe, recipe=NAME)
    check_settings(folder, {"training": asdict(recipe.training), **settings})
    prepared = prepare(recipe.texts, folder, recipe.model.vocabulary, seed, display.say)
    config = recipe.model.config(prepared.words)
    torch.manual_seed(seed)  # of the first weights
    paired = recipe.texts.next_sentence
    model = Pretraining(Bert(config)) if paired else MaskedTokens(Bert(config, pooler=False))
    digests = {**prepared.digests, **keep_config(folder, config)}
    task = Pretrain(model, prepared.words, *prepared.batches(recipe.texts, seed))
    return fit(task, recipe.training, folder, recipe=settings, digests=digests, display=display)


def stored(folder: str | os.PathLike[str]) -> PretrainRecipe:
    """The recipe of a run."""
    folder = Path(folder)
    found = read_config(folder)
    if found.pop("recipe", None) != NAME:
        raise ValueError(f"pretrain: {folder} must be a run of pretraining; got another. Give its folder.")
    return from_values(PretrainRecipe, found)
