"""Training: one loop for every task, with states that resume to the bit, in one process or several."""

from .arguments import from_json, from_values, parse, to_json
from .config import Training
from .files import Damaged, Unwritable
from .logbook import Hook, Outcome
from .loop import fit
from .progress import Display, Silent
from .randomness import seed_all
from .run import load_best, read_config, read_weights
from .session import Loss, Task
from .signals import Interrupted
from .weights import load_weights, weights_of
from .window import Diverged

__all__ = [
    "Damaged",
    "Display",
    "Diverged",
    "Hook",
    "Interrupted",
    "Loss",
    "Outcome",
    "Silent",
    "Task",
    "Training",
    "Unwritable",
    "fit",
    "from_json",
    "from_values",
    "load_best",
    "load_weights",
    "parse",
    "read_config",
    "read_weights",
    "seed_all",
    "to_json",
    "weights_of",
]
