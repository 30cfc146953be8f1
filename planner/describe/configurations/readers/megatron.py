"""Megatron: arguments of Megatron-LM and Megatron-DeepSpeed, from a file or a job script."""

import re
from typing import Any

from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.stated_job import KEYS, Reader, StatedJob, split_fields
from planner.describe.layout import RECOMPUTE_MODULES
from planner.errors import shorten

_KEYS = KEYS["megatron"]
_MERGED = "overlap-moe-expert-parallel-comm"


def _recognises(document: Document) -> bool:
    options = document.options
    return any(mark in options for mark in _KEYS["marks"]) and any(
        name in options for name in _KEYS["needed"]
    )


def _state(job: StatedJob, flags: Table) -> None:
    deepspeed = any(name in flags for name in _KEYS["of_deepspeed"])
    once, merged = "moe-flex-dispatcher-backend" in flags, bool(flags.flag(_MERGED))
    plain = "megatron-deepep" if once and merged else "megatron-lm"
    job.set_single(framework="megatron-deepspeed" if deepspeed else plain)
    if merged != once:
        job.turn_on("overlap-experts" if merged else "deepep")
    job.shape(**flags.numbers(_KEYS["shape"]))
    _batch(job, flags)
    _degrees(job, flags)
    _sharding(job, flags, deepspeed)
    _ramp(job, flags)
    _training(job, flags, deepspeed)
    _recompute(job, flags, deepspeed)
    counted = _graphed(job)
    job.not_counted(flags, {k: v for k, v in _KEYS["not_counted"].items() if k not in counted})


def _graphed(job: StatedJob) -> tuple[str, ...]:
    """Count graphs of a layer's modules and not of the layer; return the options that are read."""
    if not any(word.startswith("graphed-") for word in job.switches()):
        return ()
    job.turn_off("cuda-graphs")
    return "cuda-graph-modules", "cuda-graph-scope"


def _batch(job: StatedJob, flags: Table) -> None:
    job.layout(micro_batch=flags.number("micro-batch-size"))
    job.workload(global_batch=flags.number("global-batch-size"))
    job.workload(sequence_length=flags.number("seq-length"))
    samples, tokens = flags.number("train-samples"), flags.real("train-tokens")
    job.workload(samples=samples, tokens=None if samples else tokens)
    if "global-batch-size" not in flags and "step-batch-size-schedule" not in flags:
        job.layout(grad_accumulation=1)
    per_node = flags.number("nproc-per-node", "num-gpus")
    nodes = flags.number("nnodes", "num-nodes")
    if per_node and nodes:
        job.set_single(world=per_node * nodes)


def _degrees(job: StatedJob, flags: Table) -> None:
    tp = flags.number("tensor-model-parallel-size") or 1
    pp = flags.number("pipeline-model-parallel-size") or 1
    # both forks turn it off without tensor parallelism
    split = bool(flags.flag("sequence-parallel")) and tp > 1
    split_experts = flags.number("expert-tensor-parallel-size")
    job.layout(
        etp=split_experts if split_experts != tp else None,
        tp=tp,
        pp=pp,
        cp=flags.number("context-parallel-size", "ds-sequence-parallel-size"),
        ep=flags.number("expert-model-parallel-size"),
        sequence_parallel=split,
    )
    _context(job, flags)
    flags.skip("pp-partition-method")
    if pp > 1:
        chunks = _chunks(job, flags, pp)
        job.layout(vpp=chunks, schedule="1f1b" if chunks == 1 else "interleaved-1f1b")
        job.layout(**_stage_fields(flags))
        _partition_method(job, flags)


def _context(job: StatedJob, flags: Table) -> None:
    """Read how context-parallel ranks exchange tokens: Ulysses all-to-all, a ring, or both."""
    kind, sizes = flags.word("cp-comm-type"), flags.get("hierarchical-context-parallel-sizes")
    cp = flags.number("context-parallel-size") or 1
    if kind == "a2a":
        job.layout(ulysses=cp)
    elif kind == "a2a+p2p":
        first = str(sizes or "").replace("[", " ").replace(",", " ").split()[:1]
        if not first or not first[0].isdigit():
            raise job.refused(
                "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes; write both of "
                "its degrees"
            )
        job.layout(ulysses=int(first[0]))


def _stage_fields(flags: Table) -> dict[str, Any]:
    """Read layers per stage: a layout string, ends counted as layers, or first and last stage."""
    spelled = flags.get("pipeline-model-parallel-layout")
    if spelled:
        return split_fields([_layers_of(stage) for stage in _stages_of(str(spelled))])
    slots = {field: flags.flag(option) for field, option in _KEYS["slots"].items()}
    stage_fields = {**slots, **flags.numbers(_KEYS["ends"])}
    return {name: int(value) for name, value in stage_fields.items() if value}


