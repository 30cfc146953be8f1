"""torchtitan: a Python configuration for release 0.3.0, and the TOML file of 0.2.2 for Llamas.

0.3.0 reads no TOML: it takes a function that returns a configuration. The function written here
starts from torchtitan's plain defaults and not from those of its flavors, which switch on FP8,
compilation, asynchronous tensor parallelism and a loss in chunks for some: what is estimated stands
in the file, and nothing else.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from planner.cost.shards.layers_per_stage import LayerSplit, layer_split, layers_on_stage
from planner.describe.model.model import Model
from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, FrameworkNames
from planner.emitters.queue import slot_of
from planner.emitters.recipe import File, Recipe
from planner.emitters.recipes import fully_shard
from planner.emitters.text import assigned, toml_text

__all__ = ["EXPRESSIBLE", "recipe"]

_Tables: TypeAlias = dict[str, dict[str, Any]]

EXPRESSIBLE = ExpressibleLayouts(
    axes=("tp", "pp", "cp", "ep"),
    recompute=("none", "selective", "full"),
    offload=("none", "all-cpu"),
    hybrid=True,
    reshard=True,  # of other models, by fully_shard alone
    stages=True,
)
_OLD_MODULE = "llama3"
"""The module whose models 0.2.2 is told as well."""
_OURS = "planned"
"""Name of the model's sizes where they are no flavor of torchtitan's."""
_PRECISIONS = FrameworkNames(
    "precision", "torchtitan", {name: TORCH_DTYPES[name] for name in ("bf16", "fp32", "tf32")}
)
_SCHEDULES = FrameworkNames(
    "schedule",
    "torchtitan",
    {
        "1f1b": "1F1B",
        "gpipe": "GPipe",
        "interleaved-1f1b": "Interleaved1F1B",
        "zero-bubble-v": "ZBVZeroBubble",
    },
)
_CHECKPOINTING = {"none": "", "selective": "SelectiveAC", "full": "FullAC"}
"""Classes of 0.3.0's activation_checkpoint."""
_VARIABLES = {
    "HF_ASSETS": "the folder of the tokenizer that belongs to the model",
    "LEARNING_RATE": "the learning rate of your recipe",
    "WARMUP_STEPS": "the steps over which it warms up",
}
_OLD_ARGUMENTS = (
    "--job.config_file torchtitan.toml",
    '--model.hf_assets_path "${HF_ASSETS}"',
    '--optimizer.lr "${LEARNING_RATE}"',
    '--lr_scheduler.warmup_steps "${WARMUP_STEPS}"',
)
_COMPILE, _ASYNC = "compile", "enable_async_tensor_parallel"
_OLD_HEAD, _HEAD = "output", "lm_head"
"""Name of the output layer in 0.2.2, and in 0.3.0."""


def recipe(job: BatchJob) -> Recipe:
    """torchtitan's files for a model that it knows; for others FSDP2 alone."""
    built = job.framework.code.builds(job.model, job.workload)
    if built is None or not built.module:
        return fully_shard.recipe(job)
    flavor = built.flavor(job.model)
    purpose = "torchtitan's configuration for release 0.3.0"
    files = [File("torchtitan_plan.py", purpose, _python(job, built.module, flavor))]
    notes = [
        "`job.sh` starts torchtitan 0.3.0 with `torchtitan_plan.py`.",
        "It streams C4 from the Hugging Face hub: name your own data in the configuration. What "
        "is not written there (decay of the learning rate, base of the rotary positions of sizes "
        "that torchtitan does not know) is torchtitan's default.",
    ]
    if job.workload.document_lengths:
        notes.append(
            "Documents of a sequence attend to themselves alone, as always in torchtitan 0.3.0; "
            "their lengths are those of your data."
        )
    if built.module == _OLD_MODULE and _is_old(job):
        files += _old_files(job, flavor)
        notes[0] += (
            " For 0.2.2, replace `--module torchtitan_plan --config plan` there by "
            f"`{' '.join(_OLD_ARGUMENTS)}`."
        )
    return Recipe(
        files=tuple(files),
        program="-m torchtitan.train",
        default_program="",
        arguments=("--module torchtitan_plan", "--config plan"),
        variables=_VARIABLES,
        saves=True,
        notes=tuple(notes),
        tells=True,
    )


# --- what both releases are told ---------------------------------------------------------------


def _training(job: BatchJob) -> dict[str, Any]:
    """Batch, sequence and precision. A pipeline takes all micro-batches of a step at once."""
    layout = job.layout
    at_once = layout.grad_accumulation if layout.pp > 1 else 1
    return {
        "local_batch_size": layout.micro_batch * at_once,
        "global_batch_size": layout.global_batch,
        "seq_len": job.workload.sequence_length,
        "steps": job.steps,
        "enable_cpu_offload": layout.offload == "all-cpu",
        "mixed_precision_param": _PRECISIONS[job.workload.precision],
        "mixed_precision_reduce": "float32",
    }


