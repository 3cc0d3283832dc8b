"""`regard train RECIPE RUN …`: the command line of every training; on a folder that holds a run, it goes on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

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
    return COMMANDS[known.recipe](known.folder, known.kind, rest)


def _translate(folder: Path | None, kind: str | None, rest: list[str]) -> int:
    from ..training.recipes import train_translator as recipe

    held = recipe.stored(folder) if _begun(folder) else None
    return _kinds(recipe, recipe.KINDS, held, folder, kind, rest, "translate")


def _pretrain(folder: Path | None, kind: str | None, rest: list[str]) -> int:
    from ..training.recipes import pretrain_bert as recipe

    held = recipe.stored(folder) if _begun(folder) else None
    return _kinds(recipe, {"bert": recipe.PretrainRecipe}, held, folder, kind, rest, "pretrain")


def _classify(folder: Path | None, kind: str | None, rest: list[str]) -> int:
    if _given("--images", rest) or (_begun(folder) and _recipe(folder) == "images"):
        from ..training.recipes import train_image_classifier as recipe

        held = recipe.stored(folder) if _begun(folder) else None
        return _kinds(recipe, recipe.KINDS, held, folder, kind, rest, "classify")
    from ..training.recipes import train_text_classifier

    found = train_text_classifier.stored(folder) if _begun(folder) else None
    kind = kind or ("finetune" if _given("--from", rest) else None if found else "scratch")
    return _kinds(train_text_classifier, train_text_classifier.KINDS, found, folder, kind, rest, "classify")


COMMANDS = {"translate": _translate, "pretrain": _pretrain, "classify": _classify}


def _kinds(
    recipe: Any, kinds: Mapping[str, Any], held: Any, folder: Path | None, kind: str | None, rest: list[str], name: str
) -> int:
    """Read the settings of a kind, by those of the run that is there, and train."""
    from ..training import parse

    if kind is not None and kind not in kinds:
        raise ValueError(f"kind ({kind}) must be one of {', '.join(kinds)}.")
    chosen = type(held) if held is not None and kind is None else kinds[kind or next(iter(kinds))]
    defaults = held if isinstance(held, chosen) else None
    found = parse(chosen, rest, defaults, program=f"regard train {name} RUN", flat=True)
    assert folder is not None, "help ends the process"
    recipe.train(found, folder)
    return 0


def _begun(folder: Path | None) -> TypeGuard[Path]:
    return folder is not None and (folder / "config.json").exists()


def _recipe(folder: Path) -> object:
    from ..training import read_config

    return read_config(folder).get("recipe")


def _given(option: str, rest: Sequence[str]) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in rest)
