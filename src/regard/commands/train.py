"""`regard train RECIPE RUN …`: the command line of every training; on a folder that holds a run, it goes on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECIPES = ("translate", "pretrain", "classify")
EPILOG = """recipes:
  translate   sentence pairs → a translator: a Transformer, or with --kind recurrent an encoder and decoder with
              attention (or, with --context fixed, without)
  pretrain    plain text → a BERT that says what is hidden
  classify    texts with labels → a classifier, from scratch or --from a pretrained BERT; with --images, pictures

examples:
  regard train translate runs/de-en --train train.de train.en --valid val.de val.en --minutes 45
  regard train translate runs/de-en                  goes on with the run, by the settings it has
  regard train translate runs/x --kind recurrent --help
  regard train pretrain runs/bert --text reviews.txt --documents line --minutes 45
  regard train classify runs/mood --data reviews.tsv --from runs/bert
  torchrun --nproc-per-node 2 -m regard train translate runs/de-en …

regard train translate RUN --help lists every setting; regard train classify RUN --from X --help those of finetuning."""


def run(arguments: Sequence[str]) -> int:
    """Train by a recipe; the result is an exit status."""
    parser = argparse.ArgumentParser(
        prog="regard train",
        description="Train a model. A run is a folder: settings, vocabularies, weights, metrics, curves, samples. "
        "Training that was interrupted goes on when the command is given again.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", choices=RECIPES, nargs="?")
    parser.add_argument("folder", metavar="RUN", type=Path, nargs="?", help="the folder of the run")
    parser.add_argument("--kind", default=None, help="of model: transformer (default) or recurrent; vit or cnn")
    known, rest = parser.parse_known_args(list(arguments))
    if known.recipe is None:
        parser.print_help()
        return 0 if set(rest) & {"-h", "--help"} else 2
    if known.folder is None and not set(rest) & {"-h", "--help"}:
        parser.error("RUN must be given: the folder of the run, such as runs/de-en")
    return _train(known.recipe, known.folder, known.kind, rest)


def _train(name: str, folder: Path | None, kind: str | None, rest: list[str]) -> int:
    """Read the settings of a kind, by those of the run that is there, and train."""
    from ..training import parse, read_config

    begun = folder if folder is not None and (folder / "config.json").exists() else None
    if name == "classify" and (_given("--images", rest) or (begun and read_config(begun).get("recipe") == "images")):
        recipe = _recipe("images")
    else:
        recipe = _recipe(name)
    held, kinds = recipe.stored(begun) if begun else None, recipe.KINDS
    if kind is None and "finetune" in kinds:
        kind = "finetune" if _given("--from", rest) else None if held else "scratch"
    if kind is not None and kind not in kinds:
        raise ValueError(f"kind ({kind}) must be one of {', '.join(kinds)}.")
    chosen = type(held) if held is not None and kind is None else kinds[kind or next(iter(kinds))]
    defaults = held if isinstance(held, chosen) else None
    settings = parse(chosen, rest, defaults, program=f"regard train {name} RUN", flat=True)
    assert folder is not None, "help ends the process"
    recipe.train(settings, folder)
    return 0


def _recipe(name: str) -> Any:
    """The module of a recipe."""
    from ..training.recipes import pretrain_bert, train_image_classifier, train_text_classifier, train_translator

    return {
        "translate": train_translator,
        "pretrain": pretrain_bert,
        "classify": train_text_classifier,
        "images": train_image_classifier,
    }[name]


def _given(option: str, rest: Sequence[str]) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in rest)
