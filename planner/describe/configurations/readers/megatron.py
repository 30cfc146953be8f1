"""Megatron: arguments of Megatron-LM and of Megatron-DeepSpeed, in a file or in a job script."""

from __future__ import annotations

import re
from typing import Any

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.stages import dealing
from planner.describe.configurations.statement import Statement
from planner.describe.configurations.table import Table
from planner.describe.layout import RECOMPUTE_MODULES
from planner.errors import shorten

__all__ = ["KIND", "read", "recognises"]

KIND = "Megatron's arguments"
_MARKS = ("num-layers", "tensor-model-parallel-size", "num-attention-heads")
_NEEDED = ("micro-batch-size", "global-batch-size", "seq-length", "hidden-size")
_DEEPSPEED = ("deepspeed", "zero-stage", "deepspeed-config", "no-pipeline-parallel")
_SHAPE = {
    "num_layers": "num-layers",
    "hidden_size": "hidden-size",
    "num_heads": "num-attention-heads",
    "ffn_size": "ffn-hidden-size",
}
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd-momentum", "muon": "muon"}
_ATTENTIONS = {
    "flash": "flash",
    "fused": "flash",
    "auto": "flash",
    "unfused": "eager",
    "local": "eager",
}
_FLASH = ("use-flash-attn", "use-flash-attn-v2", "use-flash-attn-builder", "use-flash-attn-triton")
_FP8 = ("fp8-format", "fp8", "fp8-hybrid", "fp8-e4m3")
_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_NOT_COUNTED = {
    "fine-grained-activation-offloading": "activations are taken as on the device",
    "offload-modules": "activations are taken as on the device",
    "defer-embedding-wgrad-compute": "gradients of the embedding are taken as at once",
    "cuda-graph-modules": "all kernels of a layer are taken as captured",
    "cuda-graph-scope": "all kernels of a layer are taken as captured",
    "enable-zbh1-pipeline": "the zero-bubble schedule of that fork is not described",
    "dataloader-inter-document-masking": "sequences are taken as one document each unless "
    "--document-lengths is said",
    "sft": "sequences are taken as one conversation each; say --document-lengths",
    "moe-expert-parallel-size": "experts of Megatron-DeepSpeed are not described",
    "sequence-data-parallel-size": "sequence is taken as whole on each rank",
}
_MERGED = "overlap-moe-expert-parallel-comm"
_NO_OPTIONS_OF_OURS = re.compile(
    r"(lr|min-lr|adam|weight|clip|train|eval|save|load|log|data|vocab|merge|tokenizer|seed|init|"
    r"split|tensorboard|wandb|timing|master|node|rdzv|dist|override|exit|num-workers|"
    r"rotary|norm|position|bos|eos|use-mcore|transformer-impl|no-|mock|hidden-dropout|"
    r"attention-dropout|swiglu|group-query|num-query|kv-channels|disable-bias|untie|moe-|"
    r"loss-scale|initial-loss|attention-softmax|apply|max-position|add-qkv|qk-|window|ckpt|async|"
    r"use-checkpoint|use-rotary|num-key|make-vocab|squared|multi-latent|ppid|job|mpi|cpu-bind|"
    r"hostfile|force|user|project|num-experts|expert-tensor|trust|ddp-|accumulate|memory|profile|"
    r"create-moe|mlp-type|topk|finetune|reset|epochs|openai|relu|use-tokenizer|checkpoint-in)"
)
"""Data, optimizer settings, output, launch and the shape of the model."""


def recognises(document: Document) -> bool:
    """Whether options of Megatron's stand there."""
    options = document.options
    return any(mark in options for mark in _MARKS) and any(name in options for name in _NEEDED)


