"""`regard train RECIPE RUN …`: train a model, or resume the run in the folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECIPES = ("translate", "language", "pretrain", "classify")
EPILOG = """recipes:
  translate   sentence pairs → a translator: a Transformer, or with --kind recurrent an encoder and decoder with
              attention (or, with --context fixed, without)
  language    plain text → a GPT, trained to predict the next token, from scratch or --from another GPT; with --kind
              llama in the form of Llama
  pretrain    plain text → a BERT, trained to predict masked tokens
  classify    texts with labels → a classifier, from scratch or --from a pretrained BERT or GPT; with --images, of
              images

examples:
  regard train translate runs/de-en --train train.de train.en --valid val.de val.en --minutes 45
  regard train translate runs/de-en                  resumes the run with its settings
  regard train translate runs/x --kind recurrent --help
  regard train language runs/plays --train plays.txt --vocabulary characters --minutes 10
  regard train pretrain runs/bert --text reviews.txt --documents line --minutes 45
  regard train classify runs/mood --data reviews.tsv --from runs/bert
  torchrun --nproc-per-node 2 -m regard train translate runs/de-en …

regard train translate RUN --help lists all settings; with classify RUN --from X, those of finetuning."""


def run(arguments: Sequence[str]) -> int:
    """Train a model by a recipe and return an exit status."""
    parser = argparse.ArgumentParser(
        prog="regard train",
        description="Train a model. A run is a folder: settings, vocabularies, weights, metrics, curves, samples. "
        "To resume an interrupted run, repeat the command.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", choices=RECIPES, nargs="?")
    parser.add_argument("folder", metavar="RUN", type=Path, nargs="?", help="the folder of the run")
    parser.add_argument(
        "--kind",
        default=None,
        help="kind of model: transformer (default) or recurrent; gpt2 (default) or llama; vit or cnn",
    )
    known, rest = parser.parse_known_args(list(arguments))
    if known.recipe is None:
        parser.print_help()
        return 0 if set(rest) & {"-h", "--help"} else 2
    if known.folder is None and not set(rest) & {"-h", "--help"}:
        parser.error("RUN must be given: the folder of the run, such as runs/de-en")
    return _train(known.recipe, known.folder, known.kind, rest)


def _train(name: str, folder: Path | None, kind: str | None, rest: list[str]) -> int:
    """Parse the settings, with those of an existing run as defaults, and train."""
    from ..training import parse, read_config

    existing = folder if folder is not None and (folder / "config.json").exists() else None
    if name == "classify" and (
        _has_option("--images", rest) or (existing and read_config(existing).get("recipe") == "images")
    ):
        recipe = _recipe("images")
    else:
        recipe = _recipe(name)
    previous, kinds = recipe.stored(existing) if existing else None, recipe.KINDS
    if kind is None and "finetune" in kinds:
        scratch = next(name for name in kinds if name != "finetune")
        kind = "finetune" if _has_option("--from", rest) else None if previous else scratch
    if kind is not None and kind not in kinds:
        raise ValueError(f"kind ({kind}) must be one of {', '.join(kinds)}.")
    chosen = type(previous) if previous is not None and kind is None else kinds[kind or next(iter(kinds))]
    defaults = previous if isinstance(previous, chosen) else None
    settings = parse(chosen, rest, defaults, program=f"regard train {name} RUN", flat=True)
    assert folder is not None, "help ends the process"
    recipe.train(settings, folder)
    return 0


def _recipe(name: str) -> Any:
    """Return the module of a recipe."""
    from ..training.recipes import (
        pretrain_bert,
        train_image_classifier,
        train_language_model,
        train_text_classifier,
        train_translator,
    )

    return {
        "translate": train_translator,
        "language": train_language_model,
        "pretrain": pretrain_bert,
        "classify": train_text_classifier,
        "images": train_image_classifier,
    }[name]


def _has_option(option: str, rest: Sequence[str]) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in rest)