def _parallelism(job: BatchJob, head: str) -> dict[str, Any]:
    layout = job.layout
    replicate, shard = job.sharding
    table: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": _reshard(job),
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
    }
    if layout.pp > 1:
        table["pipeline_parallel_schedule"] = _SCHEDULES[layout.schedule]
        table["pipeline_parallel_microbatch_size"] = layout.micro_batch
        table["module_fqns_per_model_part"] = _chunks(job, head)
    return table


def _reshard(job: BatchJob) -> str:
    """The policy: `default` keeps the output layer gathered, and with a pipeline everything."""
    if not job.layout.shards_weights:
        return "never"
    return "default" if job.layout.pp == 1 else "always"


def _chunks(job: BatchJob, head: str) -> list[list[str]]:
    """Modules of every chunk, dealt as the estimate deals them: both ends weigh one layer, where
    nothing else is told."""
    number, layers = job.layout.pp * job.layout.vpp, job.model.num_layers
    deal = layer_split(layers, job.layout, LayerSplit(1, 1))
    chunks = []
    for chunk in range(number):
        first, count = layers_on_stage(layers, number, chunk, deal)
        chunks.append([f"layers.{layer}" for layer in range(int(first), int(first + count))])
    return [["tok_embeddings", *chunks[0]], *chunks[1:-1], [*chunks[-1], "norm", head]]


def _checkpoint(job: BatchJob) -> dict[str, Any]:
    """Whole states into one folder; the last found there is loaded at the start."""
    return {
        "enable": True,
        "folder": CHECKPOINTS,
        "interval": slot_of(job).save_every,
        "last_save_model_only": False,
    }


# --- release 0.3.0 -----------------------------------------------------------------------------

_PLAN = '''\
"""torchtitan 0.3.0: python -m torchtitan.train --module torchtitan_plan --config plan"""

{imports}


def plan() -> Trainer.Config:
    """Everything that the estimate counts; nothing of a flavor's own configuration."""
    config = Trainer.Config(
        model_spec={model},
        hf_assets_path=os.environ["HF_ASSETS"],
        dump_folder=".",
        loss={loss},
        optimizer=default_adamw(lr=float(os.environ["LEARNING_RATE"])),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=int(os.environ["WARMUP_STEPS"])),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        compile=CompileConfig({compiled}),
    )
{settings}
    return config
'''
_LOSS = "CrossEntropyLoss.Config(global_vocab_size={vocabulary})"
_CHUNKED_LOSS = """\
ChunkedLossWrapper.Config(
            num_chunks={chunks},
            loss_fn={loss},
        )"""
_SIZES = '''

def sized() -> ModelSpec:
    """The Llama of these sizes, which are none of torchtitan's own."""
    spec = model_registry("8B")
    width, vocabulary = {width}, {vocabulary}
    rope = ComplexRoPE.Config(dim={head}, max_seq_len={positions}, theta=500000)
    sizes = replace(
        spec.model,
        dim=width,
        vocab_size=vocabulary,
        enable_weight_tying={tied},
        tok_embeddings=replace(
            spec.model.tok_embeddings, num_embeddings=vocabulary, embedding_dim=width
        ),
        norm=replace(spec.model.norm, normalized_shape=width),
        lm_head=replace(spec.model.lm_head, in_features=width, out_features=vocabulary),
        layers=_build_llama3_layers(
            n_layers={layers},
            dim=width,
            n_heads={heads},
            n_kv_heads={kv_heads},
            hidden_dim={feed_forward},
            rope=rope,
            attn_backend="flex",
        ),
    )
    return replace(spec, flavor="{ours}", model=sizes)
'''


def _python(job: BatchJob, module: str, flavor: str) -> str:
    """`torchtitan_plan.py`."""
    text = _PLAN.format(
        imports="\n".join(_imports(job, module, flavor)),
        model=f'model_registry("{flavor}")' if flavor else "sized()",
        loss=_loss(job),
        compiled=", ".join(f"{key}={_literal(value)}" for key, value in _compile(job).items()),
        settings="\n".join(f"    config.{line}" for line in _settings(job)),
    )
    return text if flavor else text + _sizes(job)


def _loss(job: BatchJob) -> str:
    """Whole, or piece by piece where the framework's description says so."""
    loss = _LOSS.format(vocabulary=job.model.vocab_size)
    chunks = job.framework.kernels.loss_chunks
    return loss if chunks == 1 else _CHUNKED_LOSS.format(chunks=chunks, loss=loss)


def _imports(job: BatchJob, module: str, flavor: str) -> list[str]:
    checkpointing = _CHECKPOINTING[job.layout.recompute]
    chunked = "ChunkedLossWrapper, " if job.framework.kernels.loss_chunks > 1 else ""
    names = {
        "torchtitan.components.loss": f"{chunked}CrossEntropyLoss",
        "torchtitan.components.optimizer": "LRSchedulersContainer, default_adamw",
        "torchtitan.config": "CompileConfig",
        "torchtitan.distributed.activation_checkpoint": checkpointing,
        "torchtitan.hf_datasets.text_datasets": "HuggingFaceTextDataLoader",
        f"torchtitan.models.{module}": "model_registry",
        "torchtitan.trainer": "Trainer",
    }
    if not flavor:
        names[f"torchtitan.models.{module}"] = "_build_llama3_layers, model_registry"
        names["torchtitan.models.common"] = "ComplexRoPE"
        names["torchtitan.protocols.model_spec"] = "ModelSpec"
    first = ["import os", *([] if flavor else ["from dataclasses import replace"]), ""]
    return first + [f"from {place} import {name}" for place, name in sorted(names.items()) if name]