def read(document: Document) -> Configuration:
    """What they say."""
    given = document.arguments()
    said = Statement(KIND, document.name, given)
    deepspeed = any(name in given for name in _DEEPSPEED)
    once, merged = "moe-flex-dispatcher-backend" in given, bool(given.flag(_MERGED))
    plain = "megatron-deepep" if once and merged else "megatron-lm"
    said.is_(framework="megatron-deepspeed" if deepspeed else plain)
    if merged != once:
        said.turned_on("overlap-experts" if merged else "deepep")
    said.shape(**{field: given.number(option) for field, option in _SHAPE.items()})
    _batch(said, given)
    _degrees(said, given)
    _sharding(said, given, deepspeed)
    _ramp(said, given)
    _training(said, given, deepspeed)
    _recompute(said, given, deepspeed)
    said.not_counted(given, _NOT_COUNTED)
    for name, variable in given.undecided():
        said.note(f"--{name} is {variable}, which the script does not set")
    return said.configuration(hides=lambda key: bool(_NO_OPTIONS_OF_OURS.match(key)))


def _batch(said: Statement, given: Table) -> None:
    micro, whole = given.number("micro-batch-size"), given.number("global-batch-size")
    said.layout(micro_batch=micro)
    said.workload(global_batch=whole, sequence_length=given.number("seq-length"))
    if "global-batch-size" not in given and "step-batch-size-schedule" not in given:
        said.layout(grad_accumulation=1)
    per_node = given.number("nproc-per-node", "num-gpus")
    nodes = given.number("nnodes", "num-nodes")
    if per_node and nodes:
        said.is_(world=per_node * nodes)


def _degrees(said: Statement, given: Table) -> None:
    tp = given.number("tensor-model-parallel-size") or 1
    pp = given.number("pipeline-model-parallel-size") or 1
    # both forks take it off where nothing is split
    split = bool(given.flag("sequence-parallel")) and tp > 1
    split_experts = given.number("expert-tensor-parallel-size")
    said.layout(
        etp=split_experts if split_experts != tp else None,
        tp=tp,
        pp=pp,
        cp=given.number("context-parallel-size", "ds-sequence-parallel-size"),
        ep=given.number("expert-model-parallel-size"),
        sequence_parallel=split,
    )
    _context(said, given)
    if pp > 1:
        chunks = _chunks(said, given, pp)
        schedule = "1f1b" if chunks == 1 else "interleaved-1f1b"
        said.layout(vpp=chunks, schedule=schedule)
        said.layout(**_told(given))
        _dealing(said, given)


def _context(said: Statement, given: Table) -> None:
    """How context ranks attend to each other's tokens."""
    kind, sizes = given.word("cp-comm-type"), given.get("hierarchical-context-parallel-sizes")
    cp = given.number("context-parallel-size") or 1
    if kind == "a2a":
        said.layout(ulysses=cp)
    elif kind == "a2a+p2p":
        first = str(sizes or "").replace("[", " ").replace(",", " ").split()[:1]
        if not first or not first[0].isdigit():
            raise said.refused(
                "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes; write both of "
                "its degrees"
            )
        said.layout(ulysses=int(first[0]))


def _told(given: Table) -> dict[str, Any]:
    """Layers of stages, in the three ways in which Megatron is told."""
    spelled = given.get("pipeline-model-parallel-layout")
    if spelled:
        return dealing([_layers_of(stage) for stage in _stages_of(str(spelled))])
    slots = {
        "embedding_slots": given.flag("account-for-embedding-in-pipeline-split"),
        "head_slots": given.flag("account-for-loss-in-pipeline-split"),
    }
    ends = {
        "first_layers": given.number("decoder-first-pipeline-num-layers"),
        "last_layers": given.number("decoder-last-pipeline-num-layers"),
    }
    return {name: int(value) for name, value in {**slots, **ends}.items() if value}


def _layers_of(stage: str) -> int:
    """Decoder layers of a stage in Megatron's notation.

    >>> [_layers_of(stage) for stage in ("Et*3", "tt", "t,tL", "m", "")]
    [3, 2, 2, 0, 0]
    """
    return sum(int(times or 1) for times in re.findall(r"t(?:\*(\d{1,4}))?", stage))


def _dealing(said: Statement, given: Table) -> None:
    """How DeepSpeed deals layers to stages, which BigScience's fork has an option for."""
    method = given.get("pp-partition-method")
    if method is None:
        return
    kind, _, types = str(method).lower().partition(":")
    if kind != "type":
        said.note(f"stages dealt by {method} are estimated as dealt by their layers")
        return
    said.changes({"balance": "ends-as-layers" if "embed" in types else "layers"})