def _layers_of(stage: str) -> int:
    return sum(int(times or 1) for times in re.findall(r"t(?:\*(\d{1,4}))?", stage))


def _partition_method(job: StatedJob, flags: Table) -> None:
    """Read DeepSpeed's partition of layers over stages, an option of BigScience's fork."""
    method = flags.get("pp-partition-method")
    if method is None:
        return
    kind, _, types = str(method).lower().partition(":")
    if kind != "type":
        job.note(f"partition by {method} is estimated as partition by layers")
        return
    job.changes({"balance": "ends-as-layers" if "embed" in types else "layers"})


def _chunks(job: StatedJob, flags: Table, pp: int) -> int:
    """Read model chunks per stage from any of Megatron's three options."""
    direct = flags.number("num-virtual-stages-per-pipeline-rank")
    layers = flags.number("num-layers-per-virtual-pipeline-stage")
    spelled = flags.get("pipeline-model-parallel-layout")
    if direct:
        return direct
    if spelled:
        parts = _stages_of(str(spelled))
        if len(parts) % pp:
            raise job.refused(
                f"--pipeline-model-parallel-layout has {len(parts)} stages, which "
                f"--pipeline-model-parallel-size {pp} does not divide; correct one of them"
            )
        return len(parts) // pp
    total = flags.number("num-layers")
    if not layers or not total:
        return 1
    total += sum(bool(flags.flag(end)) for end in _KEYS["slots"].values())
    if layers < 1 or total % (pp * layers):
        raise job.refused(
            f"--num-layers-per-virtual-pipeline-stage {layers} on {pp} stages does not divide the "
            f"{total} layers, ends that count as layers included; use a divisor of {total // pp}"
        )
    return total // (pp * layers)


def _stages_of(spelled: str) -> list[str]:
    """Split Megatron's layout notation into stages, with repeated groups expanded."""
    group = re.compile(r"\(([^()]*)\)\*(\d{1,4})")
    expanded = group.sub(lambda match: match[1] * int(match[2]), spelled[:2000])
    return expanded.split("|")[:10_000]


def _sharding(job: StatedJob, flags: Table, deepspeed: bool) -> None:
    if deepspeed:
        job.layout(zero_stage=flags.number("zero-stage"))
        if "deepspeed-config" in flags:
            config = str(flags.get("deepspeed-config") or "its DeepSpeed configuration")
            job.set_single(hosts=("deepspeed",))
            job.left_to(config.rpartition("/")[2], "zero_stage", "offload")
        else:
            job.by_default(offload="none")
        return
    stage = 1 if flags.flag("use-distributed-optimizer") else 0
    strategy = flags.word("data-parallel-sharding-strategy")
    if strategy in _KEYS["strategies"]:
        stage = _KEYS["strategies"][strategy]
    elif flags.flag("use-torch-fsdp2", "use-megatron-fsdp"):
        stage = 3
    job.layout(zero_stage=stage)
    job.changes({"communication.overlap_gradients": bool(flags.flag("overlap-grad-reduce"))})
    gathers = bool(flags.flag("overlap-param-gather"))
    if stage:
        job.changes({"communication.overlap_parameters": gathers})
    if flags.flag("optimizer-cpu-offload"):
        job.layout(offload="optimizer-cpu")


def _training(job: StatedJob, flags: Table, deepspeed: bool) -> None:
    bf16, fp16 = flags.flag("bf16"), flags.flag("fp16")
    precision = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    if any(flags.get(name) is not None for name in _KEYS["fp8"]):
        precision = "fp8"
    kind = job.named(flags, "optimizer", _KEYS["optimizers"], "optimizer")
    attention = job.named(flags, "attention-backend", _KEYS["attentions"], "attention")
    flash = any([flags.flag(name) for name in _KEYS["flash"]])
    if attention is None:
        attention = "flash" if flash or not deepspeed else "eager"
    job.workload(precision=precision, optimizer=kind or "adamw", attention=attention)
    job.workload(dropout=flags.real("hidden-dropout"))
    _moments(job, flags)
    job.by_default(dropout=0.1)  # default of both forks
    job.workload(
        expert_capacity=flags.real("moe-expert-capacity-factor"),
        pad_experts=flags.flag("moe-pad-expert-input-to-capacity"),
    )


