"""Configured: configuration files of frameworks, and job scripts of batch systems."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import planner
from fuzzing.checks import check_estimate, check_finite
from fuzzing.mutations import changed, edited
from fuzzing.reader import ROOT, Reader, write
from planner.app.controls.drop import query_of
from planner.app.controls.page_job import PageJob
from planner.choose.user_layouts import complete_layout
from planner.describe.configurations import batch_script, batch_site
from planner.describe.workload import Workload
from planner.evidence.recognition import recognise
from planner.show.reports.job_check import check_job

_DEEPSPEED = (
    '{"train_batch_size":64,"train_micro_batch_size_per_gpu":4,"gradient_accumulation_steps":2,'
    '"bf16":{"enabled":true},"zero_optimization":{"stage":3,"overlap_comm":true}}',
    '{\n  "train_micro_batch_size_per_gpu": 1,\n  "gradient_accumulation_steps": 8,\n'
    '  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},\n  "fp16": {"enabled": true},\n'
    '  "zero_optimization": {\n    "stage": 2, "contiguous_gradients": true,\n'
    '    "reduce_bucket_size": 5e8,\n    "offload_optimizer": {"device": "cpu"}\n  }\n}',
)
_ACCELERATE = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
    "num_machines: 2\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 1\n"
    "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_offload_params: false\n"
    "  fsdp_activation_checkpointing: true\n",
    "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4\n"
    "  offload_optimizer_device: none\n  offload_param_device: none\n  zero_stage: 3\n"
    "mixed_precision: bf16\nnum_processes: 8\n",
    "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_num_micro_batches: 2\n"
    "  megatron_lm_pp_degree: 2\n  megatron_lm_recompute_activations: true\n"
    "  megatron_lm_sequence_parallelism: true\n  megatron_lm_tp_degree: 2\n"
    "  megatron_lm_use_distributed_optimizer: true\nmixed_precision: bf16\nnum_processes: 8\n",
)
_TORCHTITAN = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    "steps = 1000\n[parallelism]\ndata_parallel_replicate_degree = 1\n"
    "data_parallel_shard_degree = -1\ntensor_parallel_degree = 1\npipeline_parallel_degree = 1\n"
    '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"\n',
    '[optimizer]\nname = "AdamW"\n[training]\nlocal_batch_size = 4\nseq_len = 2048\n'
    "[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 4\n"
    'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "1F1B"\n'
    '[activation_checkpoint]\nmode = "full"\n[compile]\nenable = true\n',
)
_MEGATRON = (
    "#!/bin/bash\nTP=4; PP=2   # degrees\nGPUS_PER_NODE=${GPUS_PER_NODE:-8}\nMODEL_ARGS=(\n"
    "    --num-layers 32 --hidden-size 4096\n    --num-attention-heads 32 # comments\n"
    "    --seq-length 4096 --max-position-embeddings 8192\n)\n"
    'TRAIN_ARGS="--micro-batch-size 1 --global-batch-size $((2 * 32)) --bf16 \\\n'
    '    --recompute-granularity selective --lr 1e-4 --hidden-dropout 0"\n'
    '[ -n "$DEBUG" ] && TRAIN_ARGS="$TRAIN_ARGS --micro-batch-size 7"\n'
    'torchrun --nproc_per_node $GPUS_PER_NODE --nnodes "2" pretrain_gpt.py \\\n'
    "    ${MODEL_ARGS[@]} $TRAIN_ARGS --tensor-model-parallel-size=$TP \\\n"
    "    --pipeline-model-parallel-size $PP --sequence-parallel --use-distributed-optimizer\n",
    'TP=2\noptions=" --tensor-model-parallel-size $TP --num-layers 32 --hidden-size 4096 \\\n'
    "  --num-attention-heads 32 --seq-length 2048 --micro-batch-size 4 --global-batch-size 64 \\\n"
    '  --fp16 --optimizer adam"\nds_args="--deepspeed --deepspeed_config=ds.json --zero-stage=1"\n'
    'ds_args="${ds_args} --deepspeed-activation-checkpointing --checkpoint-activations"\n'
    'run_cmd="deepspeed pretrain_gpt.py $options ${ds_args} &> log"\neval ${run_cmd}\n',
)
_OTHERS = (
    "general: {project: mine, run: first, seed: 42}\nparallelism:\n  dp: 4\n  tp: 2\n  pp: 2\n"
    "  pp_engine: 1f1b\n  tp_mode: REDUCE_SCATTER\n  recompute_layer: true\nmodel:\n"
    "  dtype: bfloat16\noptimizer: {zero_stage: 1, optimizer_factory: {name: adamW}}\n"
    "tokens: {sequence_length: 2048, micro_batch_size: 2, batch_accumulation_per_replica: 8}\n",
    '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": true,\n'
    ' "gradient_checkpointing": true, "optim": "adamw_torch", "learning_rate": 2e-5,\n'
    ' "fsdp": ["full_shard", "auto_wrap"]}',
    "base_model: org/model\nadapter: lora\nlora_r: 32\nlora_target_modules: [q_proj, v_proj]\n"
    "sequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
    "optimizer: adamw_torch\nbf16: true\ngradient_checkpointing: true\nfsdp_config:\n"
    "  reshard_after_forward: true\n  fsdp_version: 2\n",
    '{\n  "pipe-parallel-size": 2, "model-parallel-size": 2, "seq-length": 2048,\n'
    '  "checkpoint-activations": true, "train_micro_batch_size_per_gpu": 4,\n'
    '  "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 1},\n'
    '  "fp16": {"fp16": true, "enabled": true}\n}',
    "# a small GPT\nbatch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 4 * 8\n"
    'dropout = 0.0\ndtype = "bfloat16"\n',
    "torchrun --nproc_per_node=8 run_clm.py --per_device_train_batch_size 2 \\\n"
    "  --gradient_accumulation_steps 4 --bf16 --output_dir out\n",
    "GAS=4\nezpz launch python3 -m wordplay train=owt model.batch_size=3 \\\n"
    "    model.block_size=512 optimizer.gas=${GAS} train.dtype=bfloat16\n",
)
_NOISE = ("# caf\xe9 \u6f22\u5b57", "", "   # --tensor-model-parallel-size 99", "#SBATCH -N 3")
_FILE_NAMES = {"{": "ds_config.json", "[": "train.toml", "#": "job.sh"}


@functools.cache
def _page_job() -> PageJob:
    workload = Workload(sequence_length=2048, global_batch=64)
    polaris = planner.load_machine("polaris")
    return PageJob(planner.load_model("llama-3-8b"), polaris, nodes=2, workload=workload)


def _change(rng: random.Random, text: str, mild: float) -> str:
    if text.startswith("{") and rng.random() < 0.6:
        return json.dumps(changed(rng, json.loads(text), mild), indent=rng.choice((None, 1)))
    return edited(rng, text, mild, () if text.startswith("{") else _NOISE)


def _use(text: str, folder: Path) -> None:
    """Complete a job with a file, on the command line's way and the explorer's."""
    name = _FILE_NAMES.get(text.lstrip()[:1], "config.yaml")
    configuration = planner.read_configuration(write(folder, name, text))
    page = _page_job()
    nodes = None if configuration.world or "dp" in configuration.layout else 2
    layout = {} if "micro_batch" in configuration.layout else {"micro_batch": 1}
    job = complete_layout(page.model, page.machine, configuration, nodes=nodes, layout=layout)
    call = planner.estimate(
        page.model, page.machine, job.layout, workload=job.workload, framework=job.framework
    )
    check_estimate(call)
    if len(text) % 4:
        return
    query, notes = query_of([recognise(text.encode("utf-8", "replace"), name)], page)
    if not all(isinstance(part, str) for part in (*query.values(), *notes)):
        raise TypeError(f"query {query}, notes {notes}")


def _reader(texts: tuple[str, ...], mild: float, share: int) -> Reader:
    return Reader(lambda: texts, _change, _use, mild=mild, share=share)


DEEPSPEED = _reader(_DEEPSPEED, 0.5, 60)
ACCELERATE = _reader(_ACCELERATE, 0.5, 35)
TORCHTITAN = _reader(_TORCHTITAN, 0.5, 35)
MEGATRON = _reader(_MEGATRON, 0.5, 25)
OTHERS = _reader(_OTHERS, 0.3, 35)

# --- job scripts --------------------------------------------------------------------------------

_SCRIPTS = {
    "polaris.pbs": "", "aurora.pbs": "auroragpt-7b", "vsc-5.sh": "", "perlmutter.sh": "",
    "frontier.sh": "llama-3.1-70b", "lumi.sh": "", "vista.sh": "gpt2", "leonardo.sh": "",
    "jean-zay.slurm": "llama-2-7b",
}  # fmt: skip
"""Scripts after the documentation of their sites, with the model where none is named."""
_BESIDE = ("run.sh", ".json", ".toml", ".yaml")
_Script = tuple[str, str, str]


@functools.cache
def _scripts() -> tuple[_Script, ...]:
    folder = ROOT / "tests" / "cli" / "scripts"
    return tuple((n, (folder / n).read_text("utf-8"), model) for n, model in _SCRIPTS.items())


def _beside() -> dict[str, bytes]:
    folder = ROOT / "tests" / "cli" / "scripts"
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name.endswith(_BESIDE)
    }


def _change_script(rng: random.Random, base: _Script, mild: float) -> _Script:
    name, text, model = base
    return name, edited(rng, text, mild, _NOISE), model


def _use_script(base: _Script, folder: Path) -> None:
    name, text, model = base
    place = folder / "job"
    if not place.exists():
        place.mkdir()
        for file, data in _beside().items():
            write(place, file, data)
    script = batch_script.read_batch_script(Path(write(place, name, text)))
    machine = batch_site.machine_of_script(script)
    files = batch_script.configuration_of(script, whole_folder=False)
    named = model or batch_site.model_of(files.model, files.shape, files.name)
    framework = files.framework or files.usual_framework
    if not framework:
        raise planner.PlannerError("no framework: give --framework")  # as the command does
    answer = check_job(script, files, machine, named, framework=None, layout={}, workload={})
    check_finite(answer.as_dict())
    if answer.estimate is not None:
        check_estimate(answer.estimate)


SCRIPTS = Reader(_scripts, _change_script, _use_script, mild=0.0, share=4)
