"""Training: all that a training does besides its steps, and what it is charged."""

from __future__ import annotations

from planner.describe.base import Description
from planner.describe.training.charges import Charges
from planner.describe.training.checkpoints import Checkpoints
from planner.describe.training.dataset import Dataset
from planner.describe.training.evaluation import Evaluation
from planner.describe.training.failures import Failures
from planner.describe.training.loader import Loader
from planner.describe.training.start import StartUp

__all__ = ["Training"]


class Training(Description):
    """All that a training does besides its steps, and what it is charged."""

    dataset: Dataset | None = None
    """What it reads; None: its data are there as fast as they are asked for."""
    loader: Loader = Loader()
    """How it reads that."""
    evaluation: Evaluation = Evaluation()
    """What is computed between steps."""
    checkpoints: Checkpoints = Checkpoints()
    """What is saved, how often and to where."""
    failures: Failures = Failures()
    """What interrupts it."""
    start_up: StartUp = StartUp()
    """What every job does before its first step."""
    charges: Charges = Charges()
    """What a node-hour draws, costs and emits."""
