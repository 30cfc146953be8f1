"""Parsers: emitted folders read by the real software, one process per parser.

    python -m benchmarks.parsers NAME [SOURCE] < folders > answers

Standard input is a JSON list of folders. Standard output is a JSON object: for every folder the
parsed values (`Read`), or the error in one line. SOURCE is a checkout or a `pip install --target`
folder if the software is not installed. This module imports nothing from the planner.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

Read = dict[str, Any]
"""Known ones of global_batch, micro_batch, accumulation, zero, recompute, tp, pp, vpp, cp, ep."""

USER = {"LEARNING_RATE": "3e-4", "WARMUP_STEPS": "10", "HF_ASSETS": "assets"}
"""Values for the settings that are left to the user."""


def _arguments(folder: Path) -> list[str]:
    """Return the arguments that the job script passes to the program."""
    script = (folder / "job.sh").read_text()
    words: list[str] = []
    for name in re.findall(r"mapfile -t \w+ < (\S+)", script):
        if (folder / name).exists() and name != "data.args":
            words += (folder / name).read_text().splitlines()
    for name, value in USER.items():
        for option in re.findall(rf'(--[\w.-]+)[ =]"\$\{{{name}\}}"', script):
            words.append(f"{option}={value}")
    return words


def _world(folder: Path) -> int:
    layout = json.loads((folder / "layout.json").read_text())["layout"]
    return int(layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"])


# --- DeepSpeed, Accelerate, transformers: as installed ---------------------------------------


def deepspeed() -> Callable[[Path], Read]:
    """Parse with DeepSpeedConfig, which checks the batch against the ranks."""
    from deepspeed.runtime import config

    config.dist.get_rank = lambda *_: 0

    def read(folder: Path) -> Read:
        layout = json.loads((folder / "layout.json").read_text())["layout"]
        grid = types.SimpleNamespace(get_data_parallel_world_size=lambda: layout["dp"])
        found = config.DeepSpeedConfig(str(folder / "ds_config.json"), mpu=grid)
        return {
            "global_batch": found.train_batch_size,
            "micro_batch": found.train_micro_batch_size_per_gpu,
            "accumulation": found.gradient_accumulation_steps,
            "zero": int(found.zero_config.stage),
        }

    return read


def accelerate() -> Callable[[Path], Read]:
    """Parse as `accelerate launch` does; unknown keys are errors here."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    parser = launch_command_parser()
    known = {action.dest for action in parser._actions}

    def read(folder: Path) -> Read:
        path = str(folder / "accelerate.yaml")
        config = load_config_from_file(path)
        for section in ("fsdp_config", "parallelism_config"):
            unknown = set(getattr(config, section)) - known
            assert not unknown, f"unknown keys {unknown}"
        given = _validate_launch_command(parser.parse_args(["--config_file", path, "train.py"]))[0]
        found: Read = {"world": given.num_processes}
        if given.use_fsdp:
            found["recompute"] = "full" if given.fsdp_activation_checkpointing else "none"
            found["zero"] = 3 if given.fsdp_reshard_after_forward in (True, "true") else 2
            found["tp"] = int(given.parallelism_config_tp_size)
            found["cp"] = int(given.parallelism_config_cp_size)
        return found

    return read


def transformers() -> Callable[[Path], Read]:
    """Parse into TrainingArguments with HfArgumentParser."""
    from transformers import HfArgumentParser, TrainingArguments

    parser = HfArgumentParser(TrainingArguments)

    def read(folder: Path) -> Read:
        data = json.loads((folder / "training_arguments.json").read_text())
        data.pop("deepspeed", None)  # it requires a GPU
        data |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None}
        (found,) = parser.parse_dict(data)
        return {
            "micro_batch": found.per_device_train_batch_size,
            "accumulation": found.gradient_accumulation_steps,
        }

    return read


# --- torchtitan ------------------------------------------------------------------------------


def torchtitan_022() -> Callable[[Path], Read]:
    """Parse with ConfigManager of torchtitan up to 0.2.2 and the module of the model's sizes."""
    sys.meta_path.append(_Absent("triton"))
    from torchtitan.config import ConfigManager

    def read(folder: Path) -> Read:
        sys.modules.pop("torchtitan_model", None)
        job = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
        from torchtitan.models.llama3 import llama3_args

        if job.experimental.custom_import:
            importlib.import_module(job.experimental.custom_import)
        mesh = job.parallelism
        assert job.model.flavor in llama3_args, f"no flavor {job.model.flavor}"
        return {
            **_titan(job.training, mesh),
            "recompute": job.activation_checkpoint.mode,
            "compile": job.compile.enable,
        }

    return read


