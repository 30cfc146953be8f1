"""Training: what the ranks of a job do with emitted files, a few steps on this machine's cores.

Each is called in the folder of its files and returns what its first rank reports.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from planner.validate.ranks.launch import launch
from planner.validate.ranks.rank import Rank, joined


def started(program: Callable[..., Any], folder: Path, ranks: int = 2, **given: Any) -> Any:
    """What the first rank of a program reports, once all of them ended well."""
    entry = f"{__name__}:{program.__name__}"
    return launch(entry, ranks, {"folder": str(folder), **given}, limit_s=300)[0]


@contextlib.contextmanager
def _job(rank: Rank, payload: dict[str, Any]) -> Iterator[None]:
    """Inside, the ranks of one job in its folder."""
    os.chdir(payload["folder"])
    sys.path.insert(0, payload["folder"])
    os.environ |= {"LOCAL_RANK": f"{rank.local_rank}", "CUDA_VISIBLE_DEVICES": ""}
    with joined(rank):
        yield


def _layers() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))


def deepspeed(rank: Rank, payload: dict[str, Any], send: object) -> list[float]:
    """DeepSpeed's engine on ds_config.json: steps, stage and batch that it counts, losses."""
    import torch

    ds = importlib.import_module("deepspeed")
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # a kernel that it would compile for a minute
    parser = ds.add_config_arguments(argparse.ArgumentParser())
    words = ["--deepspeed", "--deepspeed_config", "ds_config.json"]
    with _job(rank, payload):
        ds.init_distributed(dist_backend="gloo")
        model = _layers()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine, *_ = ds.initialize(parser.parse_args(words), model=model, optimizer=optimizer)
        losses = []
        for _step in range(4):
            torch.manual_seed(rank.rank)
            for _micro in range(engine.gradient_accumulation_steps()):
                rows = torch.randn(engine.train_micro_batch_size_per_gpu(), 16)
                loss = (engine(rows.bfloat16()).float() ** 2).mean()
                engine.backward(loss)
                engine.step()
            losses.append(loss.item())
        counted = (engine.global_steps, engine.zero_optimization_stage(), engine.train_batch_size())
        return [*map(int, counted), losses[0], losses[-1]]


def fsdp2(rank: Rank, payload: dict[str, Any], send: object) -> list[float]:
    """torch's FSDP2 through sharding.py: rows of a weight on this rank, losses."""
    import torch

    with _job(rank, payload):
        sharding = importlib.import_module("sharding")
        model = _layers()
        sharding.shard(model, torch.nn.ModuleList([model[0], model[2]]), "cpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _step in range(4):
            torch.manual_seed(rank.rank)
            for _micro in range(sharding.GRAD_ACCUMULATION):
                loss = (model(torch.randn(sharding.MICRO_BATCH, 16)).float() ** 2).mean()
                (loss / sharding.GRAD_ACCUMULATION).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return [model[0].weight.to_local().shape[0], losses[0], losses[-1]]


def ddp(rank: Rank, payload: dict[str, Any], send: object) -> list[float]:
    """torch's DDP told by nanogpt.args as nanoGPT reads it, from its checkpoint where one is:
    tokens of a step, first and last step, losses; it ends after `payload["stop"]`."""
    import torch
    from torch import distributed as dist
    from torch import nn

    with _job(rank, payload):
        words = (line.removeprefix("--") for line in Path("nanogpt.args").read_text().splitlines())
        told = {name: _literal(value) for name, _, value in (w.partition("=") for w in words)}
        passes, rest = divmod(told["gradient_accumulation_steps"], rank.world)
        assert rest == 0, "nanoGPT asserts that the ranks divide the accumulation"
        width = told["n_embd"]
        layer = nn.TransformerEncoderLayer(width, told["n_head"], 4 * width, told["dropout"])
        inner = nn.Sequential(nn.Embedding(64, width), layer, nn.Linear(width, 64))
        saved, first = Path(told["out_dir"]) / "ckpt.pt", 0
        if saved.exists():
            state = torch.load(saved)
            first = state["iter_num"]
            inner.load_state_dict(state["model"])
        dist.barrier()
        model = nn.parallel.DistributedDataParallel(inner)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        seen, losses = torch.zeros(1), []
        for step in range(first, payload["stop"]):
            if step % told["eval_interval"] == 0 and rank.rank == 0 and step:
                saved.parent.mkdir(exist_ok=True)
                torch.save({"model": inner.state_dict(), "iter_num": step}, saved)
            for micro in range(passes):
                model.require_backward_grad_sync = micro == passes - 1
                torch.manual_seed(rank.rank)
                rows = torch.randint(64, (told["batch_size"], told["block_size"]))
                loss = nn.functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten())
                (loss / passes).backward()
                seen += rows.numel()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        dist.all_reduce(seen)
        return [int(seen) // len(losses), first, step, losses[0], losses[-1]]


def _literal(text: str) -> Any:
    """A value as nanoGPT's configurator reads it."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def trainer(rank: Rank, payload: dict[str, Any], send: object) -> list[int]:
    """transformers' Trainer on training_arguments.json, two steps and then on from its checkpoint:
    steps, lines of its log, whether it reduces gradients after every batch."""
    import dataclasses

    import torch
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        HfArgumentParser,
        Trainer,
        TrainingArguments,
    )

    os.chdir(payload["folder"])
    told = json.loads(Path("training_arguments.json").read_text())
    told |= {"use_cpu": True, "report_to": "none", "save_steps": 1}
    # a Trainer writes into its arguments: each gets its own
    parser = HfArgumentParser(TrainingArguments)
    first, given = (parser.parse_dict(copy.deepcopy(told))[0] for _ in range(2))
    sizes = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
    Trainer(model, dataclasses.replace(first, max_steps=2), train_dataset=rows).train()
    last = Trainer(model, given, train_dataset=rows)
    last.train(resume_from_checkpoint=True)
    each = last.accelerator.gradient_state.plugin_kwargs["sync_each_batch"]
    return [last.state.global_step, len(last.state.log_history), each]
