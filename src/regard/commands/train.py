"""`regard train RECIPE RUN …`: train a model, or resume the run in the folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..core.settings import suggestion

RECIPES = ("translate", "language", "pretrain", "classify")
DESCRIPTION = (
    "Train a model. A run is a folder: settings, vocabularies, weights, metrics, curves, samples.\n"
    "To resume an interrupted run, repeat the command."
)
EXAMPLES = {
    "translate": "regard train translate runs/de-en --train train.de train.en --valid val.de val.en --minutes 45",
    "language": "regard train language runs/plays --train plays.txt --vocabulary characters --minutes 10",
    "pretrain": "regard train pretrain runs/bert --train reviews.txt --documents line --minutes 45",
    "classify": "regard train classify runs/mood --train reviews.tsv --from runs/bert",
    "images": "regard train classify runs/fashion --train data/fashion-mnist --minutes 30",
}
LINES = "\n  ".join(EXAMPLES.values())
EXAMPLE = f"""recipes:
  translate   sentence pairs → a translator: a Transformer, or with --kind recurrent an encoder and decoder with
              attention (or, with --context fixed, without)
  language    plain text → a GPT, trained to predict the next token; with --kind llama in the form of Llama
  pretrain    plain text → a BERT, trained to predict masked tokens
  classify    texts or images with labels → a classifier, from scratch or --from a pretrained BERT or GPT

examples:
  {LINES}
  regard train translate runs/de-en                  resumes the run with its settings
  regard train translate runs/x --kind recurrent --help
  torchrun --nproc-per-node 2 -m regard train translate runs/de-en …

regard train translate --help shows the main settings of a recipe, --help-all all of them."""
IMPORTANT = {
    "translate": ("train", "valid", "minutes", "vocabulary", "from"),
    "language": ("train", "valid", "minutes", "vocabulary", "from"),
    "pretrain": ("train", "valid", "minutes", "vocabulary", "documents"),
    "classify": ("train", "valid", "minutes", "vocabulary", "from"),
    "images": ("train", "valid", "minutes", "size", "flip"),
}
"""Settings that `--help` shows."""
KIND = "kind of model: transformer (default) or recurrent; gpt2 (default) or llama; vit (default) or cnn"
IMAGES = " --train IMAGES"
"""Part of error messages if the data are a folder, so that the options are those of an image classifier."""
CONFIG = "take settings from a .toml, .yaml or .json file, such as the config.json of a run; options override them"
FROM = "start from a trained run or a Hugging Face directory; --help-all with it shows the settings of fine-tuning"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.allow_abbrev = False
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="translate, language, pretrain or classify")
    parser.add_argument("folder", metavar="RUN", type=Path, nargs="?", help="the folder of the run")
    parser.add_argument("--kind", default=None, help=KIND)
    parser.add_argument("--config", type=Path, metavar="FILE", help=CONFIG)
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Train a model by a recipe and return an exit status."""
    rest: list[str] = options.rest
    asked = bool({"-h", "--help", "--help-all"} & set(rest))
    if options.recipe is None:
        options.parser.print_help()
        return 0 if asked else 2
    if options.recipe not in RECIPES:
        remedy = suggestion(options.recipe, RECIPES, f"It is one of {', '.join(RECIPES)}.")
        options.parser.error(f"unknown recipe {options.recipe}. {remedy}")
    if options.folder is None and rest and not rest[0].startswith("-"):  # after an option: --kind recurrent RUN
        options.folder = Path(rest.pop(0))
    if options.folder is None and not asked:
        options.parser.error("RUN must be given: the folder of the run, such as runs/de-en")
    return _train(options, rest, asked)


def _train(options: argparse.Namespace, rest: list[str], asked: bool) -> int:
    """Parse the settings, with those of an existing run as defaults, and train."""
    from ..core.option_parser import HelpTexts, parse
    from ..training.recipes.recipe_choice import choose, recipe_of

    name = options.recipe
    if name == "classify":
        recipes = (recipe_of(options.folder), _recipe_in(options))
        if _names_images(rest) or "images" in recipes:
            name = "images"
        elif recipes == (None, None) and not asked:
            _check_data(rest)
    start = _value_of("--from", rest) or _value_of("--start", rest)
    choice = choose(name, options.folder, kind=options.kind, start=start, config=options.config)
    more = {"--from RUN": FROM} if name in ("language", "classify") and not start else {}
    more |= {"--kind KIND": f"kind of model: {', '.join(choice.module.KINDS)}", "--config FILE": CONFIG}
    settings = parse(
        choice.kind,
        rest,
        choice.defaults,
        program=f"regard train {options.recipe} RUN{IMAGES if name == 'images' and not asked else ''}",
        flat=True,
        values=choice.values,
        texts=HelpTexts(IMPORTANT[name], more, f"example:\n  {EXAMPLES[name]}"),
    )
    assert options.folder is not None, "help ends the process"
    choice.module.train(settings, options.folder)
    return 0


def _names_images(rest: Sequence[str]) -> bool:
    """Return whether the data are images: a folder or an .npz file."""
    data = _value_of("--train", rest) or _value_of("--data", rest)
    return _value_of("--images", rest) is not None or (
        data is not None and (Path(data).is_dir() or Path(data).suffix == ".npz")
    )


def _check_data(rest: Sequence[str]) -> None:
    """Raise ValueError if the data do not exist. Their kind then is unknown, and so are the options."""
    data = _value_of("--train", rest) or _value_of("--data", rest)
    if data is not None and not Path(data).exists():
        raise ValueError(
            f"data: train ({data}) must be an existing file of labelled texts, or a folder or .npz file of images; got "
            "no such file. Check the path."
        )


def _recipe_in(options: argparse.Namespace) -> object:
    from ..core.setting_files import read_settings

    return None if options.config is None else read_settings(options.config).get("recipe")


def _value_of(option: str, rest: Sequence[str]) -> str | None:
    """Return the value of an option, which the recipe parses later; None if it is absent.

    >>> _value_of("--from", ["--from=runs/x"]), _value_of("--from", ["--from", "runs/x"]), _value_of("--from", [])
    ('runs/x', 'runs/x', None)
    """
    for index, word in enumerate(rest):
        if word == option and index + 1 < len(rest):
            return rest[index + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None
