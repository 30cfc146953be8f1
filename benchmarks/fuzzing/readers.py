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

ABOUT = {
    "layouts": "a layout, its workload and overrides of the machine, estimated",
    "keywords": "values of the keywords of `estimate`, `plan`, `simulate` and `whole_training`",
    "jobs": "a job as TOML, with its whole training",
    "models": "a model's TOML file",
    "machines": "a machine's TOML file",
    "frameworks": "a framework's TOML file",
    "datasets": "a dataset's TOML file, with a training on it",
    "configs": "a `config.json` of each Hugging Face family",
    "deepspeed": "`ds_config.json`",
    "accelerate": "Accelerate's YAML with FSDP, DeepSpeed and Megatron-LM",
    "torchtitan": "torchtitan's TOML",
    "megatron": "scripts of Megatron-LM and Megatron-DeepSpeed",
    "other-configurations": "nanotron, the Trainer, axolotl, GPT-NeoX, nanoGPT, wordplay",
    "scripts": "job scripts of Slurm and PBS, with `planner check`",
    "logs": "a log of each format, dropped, compared and learned from",
    "tables": "steps as CSV and as JSON lines",
    "profiles": "a trace of torch.profiler with NCCL and gloo",
    "runs": "a CSV of runs, scored and learned from",
    "calibrations": "a CSV of runs, fitted and written as a profile",
    "collectives": "output of nccl-tests, or a CSV of collectives",
    "links": "the same, fitted and written as a profile",
    "comparisons": "what `planner compare --json` printed, learned from",
    "sweeps": "a file of `planner sweep`, listed and answered",
    "addresses": "an address of the explorer, read by every page, its layout estimated",
    "commands": "words of the command line",
}
"""What the inputs of a reader are, and what is done with them."""
