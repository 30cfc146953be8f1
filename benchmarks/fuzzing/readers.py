"""Readers: every reader of the planner by the name of its input."""

from __future__ import annotations

from fuzzing import asked, configured, described, measured
from fuzzing.reader import Reader

READERS: dict[str, Reader] = {
    "layouts": described.LAYOUTS,
    "keywords": described.KEYWORDS,
    "jobs": described.JOBS,
    "models": described.MODEL_FILES,
    "machines": described.MACHINE_FILES,
    "frameworks": described.FRAMEWORK_FILES,
    "datasets": described.DATASET_FILES,
    "configs": described.CONFIGS,
    "deepspeed": configured.DEEPSPEED,
    "accelerate": configured.ACCELERATE,
    "torchtitan": configured.TORCHTITAN,
    "megatron": configured.MEGATRON,
    "other-configurations": configured.OTHERS,
    "scripts": configured.SCRIPTS,
    "logs": measured.LOGS,
    "tables": measured.TABLES,
    "profiles": measured.PROFILES,
    "runs": measured.RUNS,
    "calibrations": measured.CALIBRATIONS,
    "collectives": measured.COLLECTIVES,
    "links": measured.LINKS,
    "comparisons": measured.COMPARISONS,
    "sweeps": asked.SWEEPS,
    "addresses": asked.ADDRESSES,
    "commands": asked.COMMANDS,
}