def _settings(job: BatchJob) -> list[str]:
    """Assignments of what the layout decides."""
    tables: _Tables = {
        # 0.3.0 refuses to capture a pipeline
        "training": {**_training(job), "disable_cuda_graphs": job.framework.host.graphed is None},
        "parallelism": _parallelism(job, _HEAD),
        "checkpoint": _checkpoint(job),
    }
    settings = assigned(tables, job.framework.switch_arguments)
    tables = {name: table for name, table in settings.items() if name != _COMPILE}
    lines = [
        f"{section}.{key} = {_literal(value)}"
        for section, table in tables.items()
        for key, value in table.items()
    ]
    checkpointing = _CHECKPOINTING[job.layout.recompute]
    kind = f"{checkpointing}.Config()" if checkpointing else "None"
    return [*lines, f"activation_checkpoint = {kind}"]


def _compile(job: BatchJob) -> dict[str, Any]:
    """What is compiled, as the switches that are on say."""
    compile_settings = assigned({_COMPILE: {"enable": False}}, job.framework.switch_arguments)[
        _COMPILE
    ]
    return dict(compile_settings)


def _literal(value: str | int | bool | list[list[str]]) -> str:
    return repr(value) if isinstance(value, (bool, int)) else json.dumps(value)


def _sizes(job: BatchJob) -> str:
    model = job.model
    return _SIZES.format(
        width=model.hidden_size,
        vocabulary=model.vocab_size,
        head=model.head_dim,
        positions=job.num_positions,
        tied=model.tied_embeddings,
        layers=model.num_layers,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        feed_forward=model.ffn_size,
        ours=_OURS,
    )


# --- release 0.2.2 -----------------------------------------------------------------------------


def _is_old(job: BatchJob) -> bool:
    """Whether 0.2.2 can say the job: no shared embedding, and other axes beside FSDP only; its
    loss is whole, and documents attend to each other."""
    layout = job.layout
    if job.framework.kernels.loss_chunks > 1 or job.workload.document_lengths:
        return False
    is_data_parallel = layout.tp * layout.pp == 1
    sharded = job.sharding[1] * layout.cp > 1
    return not job.model.tied_embeddings and (is_data_parallel or sharded)


def _old_files(job: BatchJob, flavor: str) -> list[File]:
    """`torchtitan.toml`, and the model's sizes where they are no flavor."""
    has_flavor = flavor in _OLD_FLAVORS
    checkpointing: dict[str, str] = {"mode": job.layout.recompute}
    if job.layout.recompute == "selective":
        checkpointing["selective_ac_option"] = "op"
    tables: _Tables = {
        "job": {"dump_folder": "."},
        "model": {"name": _OLD_MODULE, "flavor": flavor if has_flavor else _OURS},
        "training": {"dataset": "c4", **_training(job)},
        "parallelism": _parallelism(job, _OLD_HEAD),
        "checkpoint": _checkpoint(job),
        _COMPILE: {"enable": False},
        "activation_checkpoint": checkpointing,
    }
    tables = assigned(tables, job.framework.switch_arguments)
    if _ASYNC in tables[_COMPILE]:
        # the older release has it among the degrees
        tables["parallelism"][_ASYNC] = tables[_COMPILE].pop(_ASYNC)
    if not has_flavor:
        tables["experimental"] = {"custom_import": "torchtitan_model"}
    text = toml_text(tables, "torchtitan 0.2.2 and older; newer ones read no TOML")
    files = [File("torchtitan.toml", "torchtitan's configuration up to release 0.2.2", text)]
    if not has_flavor:
        purpose = "the model's sizes, which torchtitan 0.2.2 imports"
        files.append(File("torchtitan_model.py", purpose, _old_sizes(job.model)))
    return files


_OLD_FLAVORS = ("8B", "70B", "405B")


def _old_sizes(model: Model) -> str:
    """The module that names the model's shapes to torchtitan."""
    least = 8 * model.hidden_size // 3
    lines = [
        '"""A Llama of these sizes for torchtitan 0.2.2."""',
        "",
        "from torchtitan.models.llama3 import TransformerModelArgs, llama3_args",
        "",
        f'llama3_args["{_OURS}"] = TransformerModelArgs(',
        f"    dim={model.hidden_size},",
        f"    n_layers={model.num_layers},",
        f"    n_heads={model.num_heads},",
        f"    n_kv_heads={model.num_kv_heads},",
        f"    vocab_size={model.vocab_size},",
        "    # the feed-forward width is rounded up to a multiple of this: the width itself",
        f"    multiple_of={model.ffn_size},",
    ]
    if least > model.ffn_size:
        lines.append(f"    ffn_dim_multiplier={model.ffn_size / least / 2:.3f},")
    return "\n".join([*lines, ")"]) + "\n"