def _chunks(said: Statement, given: Table, pp: int) -> int:
    """Model chunks of a stage, in the three ways in which Megatron is told."""
    direct = given.number("num-virtual-stages-per-pipeline-rank")
    layers = given.number("num-layers-per-virtual-pipeline-stage")
    spelled = given.get("pipeline-model-parallel-layout")
    if direct:
        return direct
    if spelled:
        parts = _stages_of(str(spelled))
        if len(parts) % pp:
            raise said.refused(
                f"--pipeline-model-parallel-layout has {len(parts)} stages, which "
                f"--pipeline-model-parallel-size {pp} does not divide; correct one of them"
            )
        return len(parts) // pp
    total = given.number("num-layers")
    if not layers or not total:
        return 1
    ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
    total += sum(bool(given.flag(end)) for end in ends)
    if layers < 1 or total % (pp * layers):
        raise said.refused(
            f"--num-layers-per-virtual-pipeline-stage {layers} on {pp} stages does not divide the "
            f"{total} layers, ends that count as layers included; use a divisor of {total // pp}"
        )
    return total // (pp * layers)


def _stages_of(spelled: str) -> list[str]:
    """Stages of Megatron's notation, repeated groups written out.

    >>> _stages_of("Et*2|t*2|t*1L"), len(_stages_of("Et|(tt|)*6t,L"))
    (['Et*2', 't*2', 't*1L'], 8)
    """
    group = re.compile(r"\(([^()]*)\)\*(\d{1,4})")
    whole = group.sub(lambda match: match[1] * int(match[2]), spelled[:2000])
    return whole.split("|")[:10_000]


def _sharding(said: Statement, given: Table, deepspeed: bool) -> None:
    if deepspeed:
        stage = given.number("zero-stage")
        config = given.get("deepspeed-config")
        if isinstance(config, str):
            said.is_(hosts=("deepspeed",))
            said.left_to(config.rpartition("/")[2], "zero_stage", "offload")
        said.layout(zero_stage=stage)
        if not isinstance(config, str):
            said.by_default(offload="none")
        return
    stage = 1 if given.flag("use-distributed-optimizer") else 0
    strategy = given.word("data-parallel-sharding-strategy")
    if strategy in _STRATEGIES:
        stage = _STRATEGIES[strategy]
    elif given.flag("use-torch-fsdp2", "use-megatron-fsdp"):
        stage = 3
    said.layout(zero_stage=stage)
    reduces = bool(given.flag("overlap-grad-reduce"))
    gathers = bool(given.flag("overlap-param-gather"))
    said.changes({"communication.overlap_gradients": reduces})
    if stage:
        said.changes({"communication.overlap_parameters": gathers})
    if given.flag("optimizer-cpu-offload"):
        said.layout(offload="optimizer-cpu")


def _training(said: Statement, given: Table, deepspeed: bool) -> None:
    precision = "bf16" if given.flag("bf16") else "fp16" if given.flag("fp16") else "fp32"
    if any(given.get(name) is not None for name in _FP8):
        precision = "fp8"
    kind = said.named(given, "optimizer", _OPTIMIZERS, "adamw")
    attention = said.named(given, "attention-backend", _ATTENTIONS, "flash")
    flash = any([given.flag(name) for name in _FLASH])
    if attention is None:
        attention = "flash" if flash or not deepspeed else "eager"
    said.workload(precision=precision, optimizer=kind or "adamw", attention=attention)
    said.workload(dropout=given.real("hidden-dropout"))
    _moments(said, given)
    said.by_default(dropout=0.1)  # of both forks
    said.workload(
        expert_capacity=given.real("moe-expert-capacity-factor"),
        pad_experts=given.flag("moe-pad-expert-input-to-capacity"),
    )


def _moments(said: Statement, given: Table) -> None:
    """Formats of moments that no switch has; those of both in bf16 or fp8 turn one on."""
    kinds = [given.word(f"exp-avg{square}-dtype") or "fp32" for square in ("", "-sq")]
    if kinds not in (["fp32", "fp32"], ["bf16", "bf16"], ["fp8", "fp8"]):
        said.note(
            f"--exp-avg-dtype {kinds[0]} with --exp-avg-sq-dtype {kinds[1]} is not counted: "
            "moments are taken as fp32"
        )
    if given.word("main-params-dtype") == "fp16":
        said.note(
            "--main-params-dtype fp16 is counted as the 16 bits that bf16 weights lack of fp32"
        )


