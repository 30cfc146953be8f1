"""Logs: every format's step line, warm-up, and files that are no logs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.evidence.logs.log_files import read_log
from planner.evidence.logs.steps import LogError, steady
from tests.evidence.logs.texts import read_log_text

GIB = 2**30

WORDPLAY = """\
[2024-07-17 07:42:15][INFO][dist:725] - [0/4] Using device='cuda' with backend='DDP' + 'nccl'
[2024-07-17 07:42:15][INFO][configs:442] - Tokens per iteration: 262,144
[2024-07-17 07:42:17][INFO][trainer:264] - Model size: num_params=85003776
"""
WORDPLAY_STEP = (
    "[2024-07-17 07:43:{i:02}][INFO][trainer:885] - step={i}0 loss=2.5 dt={dt} dtf=0.005 "
    "dtb=0.011 sps=14.1 sps_per_gpu=3.5 tps={tps} tps_per_gpu={each} mfu=46.0 "
    "train_loss=4.1 val_loss=4.1\n"
)
MEGATRON = (
    " [2025-08-01 07:19:{i:02}] iteration {i:8d}/    5000 | consumed samples:          128 | "
    "elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 118.7 | "
    "learning rate: 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 | "
    "loss scale: 1.0 | grad norm: 26.203 | number of skipped iterations:   0 |\n"
)
MEGATRON_MEMORY = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 4806.14 | "
    "max allocated: 7116.5 | reserved: 7724.0 | max reserved: 7724.0\n"
)
ALCF = (
    "[2024-06-21 10:50:42][INFO][training:1609] -  iteration=       {i}/  317892 | "
    "consumed_samples=         768 | elapsed_time_per_iteration_ms={ms:.1f} | "
    "learning_rate=1e-05 | global_batch_size=  768 | lm loss=11.1 | "
    "tokens_per_gpu_per_second_tgs=1146.7 | \n"
)
DEEPSPEED = (
    "[2023-11-07 01:55:23,714] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step={i}, "
    "RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec={rate}, MemAllocated=4.32GB, "
    "MaxMemAllocated=38.49GB\n"
)
DEEPSPEED_PHASES = (
    "[2023-11-07 01:55:23,714] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 250.0 | "
    "bwd: 700.0 | bwd_inner: 600.0 | bwd_allreduce: 100.0 | step: 50.0\n"
)
TORCHTITAN = (
    "[rank0]:[titan] 2025-01-01 10:00:00,000 - root - INFO - \x1b[31mstep: {i:2}  \x1b[32mloss:  "
    "7.1234  \x1b[38;2;180;60;0mgrad_norm:  1.2  \x1b[38;2;54;234;195mmemory: 47.84GiB(50.37%)  "
    "\x1b[34mtps: {tps:,}  \x1b[36mtflops: 493.11  \x1b[35mmfu: 49.84%\x1b[39m\n"
)
NANOTRON = (
    "08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]:  Memory usage: 64.26MiB. Peak allocated 66.25MiB."
    " Peak reserved: 496.00MiB\n"
    "08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: {i} / 15 | consumed_tokens: 1.02K | "
    "elapsed_time_per_iteration_ms: {ms} | tokens_per_sec: 43.2K | tokens_per_sec_per_gpu: 5.4K | "
    "global_batch_size: 1.02K | lm_loss: 5.29 | lr: 0.0003 | model_tflops_per_gpu: 152 | "
    "hardware_tflops_per_gpu: 152 | grad_norm: 3.29\n"
)


def _many(line: str, name: str, values: list[float], **more: object) -> str:
    return "".join(line.format(i=i, **{name: v}, **more) for i, v in enumerate(values, 1))


def test_wordplay() -> None:
    steps = "".join(
        WORDPLAY_STEP.format(i=i, dt=dt, tps=262144 / dt, each=65536 / dt)
        for i, dt in enumerate((0.282, 0.306, 0.285, 0.285, 0.286, 0.284, 0.285, 0.286), 1)
    )
    log = read_log_text(WORDPLAY + steps)
    assert (log.format, log.framework, log.num_steps, log.num_warmup) == ("wordplay", "ddp", 8, 2)
    assert log.median("time_s") == pytest.approx(0.285)
    assert log.median("tokens_per_s_per_device") == pytest.approx(230e3, rel=1e-3)
    assert log.median("mfu") == pytest.approx(0.46)
    assert log.facts == {"tokens_per_step": 262144, "num_params": 85003776, "world": 4}


def test_nanogpt_ignores_evaluations_and_unset_mfu() -> None:
    lines = [
        "tokens per iteration will be: 491,520",
        "number of parameters: 123.59M",
        "step 0: train loss 10.9, val loss 10.9",
        "iter 0: loss 10.9886, time 25000.00ms, mfu -100.00%",
    ]
    lines += [f"iter {10 * i}: loss 2.1, time {285 + i % 3}.00ms, mfu 45.90%" for i in range(1, 9)]
    log = read_log_text("\n".join(lines))
    assert log.format == "nanogpt"
    assert log.num_warmup == 1
    assert log.median("time_s") == pytest.approx(0.286)
    assert log.fact("tokens_per_step") == 491520


def test_megatron_time_throughput_and_memory() -> None:
    text = MEGATRON_MEMORY + _many(MEGATRON, "ms", [19138.8, 12936, 12978, 12950, 12960, 12940])
    log = read_log_text(text)
    assert log.format == "megatron"
    assert log.num_warmup == 1
    assert log.median("time_s") == pytest.approx(12.95)
    assert log.median("flop_per_s_per_device") == pytest.approx(118.7e12)
    assert log.fact("global_batch") == 128
    assert log.fact("allocated_bytes") == 7116.5 * 2**20
    assert log.fact("reserved_bytes") == 7724 * 2**20


def test_megatron_deepspeed_prefers_the_iteration_line() -> None:
    text = "".join(
        DEEPSPEED.format(i=i, rate=60.0) + ALCF.format(i=i, ms=ms)
        for i, ms in enumerate((108893.2, 16030.6, 14287.5, 14290.0, 14280.0, 14285.0), 1)
    )
    log = read_log_text(text)
    assert log.format == "megatron"
    assert log.median("time_s") == pytest.approx(14.286, rel=1e-3)
    assert log.median("tokens_per_s_per_device") == pytest.approx(1146.7)
    assert log.fact("global_batch") == 768
    assert log.fact("allocated_bytes") == pytest.approx(38.49 * GIB)


def test_deepspeed_rates_and_phases() -> None:
    text = "".join(
        DEEPSPEED.format(i=10 * i, rate=rate) + DEEPSPEED_PHASES
        for i, rate in enumerate((12.0, 25.7, 25.8, 25.6, 25.7, 25.7), 1)
    )
    log = read_log_text(text)
    assert (log.format, log.num_steps, log.num_warmup) == ("deepspeed", 6, 1)
    assert log.median("samples_per_s") == pytest.approx(25.7)
    assert log.fact("backward_s") == pytest.approx(0.7)
    assert log.fact("optimizer_s") == pytest.approx(0.05)


def test_a_phase_that_no_line_states_is_no_figure() -> None:
    phases = DEEPSPEED_PHASES.replace("bwd_allreduce: 100.0 | ", "")
    text = "".join(DEEPSPEED.format(i=i, rate=25.0) + phases for i in range(1, 7))
    log = read_log_text(text)
    assert log.fact("backward_s") == pytest.approx(0.7)
    assert "backward_reduce_s" not in log.facts


def test_deepspeed_pipeline_engine() -> None:
    lines = [
        f"steps: {10 * i} loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706"
        for i in range(1, 8)
    ]
    log = read_log_text("\n".join(lines))
    assert (log.format, log.median("time_s")) == ("deepspeed", 0.936)
    assert log.median("samples_per_s") == 136.706


def test_torchtitan_with_colours() -> None:
    text = _many(TORCHTITAN, "tps", [812, 5762, 5770, 5755, 5760, 5765])
    log = read_log_text(text)
    assert (log.format, log.num_warmup) == ("torchtitan", 1)
    assert log.median("tokens_per_s_per_device") == 5762
    assert log.median("mfu") == pytest.approx(0.4984)
    assert log.median("reserved_bytes") == pytest.approx(47.84 * GIB)


def test_nanotron_prefixes() -> None:
    log = read_log_text(_many(NANOTRON, "ms", ["9.1K", "1.21K", "1.2K", "1.2K", "1.21K", "1.2K"]))
    assert (log.format, log.num_warmup) == ("nanotron", 1)
    assert log.median("time_s") == pytest.approx(1.2)
    assert log.median("tokens_per_s_per_device") == pytest.approx(5400)
    assert log.median("flop_per_s_per_device") == pytest.approx(152e12)
    assert log.fact("global_batch") == pytest.approx(1020)
    assert log.fact("allocated_bytes") == pytest.approx(66.25 * 2**20)


@pytest.mark.parametrize("quote", ["", "'"])
def test_huggingface_summary(quote: str) -> None:
    text = (
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
        "100%|#####| 690/690 [31:31<00:00,  2.27s/it]\r"
        f"{{'train_runtime': {quote}1891.9{quote}, 'train_samples_per_second': {quote}5.8{quote}, "
        f"'train_steps_per_second': {quote}0.365{quote}, 'train_loss': 0.31, 'epoch': 3.0}}\n"
    )
    log = read_log_text(text)
    assert log.format == "huggingface"
    assert log.median("time_s") == pytest.approx(1 / 0.365)
    assert log.fact("global_batch") == 64
    assert any("mean over the whole run" in note for note in log.notes)


# --- warm-up and noise -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durations", "dropped"),
    [
        ([1.0, 1.0], 0),
        ([9.0, 1.0, 1.0], 1),
        ([1.0] * 10, 1),
        ([30.0, 5.0, 2.0, 1.0, 1.0, 1.01, 0.99, 1.0, 1.0, 1.0], 3),
        ([0.5, 1.0, 1.0, 1.0, 1.0, 1.0], 1),
        ([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], 2),
    ],
)
def test_warmup(durations: list[float], dropped: int) -> None:
    assert steady(np.array(durations)) == dropped


def test_late_slow_steps_are_counted_not_dropped() -> None:
    values = [500.0] + [100.0] * 20 + [900.0] + [100.0] * 20
    log = read_log_text(_many(MEGATRON, "ms", values))
    assert (log.num_warmup, log.num_slow) == (1, 1)
    assert log.median("time_s") == pytest.approx(0.1)


def test_nan_steps_are_left_out_and_said() -> None:
    lines = [f"step={i} loss=nan dt={'nan' if i % 3 == 0 else 0.5} tps=100" for i in range(1, 13)]
    log = read_log_text("\n".join(lines))
    assert log.num_steps == 8
    assert math.isclose(log.median("time_s") or 0, 0.5)
    assert any("without a finite time" in note for note in log.notes)


# --- files that are no logs ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02" * 100, "is binary"),
        (b"\x1f\x8b\x08\x08rest", "is binary"),
        (b"hello world\n" * 5, "no step line of a known format"),
        (b"\xff\xfe\xfa" * 50, "no step line"),
        (b"step=1 loss=nan dt=nan\nstep=2 loss=nan dt=0\n", "none with a finite, positive"),
        (b"step=1 loss=1 dt=-4\nstep=2 loss=1 dt=inf\n", "none with a finite, positive"),
        (b"x" * 3_000_000, "no step line"),
    ],
)
def test_refuses_what_is_no_log(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(content)
    with pytest.raises(LogError, match=words) as caught:
        read_log(path)
    assert len(str(caught.value)) < 400


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="is not a file"):
        read_log(tmp_path)
    with pytest.raises(LogError, match="cannot read"):
        read_log(tmp_path / "absent.log")


def test_refuses_a_huge_file_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    with path.open("wb") as file:
        file.truncate(3_000_000_000)
    with pytest.raises(PlannerError, match=r"3\.0 GB"):
        read_log(path)


def test_a_long_line_does_not_hide_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    steps = _many(MEGATRON, "ms", [100.0] * 6)
    path.write_text("[" + "1, " * 1_000_000 + "]\n" + steps)
    assert read_log(path).median("time_s") == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("line", "name", "time_s", "rate"),
    [
        (  # huggingface/nanotron since March 2025
            "[INFO|DP=0]: iteration: {i} / 15 | consumed_tokens: 1.02K | time_per_iteration_ms: "
            "1.21K | tokens_per_sec: 43.2K | tokens_per_sec_per_gpu: 5.4K | lm_loss: 5.29",
            "nanotron",
            1.21,
            5400,
        ),
        (
            "Training epoch 0, iteration {i}/249 | lr: 1.9e-06 | global_batch_size: 8 | "
            "global_step: {i} | reduced_train_loss: 1.3 | train_step_timing in s: 2.505",
            "nemo",
            2.505,
            None,
        ),
        (
            "Epoch 0: : {i}%|#| {i}/100 [10:48<00:00, reduced_train_loss=0.01, global_step={i}.0, "
            "train_step_timing in s=3.130]",
            "nemo",
            3.13,
            None,
        ),
        ("\t Train throughput/batches_per_sec: 0.4000", "composer", 2.5, None),
        (
            "Epoch 1 | iter {j} step {i} | loss train: 9.1, val: n/a | iter time: 125.00 ms (step)"
            " remaining time: 1 day",
            "litgpt",
            1.0,
            None,
        ),
        (
            "Step {i} | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:4096.5 peak_memory_active:17.2 "
            "peak_memory_alloc:17.25 peak_memory_reserved:19.5",
            "torchtune",
            None,
            4096.5,
        ),
        (
            "{{'loss': 1.2, 'grad_norm': 0.5, 'tokens_per_second_per_gpu': 950.5, 'epoch': 0.1}}",
            "axolotl",
            None,
            950.5,
        ),
        (" 10%|#         | {i}/100 [00:20<03:00,  2.00s/it]", "progress", 2.0, None),
        (" 10%|#         | {i}/100 [00:20<03:00,  4.00it/s, loss=3]", "progress", 0.25, None),
    ],
)
def test_step_lines_of_other_programs(
    line: str, name: str, time_s: float | None, rate: float | None
) -> None:
    log = read_log_text("\n".join(line.format(i=i, j=8 * i) for i in range(1, 9)))
    assert (log.format, log.num_steps) == (name, 8)
    assert log.median("time_s") == (time_s and pytest.approx(time_s))
    assert log.median("tokens_per_s_per_device") == rate


def test_a_long_line_of_almost_steps_takes_no_time_to_speak_of(tmp_path: Path) -> None:
    # patterns that look ahead took the square of the length
    path = tmp_path / "junk.log"
    path.write_text(("step=1 loss=" * 600_000) + "\n" + "iteration 1/ elapsed " * 300_000)
    with pytest.raises(LogError, match="no step line"):
        read_log(path)


def test_a_log_may_be_a_text() -> None:
    lines = [
        f"iter {i}: loss 2.1, time {t}ms, mfu 45.9%"
        for i, t in enumerate((9000, 290, 285, 284, 286))
    ]
    assert read_log_text("\n".join(lines)).median("time_s") == pytest.approx(0.2855)


def test_llm_c_and_nanochat() -> None:
    """train_gpt2.cu and scripts/base_train.py print these lines."""
    c = "step {:4d}/18865 | loss 7.03 (+nanz)| norm 2.1 (+nanz)| lr 1e-6 | {} ms | 38.5% bf16 MFU"
    log = read_log_text("\n".join(f"{c.format(i, 250.5)} | 209450 tok/s" for i in range(1, 8)))
    assert (log.format, log.median("time_s"), log.median("mfu")) == ("llm.c", 0.2505, 0.385)
    chat = "step {:05d}/21400 (0.05%) | loss: 9.1 | lrm: 1.00 | dt: 1041.03ms | tok/sec: 503,621"
    log = read_log_text("\n".join(f"{chat.format(i)} | bf16_mfu: 47.30" for i in range(7)))
    assert (log.format, log.median("time_s")) == ("nanochat", pytest.approx(1.04103))
    assert log.median("tokens_per_s") == 503621
    with pytest.raises(LogError, match="only the first iteration"):
        read_log_text(chat.format(0))
