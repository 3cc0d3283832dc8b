"""Training: one loop for every task, in one process or several, with checkpoints that resume bit for bit."""

from ..core.digests import Damaged
from ..core.files import Unwritable
from ..core.option_parser import parse
from ..core.settings import from_json, from_values, to_json
from ..models.weights import load_weights, weights_of
from ..tasks.run_files import load_best, read_config, read_weights
from ..tasks.task import Loss, Task
from .config import Training
from .logbook import Hook, Outcome
from .loop import fit
from .loss_window import Diverged
from .progress import Display, Metrics, Silent
from .random_state import seed_all
from .signals import Interrupted

__all__ = [
    "Damaged",
    "Display",
    "Diverged",
    "Hook",
    "Interrupted",
    "Loss",
    "Metrics",
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
