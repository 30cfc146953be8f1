"""Described: layouts, keywords, jobs, and descriptions of models, machines and software."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import planner
from fuzzing.checks import Odd, check_estimate, check_finite
from fuzzing.mutations import changed, edited, near, odd_number, odd_value
from fuzzing.reader import Reader, write
from planner import Layout, Workload
from planner.describe.catalogue import folder as catalogue_folder
from planner.describe.catalogue import names
from planner.describe.framework.framework import Framework
from planner.describe.layout import OFFLOAD, RECOMPUTE, V_SHAPED
from planner.describe.model.huggingface.config import FAMILIES
from planner.describe.training.training_run import Training
from planner.describe.workload import ATTENTIONS, OPTIMIZERS, PRECISIONS

MODELS = ("gpt2", "llama-3-8b", "mixtral-8x7b", "vit-h-14", "bert-large", "gemma-2-27b")
MACHINES = ("polaris", "aurora", "laptop", "dgx-h100", "lumi-g", "vsc-4", "summit")
_COMMENTS = ("# caf\xe9 \u6f22\u5b57", "  # odd: [1, 2] = {", "#", "# \u202e dt=1.0 loss=nan")

# --- layouts ------------------------------------------------------------------------------------

_LARGE = (3, 12, 64, 1000, 65_536, 100_000, 10_000_000)
_JOBS: tuple[dict[str, Any], ...] = (
    {"model": "gpt2", "machine": "polaris", "framework": "ddp", "layout": {"dp": 4}},
    {"model": "gpt2", "machine": "laptop", "framework": "", "layout": {"micro_batch": 2}},
    {"model": "llama-3-8b", "machine": "dgx-h100", "framework": "fsdp2",
     "layout": {"dp": 8, "zero_stage": 3, "recompute": "full"}},
    {"model": "llama-3-8b", "machine": "aurora", "framework": "deepspeed",
     "layout": {"dp": 12, "zero_stage": 2, "grad_accumulation": 4}},
    {"model": "mixtral-8x7b", "machine": "dgx-h100", "framework": "megatron-lm",
     "layout": {"dp": 8, "tp": 2, "pp": 2, "ep": 4, "zero_stage": 1, "sequence_parallel": True,
                "schedule": "1f1b", "grad_accumulation": 4}},
    {"model": "gemma-2-27b", "machine": "lumi-g", "framework": "",
     "layout": {"dp": 16, "zero_stage": 3}},
    {"model": "bert-large", "machine": "summit", "framework": "horovod", "layout": {"dp": 6},
     "workload": {"precision": "fp16", "sequence_length": 128}},
    {"model": "vit-h-14", "machine": "polaris", "framework": "accelerate",
     "layout": {"dp": 4, "zero_stage": 3}},
    {"model": "llama-3-8b", "machine": "polaris", "framework": "nanotron",
     "layout": {"dp": 2, "tp": 4, "pp": 2, "sequence_parallel": True, "schedule": "1f1b",
                "grad_accumulation": 8}},
)  # fmt: skip


def _random_layout(rng: random.Random, framework: Framework) -> dict[str, Any]:
    """Draw the fields of a layout that the framework supports."""
    axes = framework.axes
    pp = rng.choice((1, 1, 2, 4)) if "pp" in axes else 1
    tp = rng.choice((1, 1, 2, 4)) if "tp" in axes else 1
    schedules = [name for name in framework.schedules if name != "none"]
    stages = framework.zero_stages_with_pipeline if pp > 1 else framework.zero_stages
    fields: dict[str, Any] = {
        "dp": rng.choice((1, 2, 4, 8, 16)),
        "tp": tp,
        "pp": pp,
        "sequence_parallel": tp > 1 and framework.sequence_parallel != "never",
        "schedule": rng.choice(schedules) if pp > 1 and schedules else "none",
        "zero_stage": rng.choice(stages or (0,)),
        "micro_batch": rng.choice((1, 1, 1, 2, 2, 4, 8)),
        "grad_accumulation": rng.choice((8, 8, 1, 100)),
        "recompute": rng.choice(framework.recompute),
    }
    if fields["schedule"] in ("interleaved-1f1b", *V_SHAPED):
        fields["vpp"] = 2
    return fields


def _workload_change(rng: random.Random) -> tuple[str, Any]:
    return rng.choice(
        (
            ("sequence_length", rng.choice((1, 128, 512, 1024, 1_000_000))),
            ("precision", rng.choice(PRECISIONS)),
            ("optimizer", rng.choice(OPTIMIZERS)),
            ("attention", rng.choice(ATTENTIONS)),
            ("lora_rank", rng.choice((1, 16, 65_536))),
            ("frozen", rng.choice((("embedding",), ("layers",), ("embedding", "head")))),
            ("dropout", rng.choice((0.0, 0.1, 0.999))),
        )
    )


@functools.cache
def _set_keys(machine: str) -> list[str]:
    data = tomllib.loads((catalogue_folder("machine") / f"{machine}.toml").read_text("utf-8"))
    return [f"{a}.{b}" for a, table in data.items() if isinstance(table, dict) for b in table]


def _override(rng: random.Random, machine: str) -> str:
    values = ("0", "1", "-1", "2", "0.5", "80GB", "1e300", "nan", "[1]", "x", "1e-12", "40GiB")
    odd = str(rng.choice((*values, "9" * 5000, str(odd_number(rng)))))
    name, value = rng.choice(
        (
            ("device.memory_bytes", rng.choice(("80GB", "16 GiB", "1e10", "40000000000"))),
            ("device.sustained_fraction", rng.choice(("0.1", "0.99", "1"))),
            (rng.choice(_set_keys(machine)), odd),
        )
    )
    return f"{name}={value}"


def _change_job(rng: random.Random, job: dict[str, Any], mild: float) -> dict[str, Any]:
    job = {key: dict(v) if isinstance(v, dict) else v for key, v in job.items()}
    layout, workload = job["layout"], job.setdefault("workload", {})
    if rng.random() < 0.5:
        job["model"], job["machine"] = rng.choice(MODELS), rng.choice(MACHINES)
        job["framework"] = rng.choice((*names("framework"), ""))
        layout = _random_layout(rng, planner.load_framework(job["framework"] or "fsdp2"))
        job["layout"] = layout
        workload["precision"] = rng.choice(("bf16", "bf16", "fp32"))
    is_mild = rng.random() < mild
    for _ in range(rng.choice((0, 1, 1, 2))):
        if rng.random() < 0.5:
            field, value = _workload_change(rng)
            workload[field] = value if is_mild else odd_value(rng)
        elif is_mild:
            field = rng.choice(list(layout))
            layout[field] = near(rng, layout[field])
        else:
            odd = (*_LARGE, *OFFLOAD, *RECOMPUTE, True, odd_value(rng))
            layout[rng.choice(list(Layout.model_fields))] = rng.choice(odd)
    if rng.random() < 0.2:
        job["set"] = [_override(rng, job["machine"]) for _ in range(rng.choice((1, 1, 2)))]
    return job


def _estimate_job(job: dict[str, Any], folder: Path) -> None:
    model = planner.load_model(job["model"])
    place = planner.load_machine(job["machine"], tuple(job.get("set", ())))
    layout = Layout.described(job["layout"])
    usual = {"global_batch": min(layout.global_batch, 10**6)}
    usual["sequence_length"] = min(model.default_sequence_length, 1024)
    workload = Workload.described({**usual, **job.get("workload", {})})
    framework = job["framework"] or None
    check_estimate(planner.estimate(model, place, layout, workload=workload, framework=framework))


LAYOUTS = Reader(lambda: _JOBS, _change_job, _estimate_job, mild=0.7, share=100)

# --- keywords of the Python API -------------------------------------------------------------------

_WORDS: tuple[dict[str, Any], ...] = (
    {"call": "estimate", "model": "gpt2", "machine": "polaris", "layout": {"dp": 4},
     "workload": {"global_batch": 4, "sequence_length": 1024}},
    {"call": "estimate", "model": "llama-3-8b", "machine": "dgx-h100", "framework": "fsdp2",
     "layout": {"dp": 8, "zero_stage": 3}, "workload": {"global_batch": 8}},
    {"call": "plan", "model": "gpt2", "machine": "laptop", "nodes": 1, "frameworks": ["ddp"],
     "workload": {"global_batch": 8, "sequence_length": 128}, "top": 3, "exact": True},
    {"call": "plan", "model": "gpt2", "machine": "polaris", "nodes": 1, "frameworks": ["fsdp2"],
     "workload": {"global_batch": 64, "sequence_length": 1024}, "top": 3, "tolerance": 0.1},
    {"call": "simulate", "model": "gpt2", "machine": "polaris", "framework": "megatron-lm",
     "layout": {"dp": 2, "pp": 2, "schedule": "1f1b", "grad_accumulation": 4},
     "workload": {"global_batch": 8, "sequence_length": 1024}},
    {"call": "train", "model": "gpt2", "machine": "polaris", "framework": "ddp",
     "layout": {"dp": 4},
     "workload": {"global_batch": 4, "sequence_length": 1024, "tokens": 1e9},
     "training": {"loader": {"workers": 8}, "checkpoints": {"every_steps": 1000}}},
)  # fmt: skip


def _change_words(rng: random.Random, words: dict[str, Any], mild: float) -> dict[str, Any]:
    words = changed(rng, words, mild)
    if rng.random() < 0.2:
        key = rng.choice(("model", "machine", "framework", "nodes", "top", "tolerance", "exact"))
        words[key] = odd_value(rng)
    return words


def _call(words: dict[str, Any], folder: Path) -> None:
    call = {"estimate": _by_words, "simulate": _by_words, "train": _by_words, "plan": _plan}
    words = dict(words)
    name = words.pop("call", "plan")
    call.get(name if isinstance(name, str) else "", _plan)(name, words)


def _workload(words: dict[str, Any]) -> Workload | None:
    return Workload.described(words["workload"]) if "workload" in words else None


def _by_words(call: str, words: dict[str, Any]) -> None:
    layout = Layout.described(words.get("layout", {}))
    job = words.get("model", "gpt2"), words.get("machine", "polaris"), layout
    known = {"workload": _workload(words), "framework": words.get("framework")}
    if call == "train":
        if "training" in words:
            known["training"] = Training.described(words["training"], where="training")
        check_finite(planner.whole_training(*job, **known).as_dict())
    elif call == "simulate":
        check_finite(planner.simulate(*job, **known).to_dict())
    else:
        check_estimate(planner.estimate(*job, **known))


def _plan(_: str, words: dict[str, Any]) -> None:
    usual = {"nodes": 1, "frameworks": ("ddp",), "top": 3}
    taken = ("nodes", "frameworks", "top", "tolerance", "exact")
    known = {**usual, **{key: words[key] for key in taken if key in words}}
    job = words.get("model", "gpt2"), words.get("machine", "laptop")
    plan = planner.plan(*job, workload=_workload(words), **known)
    for ranked in plan.ranked:
        check_estimate(ranked)
    check_finite(json.loads(plan.to_json()))


KEYWORDS = Reader(lambda: _WORDS, _change_words, _call, mild=0.7, share=5)

# --- jobs as TOML -------------------------------------------------------------------------------

_JOB_FILES = (
    """model = "gpt2"