def torchtitan_030() -> Callable[[Path], Read]:
    """Parse with ConfigManager of torchtitan 0.3.0, which imports the plan."""
    sys.meta_path.append(_Absent("triton"))
    from torchtitan.config import ConfigManager

    def read(folder: Path) -> Read:
        sys.modules.pop("torchtitan_plan", None)
        config = ConfigManager().parse_args(["--module", "torchtitan_plan", "--config", "plan"])
        kind = type(config.activation_checkpoint).__qualname__.partition(".")[0]
        words = {"NoneType": "none", "FullAC": "full", "SelectiveAC": "selective"}
        model = config.model_spec.model
        low = [name for name in map(str, _types(model)) if re.search("Float8|MXFP8|NVFP4", name)]
        assert not low, f"converted to {low[0]}"
        return {
            **_titan(config.training, config.parallelism),
            "recompute": words[kind],
            "compile": config.compile.enable,
            "layers": len(model.layers),
            "loss": type(getattr(config.loss, "loss_fn", config.loss)).__qualname__,
            "loss_chunks": getattr(config.loss, "num_chunks", 1),
        }

    return read


def _types(config: Any) -> set[type]:
    """Return the types in a configuration's first layer."""
    layer = config.layers[0]
    return {type(getattr(layer, name)) for name in dir(layer) if not name.startswith("_")}


def _titan(training: Any, mesh: Any) -> Read:
    # distributed/parallel_dims.py: the expert mesh is (pp, dp_replicate, efsdp, ep)
    ranks = mesh.data_parallel_shard_degree * mesh.context_parallel_degree
    whole = ranks * mesh.tensor_parallel_degree % mesh.expert_parallel_degree == 0
    assert whole, "expert parallelism is no part of the ranks that share states"
    replicas = mesh.data_parallel_replicate_degree * mesh.data_parallel_shard_degree
    local = training.local_batch_size
    piped = mesh.pipeline_parallel_degree > 1
    micro = mesh.pipeline_parallel_microbatch_size if piped else local
    chunks = len(mesh.module_fqns_per_model_part or [()])
    reshard = {"always": 3, "default": 3, "never": 2}[mesh.fsdp_reshard_after_forward]
    return {
        "global_batch": training.global_batch_size,
        "micro_batch": micro,
        "accumulation": training.global_batch_size // replicas // micro,
        "zero": reshard
        if mesh.data_parallel_shard_degree * mesh.context_parallel_degree > 1
        else 0,
        "tp": mesh.tensor_parallel_degree,
        "pp": mesh.pipeline_parallel_degree,
        "cp": mesh.context_parallel_degree,
        "ep": mesh.expert_parallel_degree,
        "vpp": chunks // mesh.pipeline_parallel_degree if piped else 1,
    }


# --- Megatron --------------------------------------------------------------------------------


class _Everything(type):
    """Metaclass of a class whose attributes are the class itself."""

    def __getattr__(cls, name: str) -> _Everything:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Anything(metaclass=_Everything):
    """Placeholder for a class, a decorator or a function."""

    def __init__(self, *_: object, **__: object) -> None:
        """Accept any arguments."""

    def __call__(self, *_: object, **__: object) -> _Anything:
        return self

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Empty(types.ModuleType):
    """Empty module in which every name is a placeholder class."""

    __path__: typing.ClassVar[list[str]] = []  # type: ignore[misc]
    __version__ = "0"

    def __getattr__(self, name: str) -> type[_Anything]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that replaces packages that need a GPU; argument parsers do not use them."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


def megatron() -> Callable[[Path], Read]:
    """Parse with parse_args and validate_args of Megatron-LM."""
    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]
    sys.meta_path.append(_Absent("triton"))
    import torch

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
    from megatron.training.arguments import parse_args, validate_args

    def read(folder: Path) -> Read:
        data = (folder / "data.args").read_text().splitlines()
        words = ["pretrain_gpt.py", *_arguments(folder), *data]
        environment = {"WORLD_SIZE": str(_world(folder)), "RANK": "0", "LOCAL_RANK": "0"}
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        with patch.object(sys, "argv", words), patch.dict(os.environ, environment):
            args = validate_args(parse_args())
        per = args.micro_batch_size * args.data_parallel_size
        return {
            "global_batch": args.global_batch_size,
            "micro_batch": args.micro_batch_size,
            "accumulation": args.global_batch_size // per,
            "zero": int(args.use_distributed_optimizer),
            "recompute": args.recompute_granularity or "none",
            "tp": args.tensor_model_parallel_size,
            "pp": args.pipeline_model_parallel_size,
            "cp": args.context_parallel_size,
            "ep": args.expert_model_parallel_size,
            "vpp": args.virtual_pipeline_model_parallel_size or 1,
        }

    return read


