"""Compare with the run's own configuration files instead of a layout."""

from __future__ import annotations

from planner.describe.configurations.configuration import joined
from planner.describe.configurations.reading import read_configuration_text
from planner.evidence.logs.log_job import read_job
from tests.evidence.logs.texts import read_log_text

LOG = "".join(
    f"[default0]:iteration: {step} / 100 | consumed_tokens: {step * 131072} | "
    "elapsed_time_per_iteration_ms: 900 | tokens_per_sec: 145.6K | "
    "global_batch_size: 32 | lm_loss: 9\n"
    for step in range(1, 9)
)


def test_a_run_and_its_own_files() -> None:
    launch = read_configuration_text(
        "distributed_type: FSDP\nnum_processes: 16\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}",
        "acc.yaml",
    )
    log = read_log_text(LOG, "run.log")
    job = read_job(log, "polaris", launch, model="llama-3.2-1b", sequence_length=4096)
    # 16 ranks and groups of a node from the file, 32 sequences from the log
    assert (job.layout.dp, job.layout.dp_shard, job.layout.global_batch) == (16, 4, 32)
    assert job.scenario.framework.name == "accelerate"
    trainer = read_configuration_text("per_device_train_batch_size: 2\nbf16: true", "t.yaml")
    both = read_job(
        log, "polaris", joined([launch, trainer]), model="llama-3.2-1b", sequence_length=4096
    )
    assert (both.layout.micro_batch, both.layout.grad_accumulation) == (2, 1)