machine = "polaris"
nodes = 2
frameworks = ["ddp"]
tolerance = 0.05
set = ["device.memory_bytes=40GB"]
[workload]
global_batch = 64
sequence_length = 1024
precision = "bf16"
tokens = 1e9
[training.dataset]
name = "mine"
title = "My images"
num_samples = { value = 1e6, kind = "assumed", source = "2026-11: own count" }
sample_bytes = { value = 1e5, kind = "assumed", source = "2026-11: own count" }
samples_per_file = { value = 1000, kind = "assumed", source = "2026-11: own count" }
decode_s = { value = 1e-3, kind = "assumed", source = "2026-11: own count" }
[training.loader]
workers = 8
prefetch = 2
[training.checkpoints]
contents = "states"
asynchronous = true
interval_s = 1800.0
""",
    """model = "bert-large"
machine = "vsc-5"
nodes = 4
leave_free = 10.0
exact = true
[workload]
global_batch = 128
sequence_length = 512
optimizer = "adamw"
dropout = 0.1
[training.checkpoints]
every_steps = 500
full = true
""",
)


def _train_job(text: str | bytes, folder: Path) -> None:
    job = planner.Job.read(write(folder, "job.toml", text))
    layout = Layout(dp=job.workload.global_batch if job.workload.global_batch < 9 else 8)
    layout = layout.replaced(grad_accumulation=max(job.workload.global_batch // layout.dp, 1))
    check_estimate(job.estimate(layout))
    if job.workload.tokens:
        check_finite(job.train(layout).as_dict())
    if not job.measured:
        planner.Job.from_toml(job.to_toml())


JOBS = Reader(
    lambda: _JOB_FILES,
    lambda rng, text, mild: edited(rng, text, mild, _COMMENTS),
    _train_job,
    mild=0.6,
    share=12,
)

# --- files of the catalogue -----------------------------------------------------------------------

_LAYOUTS = (
    Layout(),
    Layout(dp=2, zero_stage=1, grad_accumulation=2),
    Layout(dp=4, zero_stage=3, recompute="full"),
    Layout(dp=2, tp=2, sequence_parallel=True, recompute="selective"),
    Layout(pp=2, grad_accumulation=4, schedule="1f1b"),
    Layout(dp=4, zero_stage=2),
)


@functools.cache
def _texts(kind: str) -> tuple[tuple[str, Layout], ...]:
    paths = sorted(catalogue_folder(kind).glob("*.toml"))
    return tuple((path.read_text("utf-8"), Layout()) for path in paths)


_VALUE = re.compile(r"= *([^\s,{}\[\]#]+)")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "[{}]" if value else "{}"
    return json.dumps(value) if isinstance(value, str) else str(value or 0)


def _change_toml(rng: random.Random, base: tuple[str, Layout], mild: float) -> tuple[str, Layout]:
    text, layout = base[0], rng.choice(_LAYOUTS) if rng.random() < 0.3 else Layout()
    if rng.random() < 0.4:
        found = rng.choice(list(_VALUE.finditer(text)))
        odd = _toml(odd_value(rng))
        if rng.random() < mild and re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", found[1]):
            odd = str(near(rng, float(found[1]) if "." in found[1] else int(float(found[1]))))
        return text[: found.start(1)] + odd + text[found.end(1) :], layout
    return edited(rng, text, mild, _COMMENTS), layout


def _estimate(model: Any, machine: Any, framework: Any, layout: Layout) -> None:
    length = min(model.default_sequence_length, 512)
    job = Workload(sequence_length=length, global_batch=layout.global_batch, precision="fp32")
    check_estimate(
        planner.estimate(model, machine, layout, workload=job, framework=framework or None)
    )


def _use_model(base: tuple[str, Layout], folder: Path) -> None:
    model = planner.load_model(write(folder, "own.toml", base[0]))
    if model.num_params < 1:
        raise Odd(f"{model.num_params} parameters")
    _estimate(model, planner.load_machine("dgx-h100"), None, base[1])


def _use_machine(base: tuple[str, Layout], folder: Path) -> None:
    machine = planner.load_machine(write(folder, "own.toml", base[0]))
    _estimate(planner.load_model("gpt2"), machine, None, base[1])


def _use_framework(base: tuple[str, Layout], folder: Path) -> None:
    framework = planner.load_framework(write(folder, "own.toml", base[0]))
    _estimate(planner.load_model("gpt2"), planner.load_machine("dgx-h100"), framework, base[1])


def _use_dataset(base: tuple[str, Layout], folder: Path) -> None:
    dataset = planner.load_dataset(write(folder, "own.toml", base[0]))
    layout = Layout(dp=4)
    workload = Workload(global_batch=4, sequence_length=512, tokens=1e9)
    training = Training(dataset=dataset)
    call = planner.whole_training(
        "gpt2", "polaris", layout, workload=workload, framework="ddp", training=training
    )
    check_finite(call.as_dict())


MODEL_FILES = Reader(lambda: _texts("model"), _change_toml, _use_model, mild=0.6, share=90)
MACHINE_FILES = Reader(lambda: _texts("machine"), _change_toml, _use_machine, mild=0.7, share=80)
FRAMEWORK_FILES = Reader(
    lambda: _texts("framework"), _change_toml, _use_framework, mild=0.8, share=80
)
DATASET_FILES = Reader(lambda: _texts("dataset"), _change_toml, _use_dataset, mild=0.6, share=50)

# --- config.json --------------------------------------------------------------------------------

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "vocab_size": 320,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
    "num_key_value_heads": 2,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 8,
    "n_positions": 2048,
    "ffn_dim": 160,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 160,
    "num_layers": 4,
    "num_heads": 8,
    "image_size": 224,
    "patch_size": 16,
    "moe_intermediate_size": 48,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


@functools.cache
def _configs() -> tuple[str, ...]:
    families = (json.dumps({**_SIZES, "model_type": name}, indent=1) for name in sorted(FAMILIES))
    accepted = []
    with tempfile.TemporaryDirectory() as folder:
        for text in families:
            with contextlib.suppress(planner.PlannerError):  # families with keys of their own
                _use_config(text, Path(folder))
                accepted.append(text)
    return tuple(accepted)


def _change_config(rng: random.Random, text: str, mild: float) -> str:
    if rng.random() < 0.7:
        data = json.loads(text)
        if rng.random() < 0.1:
            data = {"model_type": rng.choice(("llava", "gemma3", "x")), "text_config": data}
        return json.dumps(changed(rng, data, mild), indent=rng.choice((None, 1)))
    return edited(rng, text, mild)


def _use_config(text: str, folder: Path) -> None:
    model = planner.load_model(write(folder, "config.json", text))
    if model.num_params < 1:
        raise Odd(f"{model.num_params} parameters")
    _estimate(model, planner.load_machine("dgx-h100"), None, Layout(dp=2, zero_stage=1))


CONFIGS = Reader(_configs, _change_config, _use_config, mild=0.0, share=80)