def _moments(job: StatedJob, flags: Table) -> None:
    """Note moment formats without a switch; both moments in bf16 or in fp8 have one."""
    kinds = [flags.word(f"exp-avg{square}-dtype") or "fp32" for square in ("", "-sq")]
    if kinds not in (["fp32", "fp32"], ["bf16", "bf16"], ["fp8", "fp8"]):
        job.note(
            f"--exp-avg-dtype {kinds[0]} with --exp-avg-sq-dtype {kinds[1]} is ignored: "
            "moments are estimated in fp32"
        )
    if flags.word("main-params-dtype") == "fp16":
        job.note(
            "--main-params-dtype fp16 is estimated as the 16 bits of fp32 that bf16 weights lack"
        )


def _ramp(job: StatedJob, flags: Table) -> None:
    steps, increment = flags.get("step-batch-size-schedule"), flags.get("rampup-batch-size")
    length = flags.number("seq-length") or 1
    if steps:
        pairs = [step.split(":") for step in str(steps).replace(",", " ").split()]
        if any(len(pair) != 2 for pair in pairs):
            raise job.refused(
                f"--step-batch-size-schedule {shorten(str(steps))} is not valid; write "
                "TOKENS:SEQUENCES"
            )
        bounds = [bound for bound, _ in pairs[1:]]
        ramp = [f"{until}:{size}" for until, (_, size) in zip(bounds, pairs, strict=False)]
        last = pairs[-1][1]
        if not last.isdecimal():
            raise job.refused(
                f"--step-batch-size-schedule: {shorten(last)} is not a whole number of sequences"
            )
        job.workload(global_batch=int(last), ramp=",".join(ramp))
    elif increment:
        job.workload(ramp=_rising(job, str(increment), flags.number("global-batch-size"), length))


def _rising(job: StatedJob, increment: str, global_batch: int | None, length: int) -> str:
    numbers = re.findall(r"\d{1,15}", increment.replace("_", ""))
    start, more, samples = map(int, numbers) if len(numbers) == 3 else (0, 0, 0)
    if not more or not global_batch or start > global_batch:
        raise job.refused(
            f"--rampup-batch-size {shorten(increment)} is not a start, an increment and samples up "
            "to the --global-batch-size"
        )
    count = (global_batch - start) // more
    bounds = (samples * (step + 1) / count * length for step in range(count))
    return ",".join(f"{until:.0f}:{start + step * more}" for step, until in enumerate(bounds))


def _recompute(job: StatedJob, flags: Table, deepspeed: bool) -> None:
    kind = flags.word("recompute-granularity")
    if flags.flag("recompute-activations"):
        kind = "selective"
    if flags.flag("checkpoint-activations", "deepspeed-activation-checkpointing"):
        kind = "full"
    if kind not in (None, "none", "selective", "full"):
        raise job.refused(f"--recompute-granularity {kind} is not known; use full or selective")
    method = flags.word("recompute-method", "checkpoint-method")
    layers = flags.number("recompute-num-layers", "checkpoint-num-layers") or 1
    modules = _modules(job, flags) if kind == "selective" else ()
    job.layout(recompute=kind or "none", recompute_modules=modules)
    if deepspeed:
        job.layout(offload_activations=bool(flags.flag("checkpoint-in-cpu")))
        if kind == "full" and (layers > 1 or method == "block"):
            job.note(
                f"recompute by {method or 'uniform'} of {layers} layers is estimated as recompute "
                "of every layer on its own"
            )
        return
    if kind == "full":
        job.layout(recompute_layers=layers if method == "block" else 0)
        job.layout(recompute_span=1 if method == "block" else layers)
    _offload(job, flags)


def _offload(job: StatedJob, flags: Table) -> None:
    """Read activation offload; it counts all layers but the last, which backward needs at once."""
    flags.skip("cpu-offloading")
    moved, layers = flags.number("cpu-offloading-num-layers"), flags.number("num-layers")
    job.layout(offload_activations=bool(moved))
    if moved and layers and moved < layers - 1:
        job.note(
            f"--cpu-offloading-num-layers {moved} is estimated as {layers - 1}: activations of all "
            "layers but the last wait in host memory"
        )


def _modules(job: StatedJob, flags: Table) -> tuple[str, ...]:
    """Read the modules that selective recompute repeats; core attention is the default."""
    names = flags.get("recompute-modules")
    words = tuple(names) if isinstance(names, (list, tuple)) else tuple(str(names or "").split())
    modules = tuple(name for name in RECOMPUTE_MODULES if name in words)
    for name in words:
        if name not in modules:
            job.note(f"recompute of {name} is not supported; its activations are estimated as kept")
    return () if modules == ("core_attn",) else modules


MEGATRON = Reader(
    "Megatron's arguments",
    _recognises,
    _state,
    table=Document.arguments,
    harmless=_KEYS["harmless"],
)
