"""The one training loop, its checkpoints, and what it leaves behind."""

from uvax.training.checkpoints import Checkpoints, Restored
from uvax.training.fitted import Best, Fit, Status, TrainingDiverged, TrainingInterrupted, load_fit
from uvax.training.fitting import fit
from uvax.training.run import Evaluate

__all__ = [
    "Best",
    "Checkpoints",
    "Evaluate",
    "Fit",
    "Restored",
    "Status",
    "TrainingDiverged",
    "TrainingInterrupted",
    "fit",
    "load_fit",
]
