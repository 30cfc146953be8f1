"""Known: the batch systems for which job scripts are written."""

from __future__ import annotations

from collections.abc import Mapping

from planner.emitters.scripts.flux import Flux
from planner.emitters.scripts.kubernetes import Kubernetes
from planner.emitters.scripts.lsf import Lsf
from planner.emitters.scripts.pbs import Pbs
from planner.emitters.scripts.plain import Plain
from planner.emitters.scripts.slurm import Slurm
from planner.emitters.scripts.system import BatchSystem

__all__ = ["SYSTEMS"]

SYSTEMS: Mapping[str, BatchSystem] = {
    "pbs": Pbs(),
    "slurm": Slurm(),
    "lsf": Lsf(),
    "flux": Flux(),
    "kubernetes": Kubernetes(),
    "none": Plain(),
}
"""A scheduler's kind to its words."""
