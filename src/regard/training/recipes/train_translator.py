"""The recipe of `regard train translate`: parallel text and a kind of model → a run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from ...core.json_files import read_json_object
from ...core.settings import errors_of, from_values
from ...models import Seq2SeqConfig, TransformerConfig
from ...tasks.loading import TRANSLATORS, load_translator
from ...tasks.parallel import Parallel, prepare
from ...tasks.translation import EVALUATION, Translate
from ...tasks.translator import Interpreter
from ..config import Training, refuse
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from ..run_folder import check_settings, read_config

NAME = "translate"
load = load_translator


@dataclass(frozen=True)
class Recipe:
    """What every translator is trained by."""

    data: Parallel
    training: Training = field(
        default_factory=lambda: Training(
            epochs=30, learning_rate=2e-3, warmup=500, average="exponential", patience=5, weight_decay=1e-4
        )
    )
    smoothing: float = 0.1
    """Share of the probability that all subwords have in the loss, so that the model is never wholly sure."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        wrong = not 0 <= self.smoothing < 1
        return [f"translate: smoothing ({self.smoothing}) must lie in [0, 1). Try 0.1."] if wrong else []


@dataclass(frozen=True)
class TransformerRecipe(Recipe):
    """A Transformer from parallel text."""

    model: TransformerConfig = field(default_factory=lambda: TransformerConfig(dropout=0.3, tie="all"))


@dataclass(frozen=True)
class RecurrentRecipe(Recipe):
    """A recurrent encoder and decoder from parallel text, with attention or with one fixed vector between them."""

    model: Seq2SeqConfig = field(default_factory=lambda: Seq2SeqConfig(dropout=0.3))


KINDS: dict[str, type[TransformerRecipe] | type[RecurrentRecipe]] = {
    "transformer": TransformerRecipe,
    "recurrent": RecurrentRecipe,
}


def train(
    recipe: TransformerRecipe | RecurrentRecipe, folder: str | os.PathLike[str], display: Display | None = None
) -> Outcome:
    """Prepare the data, build the model, train; on a folder that holds the run, go on with it."""
    folder = Path(folder)
    refuse(errors_of(recipe))
    display = display or Display()
    check_settings(folder, {"training": asdict(recipe.training), **settings(recipe)})
    prepared = prepare(recipe.data, folder, display.say)
    config = replace(recipe.model, source_vocabulary=len(prepared.source), target_vocabulary=len(prepared.target))
    torch.manual_seed(recipe.training.seed)  # of the first weights
    interpreter = Interpreter(TRANSLATORS[type(config)](config), prepared.source, prepared.target)
    task = Translate(
        interpreter,
        *prepared.batches(recipe.data.tokens, recipe.training.seed),
        prepared.texts,
        smoothing=recipe.smoothing,
        longest=recipe.data.longest,
        tokenizer=_tokenizer(folder),
    )
    display.say(f"BLEU: {task.references.signatures['bleu']}")
    if not (folder / EVALUATION).exists():
        task.save_evaluation(folder)
    found = settings(recipe)
    return fit(task, recipe.training, folder, recipe=found, digests=prepared.digests, display=display)


def _tokenizer(folder: Path) -> str | None:
    """The tokenizer that the BLEU of a run is computed with; None for a new run, or one of an earlier version."""
    path = folder / EVALUATION
    if not path.exists():
        return None
    stored = read_json_object(
        path, "how a run is evaluated", "Delete it to choose by the references.", where="translate"
    )
    return str(stored.get("tokenizer"))


def settings(recipe: TransformerRecipe | RecurrentRecipe) -> dict[str, object]:
    """What a run keeps of a recipe besides the settings of training."""
    (kind,) = (name for name, known in KINDS.items() if type(recipe) is known)
    told = asdict(recipe)
    del told["training"]
    return {"recipe": NAME, "kind": kind, **told}


def stored(folder: str | os.PathLike[str]) -> TransformerRecipe | RecurrentRecipe:
    """The recipe of a run."""
    folder = Path(folder)
    found = read_config(folder)
    kind = KINDS.get(str(found.pop("kind", "")))
    if found.pop("recipe", None) != NAME or kind is None:
        raise ValueError(f"translate: {folder} must be a run of a translator; got another. Give its folder.")
    return from_values(kind, found)
