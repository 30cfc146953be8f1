"""Whole trainings against the times that their authors published."""

from __future__ import annotations

import planner
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine
from planner.training.energy import node_power
from planner.training.resilience.start import start_up
from planner.training.whole_training import DAY_S, WholeTraining

__all__ = ["bloom", "llama_405b", "rows", "wordplay"]


def wordplay() -> WholeTraining:
    """100 steps of wordplay on a Polaris node, then its evaluation, generated text and checkpoint:
    github.com/saforem2/wordplay, configuration `shakespeare` (200 batches of each of two sets on
    the first rank, 256 tokens generated), eval_interval=100 as in its notes."""
    job = planner.Workload(sequence_length=1024, global_batch=256, tokens=100 * 256 * 1024)
    evaluation = planner.Evaluation(
        every_steps=100, sequences=2 * 200 * 64, ranks="first", generated_tokens=256
    )
    return planner.whole_training(
        "wordplay-85m-char",
        "polaris",
        planner.Layout(dp=4, micro_batch=64),
        workload=job,
        framework="ddp",
        training=planner.Training(
            evaluation=evaluation, checkpoints=planner.Checkpoints(every_steps=100, full=True)
        ),
    )


def _from_start(hundred: WholeTraining) -> float:
    """Estimated time from the start of wordplay's clock to step 310 [s]."""
    model, machine = planner.load_model("wordplay-85m-char"), planner.load_machine("polaris")
    job = planner.Workload(sequence_length=1024, global_batch=256)
    scenario = Scenario(model, machine, job, planner.load_framework("ddp"))
    layouts = Layouts.of(planner.Layout(dp=4, micro_batch=64))
    start = sum(float(s) for name, s in start_up(scenario, layouts).items() if name != "imports")
    steps = 3.1 * hundred.part_s("steps")
    return start + steps + 4 * hundred.part_s("evaluation") + 3 * hundred.part_s("checkpoints")


def bloom() -> WholeTraining:
    """BLOOM on 384 A100: bigscience-workshop/bigscience, train/tr11-176B-ml; 366 B tokens."""
    layout = planner.Layout(
        dp=8,
        tp=4,
        pp=12,
        zero_stage=1,
        micro_batch=2,
        grad_accumulation=128,
        recompute="full",
        schedule="1f1b",
    )
    job = planner.Workload(sequence_length=2048, global_batch=2048, tokens=366e9)
    return planner.whole_training(
        "bloom-176b", "jean-zay-a100", layout, workload=job, framework="megatron-deepspeed"
    )


def llama_405b() -> WholeTraining:
    """Llama 3.1 405B on 16,384 H100: arXiv:2407.21783, table 4 and section 3.3; 15.6 T tokens.

    Assumptions, because the paper does not state them: one layer per chunk, and 2,048 nodes like
    those of Eos with its network.
    """
    layout = planner.Layout(
        dp=128,
        tp=8,
        pp=16,
        vpp=8,
        schedule="interleaved-1f1b",
        zero_stage=1,
        micro_batch=1,
        grad_accumulation=16,
        sequence_parallel=True,
        embedding_slots=1,
        head_slots=1,
    )
    job = planner.Workload(sequence_length=8192, global_batch=2048, tokens=15.6e12)
    machine = load_machine("eos", ("num_nodes=2048",))
    return planner.whole_training(
        "llama-3.1-405b", machine, layout, workload=job, framework="megatron-lm"
    )


def rows() -> list[tuple[str, str, float, float, str]]:
    """Return rows: label, unit, measured, estimated, and source with whether a fit has seen it."""
    short, long, longest = wordplay(), bloom(), llama_405b()
    started = sum(short.part_s(name) for name in ("steps", "evaluation", "checkpoints"))
    energy = long.bill.energy_kwh
    assert energy is not None
    vsc = node_power(load_machine("vsc-4"))
    assert vsc is not None
    hours = longest.bill.node_hours.expected * 8
    return [
        (
            "wordplay on a node of Polaris: 100 steps, evaluation, text, checkpoint",
            "s",
            69.0,
            started,
            "its log of 2024-07-17, step 110 to 210 and 210 to 310: 68.7 to 69.1; the step's own "
            "row is in the table above, nothing was fitted on the rest",
        ),
        (
            "wordplay from its start to step 310, with four evaluations and three checkpoints",
            "s",
            255.1,
            _from_start(short),
            "the same log: 6.71 s of start-up before 07:42:19.99, step 310 at 07:46:28.37; imports "
            "are before its clock and left out; building the model was fitted, nothing else",
        ),
        (
            "BLOOM on 384 A100, first to last step",
            "days",
            1_082_990 / 384 / 24,
            long.time.expected / DAY_S,
            "arXiv:2211.02001, table 1: 1,082,990 device-hours; held out, its step too (its "
            "network was fitted on other runs of the project)",
        ),
        (
            "BLOOM, energy of the nodes",
            "MWh",
            (433_196 + 256_646) / 1000,
            energy.expected / 1000,
            "arXiv:2211.02001: 433,196 kWh dynamic and 256,646 kWh idle; held out",
        ),
        (
            "Llama 3.1 405B on 16,384 H100",
            "M device-hours",
            30.84,
            hours / 1e6,
            "model card of Llama 3.1: 30.84 M; interruptions per device are its own, chunks per "
            "stage are not stated (four instead of one layer a chunk: 31.0)",
        ),
        (
            "VSC-4, typical draw of a node",
            "W",
            460_000 / 790,
            vsc.watts,
            "derstandard.at/story/2000111760563: 460 kW typical, 600 kW peak; held out",
        ),
    ]