def _ramp(said: Statement, given: Table) -> None:
    """Smaller batches at first: steps by tokens, or an increment by samples."""
    steps, increment = given.get("step-batch-size-schedule"), given.get("rampup-batch-size")
    length = given.number("seq-length") or 1
    if steps:
        pairs = [step.split(":") for step in str(steps).replace(",", " ").split()]
        if any(len(pair) != 2 for pair in pairs):
            raise said.refused(
                f"--step-batch-size-schedule {shorten(str(steps))} is none; write TOKENS:SEQUENCES"
            )
        bounds = [bound for bound, _ in pairs[1:]]
        ramp = [f"{until}:{size}" for until, (_, size) in zip(bounds, pairs, strict=False)]
        last = pairs[-1][1]
        if not last.isdecimal():
            raise said.refused(f"{shorten(last)} sequences of a step are no whole number")
        said.workload(global_batch=int(last), ramp=",".join(ramp))
    elif increment:
        said.workload(ramp=_rising(said, str(increment), given.number("global-batch-size"), length))


def _rising(said: Statement, increment: str, whole: int | None, length: int) -> str:
    """The ramp of Megatron's start, increment and samples."""
    numbers = re.findall(r"\d{1,15}", increment.replace("_", ""))
    if len(numbers) != 3 or not whole or not int(numbers[1]) or int(numbers[0]) > whole:
        raise said.refused(
            f"--rampup-batch-size {shorten(increment)} is not a start, an increment and samples up "
            "to the --global-batch-size"
        )
    start, more, samples = map(int, numbers)
    count = (whole - start) // more
    bounds = (samples * (step + 1) / count * length for step in range(count))
    return ",".join(f"{until:.0f}:{start + step * more}" for step, until in enumerate(bounds))


def _recompute(said: Statement, given: Table, deepspeed: bool) -> None:
    kind = given.word("recompute-granularity")
    if given.flag("recompute-activations"):
        kind = "selective"
    if given.flag("checkpoint-activations", "deepspeed-activation-checkpointing"):
        kind = "full"
    if kind not in (None, "none", "selective", "full"):
        raise said.refused(f"--recompute-granularity {kind} is not known; use full or selective")
    method = given.word("recompute-method", "checkpoint-method")
    layers = given.number("recompute-num-layers", "checkpoint-num-layers") or 1
    modules = _modules(said, given) if kind == "selective" else ()
    said.layout(recompute=kind or "none", recompute_modules=modules)
    if deepspeed:
        said.layout(offload_activations=bool(given.flag("checkpoint-in-cpu")))
        if kind == "full" and (layers > 1 or method == "block"):
            said.note(
                f"recompute by {method or 'uniform'} of {layers} layers is estimated as recompute "
                "of every layer on its own"
            )
        return
    if kind == "full":
        said.layout(recompute_layers=layers if method == "block" else 0)
        said.layout(recompute_span=1 if method == "block" else layers)
    _offload(said, given)


def _offload(said: Statement, given: Table) -> None:
    """Activations in host memory: of all layers but the last, which are needed at once."""
    given.skip("cpu-offloading")
    moved, layers = given.number("cpu-offloading-num-layers"), given.number("num-layers")
    said.layout(offload_activations=bool(moved))
    if moved and layers and moved < layers - 1:
        said.note(
            f"--cpu-offloading-num-layers {moved} is counted as {layers - 1}: activations of all "
            "layers but the last wait in host memory"
        )


def _modules(said: Statement, given: Table) -> tuple[str, ...]:
    """What selective recompute is told to repeat; attention alone is what it repeats untold."""
    names = given.get("recompute-modules")
    found = tuple(names) if isinstance(names, (list, tuple)) else tuple(str(names or "").split())
    known = tuple(name for name in RECOMPUTE_MODULES if name in found)
    for name in found:
        if name not in known:
            said.note(f"recompute of {name} is not described: its activations are taken as kept")
    return () if known == ("core_attn",) else known