def megatron_deepspeed() -> Callable[[Path], Read]:
    """Parse with argonne-lcf/Megatron-DeepSpeed, and repeat the assertions of its start-up."""
    sys.meta_path.append(_Absent("ezpz", "wandb", "apex", "transformer_engine", "sophia"))
    from megatron.arguments import parse_args, validate_args

    def read(folder: Path) -> Read:
        environment = {"WORLD_SIZE": str(_world(folder)), "RANK": "0", "LOCAL_RANK": "0"}
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        words = ["pretrain_gpt_alcf.py", *_arguments(folder)]
        with patch.object(sys, "argv", words), patch.dict(os.environ, environment):
            args = parse_args()
            validate_args(args)
        config = json.loads((folder / "ds_config.json").read_text())
        if args.cpu_optimizer:
            # megatron/optimizer/__init__.py
            assert args.optimizer == "adam", "CPU offloading is for Adam"
        stage = config["zero_optimization"]["stage"]
        sums = config["data_types"]["grad_accum_dtype"]
        # deepspeed/runtime/engine.py, _do_optimizer_sanity_check
        assert stage or not args.bf16 or sums == "bf16", "unsupported mix of bf16 and fp32 sums"
        per = args.micro_batch_size * args.data_parallel_size
        return {
            "global_batch": args.global_batch_size,
            "micro_batch": args.micro_batch_size,
            "accumulation": args.global_batch_size // per,
            "zero": args.zero_stage,
            "recompute": "full" if args.checkpoint_activations else "none",
            "tp": args.tensor_model_parallel_size,
            "pp": args.pipeline_model_parallel_size,
        }

    return read


# --- nanotron, nanoGPT -----------------------------------------------------------------------


def nanotron() -> Callable[[Path], Read]:
    """Parse with get_config_from_file of nanotron."""
    sys.meta_path.append(_Absent("flash_attn", "datatrove", "grouped_gemm", "functorch", "triton"))
    from nanotron.config import get_config_from_file

    def read(folder: Path) -> Read:
        found = get_config_from_file(str(folder / "nanotron.yaml"))
        mesh, tokens = found.parallelism, found.tokens
        passes = tokens.batch_accumulation_per_replica
        return {
            "global_batch": tokens.micro_batch_size * passes * mesh.dp,
            "micro_batch": tokens.micro_batch_size,
            "accumulation": passes,
            "zero": found.optimizer.zero_stage,
            "recompute": "full" if mesh.recompute_layer else "none",
            "tp": mesh.tp,
            "pp": mesh.pp,
        }

    return read


def nanogpt() -> Callable[[Path], Read]:
    """Parse with nanoGPT's configurator and the settings of its train.py."""
    source = Path(os.environ["PARSER_SOURCE"])
    settings = (source / "train.py").read_text().partition("# -----------\n")[0]
    head = settings[settings.index("out_dir") : settings.index("config_keys")]
    keys = next(
        line for line in (source / "train.py").read_text().splitlines() if "config_keys =" in line
    )

    def read(folder: Path) -> Read:
        import torch

        known: dict[str, Any] = {"torch": torch}
        exec(head + keys, known)
        with patch.object(sys, "argv", ["train.py", *_arguments(folder)]):
            exec((source / "configurator.py").read_text(), known)
        ranks = _world(folder)
        passes, rest = divmod(known["gradient_accumulation_steps"], ranks)
        assert rest == 0, "gradient_accumulation_steps is no multiple of the ranks"
        return {
            "global_batch": known["batch_size"] * known["gradient_accumulation_steps"],
            "micro_batch": known["batch_size"],
            "accumulation": passes,
        }

    return read


PARSERS: Mapping[str, tuple[str, Callable[[], Callable[[Path], Read]]]] = {
    "DeepSpeedConfig": ("ds_config.json", deepspeed),
    "accelerate launch": ("accelerate.yaml", accelerate),
    "TrainingArguments": ("training_arguments.json", transformers),
    "torchtitan 0.2.2": ("torchtitan.toml", torchtitan_022),
    "torchtitan 0.3.0": ("torchtitan_plan.py", torchtitan_030),
    "Megatron-LM": ("megatron.args", megatron),
    "Megatron-DeepSpeed": ("megatron.args", megatron_deepspeed),
    "nanotron": ("nanotron.yaml", nanotron),
    "nanoGPT": ("nanogpt.args", nanogpt),
}
"""Parsers by name: the file that each reads, and its function."""


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _answers(name: str, folders: list[str]) -> dict[str, Read | str]:
    read = PARSERS[name][1]()
    answers: dict[str, Read | str] = {}
    for folder in folders:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            answers[folder] = read(Path(folder))
        except (Exception, SystemExit) as error:
            answers[folder] = _line(error)
        finally:
            sys.path.remove(folder)
    return answers


def main() -> None:
    name, *source = sys.argv[1:]
    if source:
        os.environ["PARSER_SOURCE"] = source[0]
        sys.path[:0] = source
    os.environ.update(USER)
    folders = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        answers = _answers(name, folders)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
