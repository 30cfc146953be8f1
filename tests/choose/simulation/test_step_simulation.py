"""A played step: sound by a check of its own, as long as its path, and as long as the estimate."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import planner
from planner.choose.simulation.step_simulation import MOST_PASSES, Simulation, simulate_scenario
from planner.choose.simulation.tasks import measured_factor, stage_work
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.activations import stage_activations
from planner.cost.schedules.bubble import schedule_by_name
from planner.cost.schedules.schedule import Task
from planner.cost.schedules.simulate import StageWork, simulate
from planner.cost.schedules.timeline import ASYNC_TRANSFER, Timeline
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.evidence.learning import learn_from_text
from tests.choose.simulation.layouts import legal_layouts

PIPED = Layout(
    pp=4, tp=4, dp=2, vpp=2, grad_accumulation=8, zero_stage=1, schedule="interleaved-1f1b"
)


def played(layout: Layout = PIPED, framework: str = "megatron-lm") -> Simulation:
    job = Workload(global_batch=layout.global_batch, sequence_length=4096)
    return planner.simulate("llama-3-8b", "polaris", layout, workload=job, framework=framework)


# --- sound ----------------------------------------------------------------------------------------


def check_dependencies(timeline: Timeline) -> None:
    """What every pass needs is there when it starts: read off the model's order, not the graph."""
    place = timeline.layout
    starts: dict[Task, float] = {}
    ends: dict[Task, float] = {}
    arrives: dict[Task, float] = {}
    for event in timeline.events:
        if event.kind == ASYNC_TRANSFER:
            arrives[event.task] = event.end_s
        elif event.in_passes and event.keeps_busy and event.kind != "pipeline_transfer":
            starts[event.task] = min(starts.get(event.task, np.inf), event.start_s)
            ends[event.task] = max(ends.get(event.task, 0.0), event.end_s)
    last = place.pp * place.vpp - 1
    where = {place.chunk(s, c): (s, c) for s in range(place.pp) for c in range(place.vpp)}
    together = {task: group for group in timeline.groups for task in group}
    for task, start in starts.items():
        at = place.chunk(task.stage, task.chunk)
        if task.kind == "weight_gradient":
            source = task._replace(kind="backward")
        elif task.kind == "forward":
            if at == 0:
                continue
            stage, chunk = where[at - 1]
            source = Task(stage, "forward", task.micro_batch, chunk)
        elif at == last:
            source = task._replace(kind="forward")
        else:
            stage, chunk = where[at + 1]
            source = Task(stage, "backward", task.micro_batch, chunk)
        if source in together.get(task, ()):
            continue
        ready = ends[source] if source.stage == task.stage else arrives.get(source, ends[source])
        assert start >= ready - 1e-9, (task, source)


def check_sound(timeline: Timeline) -> None:
    """No stage is busy twice at a time, no stream but that of transfers; every pass runs once."""
    check_dependencies(timeline)
    streams = defaultdict(list)
    for event in timeline.events:
        if event.keeps_busy:
            streams[event.stage, "busy"].append((event.start_s, event.end_s))
        if event.kind != ASYNC_TRANSFER and event.duration_s > 0:
            streams[event.stage, event.stream].append((event.start_s, event.end_s))
    for spans in streams.values():
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(sorted(spans)))
    passes = {e.task for e in timeline.events if e.kind == "forward"}
    assert len(passes) == timeline.num_micro_batches * timeline.num_stages * timeline.num_chunks
    for stage in range(timeline.num_stages):
        assert timeline.makespan_s >= timeline.busy_s(stage) - 1e-9


def check_path(timeline: Timeline) -> None:
    path = timeline.critical_path()
    assert sum(e.duration_s for e in path) == pytest.approx(timeline.makespan_s, rel=1e-9)
    assert path[0].start_s == 0
    assert path[-1].end_s == timeline.makespan_s
    for before, event in pairwise(path):
        assert event.start_s == pytest.approx(before.end_s, rel=1e-9, abs=1e-12)


def check_memory(step: Simulation) -> None:
    for held in step.memory:
        assert min(held.activations_bytes) >= 0
        assert held.activations_bytes[0] == held.activations_bytes[-1] == 0
        for activations in held.activations_bytes:
            assert held.states_bytes + activations <= held.peak_bytes
        # the estimate counts temporaries, buffers and what the driver holds besides
        assert held.peak_bytes <= held.estimated_bytes * (1 + 1e-9)


@pytest.mark.slow
def test_random_steps_are_sound() -> None:
    for scenario, layout in legal_layouts(150, seed=3, most_stages=4):
        step = simulate_scenario(scenario, layout)
        check_sound(step.timeline)
        check_path(step.timeline)
        check_memory(step)


@pytest.mark.parametrize("schedule", ["zero-bubble-v", "dualpipe-v", "1f1b", "gpipe"])
def test_steps_of_every_schedule_are_sound(schedule: str) -> None:
    chunks = 2 if schedule.endswith("-v") else 1
    layout = Layout(pp=3, vpp=chunks, dp=2, grad_accumulation=7, schedule=schedule, zero_stage=2)
    step = played(layout, "fsdp2")
    check_sound(step.timeline)
    check_path(step.timeline)
    check_memory(step)


@pytest.mark.parametrize("schedule", ["zero-bubble-v", "1f1b", "gpipe", "interleaved-1f1b"])
def test_activations_peak_as_estimated(schedule: str) -> None:
    chunks = 1 if schedule in ("1f1b", "gpipe") else 2
    layout = Layout(pp=4, vpp=chunks, dp=2, grad_accumulation=12, schedule=schedule)
    step = played(layout, "fsdp2")
    kept = stage_activations(Stages.of_pipeline(step.scenario, layout)).saved
    found = [max(held.activations_bytes) for held in step.memory]
    # which chunks hold most is told by layers: tokens that the embedding keeps are no layer
    assert found == pytest.approx(list(kept), rel=1e-5)


# --- beside the estimate --------------------------------------------------------------------------


def test_measured_runs_stretch_a_played_step_as_they_do_its_estimate() -> None:
    runs = (
        "row_id,system,gpu,n_gpus,model,seq_len,framework,dp,tp,pp,zero_stage,micro_batch,"
        "global_batch,step_time_s,precision\n"
        "one,Polaris,A100,16,Llama-3-8B,4096,Megatron-LM,4,4,1,1,1,64,9.5,bf16\n"
    )
    experience = learn_from_text(runs, "runs.csv").experience
    plain = played()
    learned = replace(plain.scenario, experience=experience)
    factor = measured_factor(learned, plain.estimate)
    known = estimate_layouts(learned, Layouts.of(plain.estimate.layout)).step_time_s
    assert factor == pytest.approx(float(known) / plain.estimate.step_time_s)
    assert factor > 1.05
    assert measured_factor(plain.scenario, plain.estimate) == 1.0


def bare(works: tuple[StageWork, ...]) -> list[StageWork]:
    """Passes alone: without transfers, and without what stands before and after them."""
    return [
        StageWork(tuple(replace(c, first_forward=(), last_backward=()) for c in work.chunks))
        for work in works
    ]


@pytest.mark.slow
def test_hundreds_of_layouts_last_as_long_as_estimated() -> None:
    """Equal without a pipeline; beside one, differences are those that the method explains."""
    found = legal_layouts(400, seed=1, most_stages=6)
    assert len({scenario.framework.name for scenario, _ in found}) > 10
    assert len({layout.schedule for _, layout in found}) == 6
    off = defaultdict(list)
    for scenario, layout in found:
        difference = simulate_scenario(scenario, layout).difference
        if layout.pp == 1:
            assert abs(difference) < 1e-9, layout
        off[layout.schedule].append(abs(difference))
    every = np.concatenate([off[name] for name in off if name != "none"])
    assert np.median(every) < 0.002
    assert np.mean(every < 0.02) > 0.85
    assert np.mean(every < 0.05) > 0.96


@pytest.mark.slow
def test_passes_of_unlike_stages_last_as_long_as_the_closed_form() -> None:
    """GPipe: exactly. 1F1B: exactly, but for ways that change stages in the middle, within 1 %
    where no stage is half as long again as the others."""
    exact = 0
    for scenario, layout in legal_layouts(200, seed=2):
        if layout.schedule not in ("1f1b", "gpipe"):
            continue
        works = bare(stage_work(scenario, layout))
        m, name = layout.grad_accumulation, layout.schedule
        length = simulate(works, m, name).makespan_s
        forward, back = (
            np.array([sum(s.seconds for s in spans if not s.hidden) for spans in parts])
            for parts in (
                [work.chunks[0].forward for work in works],
                [work.chunks[0].backward for work in works],
            )
        )
        back = back + [work.chunks[0].weights_s for work in works]
        closed = ways(name, forward, back, m)
        assert closed <= length * (1 + 1e-9)
        if name == "gpipe":
            assert closed == pytest.approx(length, rel=1e-9)
        elif np.max(forward + back) < 1.5 * np.median(forward + back):
            assert closed == pytest.approx(length, rel=0.01), layout
        exact += abs(closed / length - 1) < 1e-9
    assert exact > 75


def ways(name: str, forward: np.ndarray, back: np.ndarray, m: int) -> float:
    """The closed form over all stages [s]."""
    from planner.cost.schedules.schedule import Passes, PipelinePasses

    p = len(forward)
    total, none = forward + back, np.zeros(p)

    def before(each: np.ndarray) -> np.ndarray:
        return np.cumsum(each) - each

    around = PipelinePasses(
        np.arange(p),
        Passes(total, forward, none),
        Passes(before(total), before(forward), none),
        Passes(before(total[::-1])[::-1], before(forward[::-1])[::-1], none),
        Passes(np.sum(total), np.sum(forward), np.zeros(())),
    )
    length_s = schedule_by_name(name).length_s
    assert length_s is not None
    return float(length_s(*(np.asarray(n) for n in (p, 1, m)), around))


# --- what to widen --------------------------------------------------------------------------------


def test_a_slower_stage_lengthens_the_step_once_its_slack_is_used_up() -> None:
    works = list(stage_work(played().scenario, PIPED))

    def length(stage: int, factor: float) -> float:
        slower = replace(
            works[stage], chunks=tuple(chunk.scaled(factor) for chunk in works[stage].chunks)
        )
        changed = [*works[:stage], slower, *works[stage + 1 :]]
        return simulate(changed, 8, "interleaved-1f1b", 2).makespan_s

    step = played()
    on_path = step.critical_s("stage")
    for stage in range(4):
        longer = length(stage, 1.001) - length(stage, 1.0)
        assert longer >= -1e-12
        # an event on the longest path that takes longer lengthens it by as much at least
        part = sum(
            e.duration_s
            for e in step.critical_path
            if e.stage == stage
            and e.in_passes
            and e.kind not in (ASYNC_TRANSFER, "pipeline_transfer")
        )
        assert longer >= 0.001 * part * (1 - 1e-6)
        if stage not in on_path:
            assert longer < 0.001 * step.timeline.busy_s(stage)


def test_gains_are_those_of_a_step_with_the_faster_thing() -> None:
    step = played()
    gains = {one.name: one.gain_s for one in step.bottlenecks}
    faster = planner.load_machine("polaris", ("node.nic_bytes_per_s=27.5GB/s",))
    assert planner.load_machine("polaris").node.nic_bytes_per_s.value == 25e9  # type: ignore[union-attr]
    other = planner.simulate(
        "llama-3-8b", faster, PIPED, workload=step.scenario.workload, framework="megatron-lm"
    )
    assert gains["network interfaces"] == pytest.approx(step.makespan_s - other.makespan_s)
    path = step.critical_s("stage")
    for stage in range(4):
        assert gains[f"stage {stage}"] <= path.get(stage, 0.0) * (1 - 1 / 1.1) + 1e-12
    assert list(gains.values()) == sorted(gains.values(), reverse=True)


def test_wires_between_devices_are_widened_too() -> None:
    """Of a machine whose links are listed one by one, with a rate of their own each."""
    layout = Layout(dp=2, tp=8, zero_stage=1, grad_accumulation=4)
    step = planner.simulate("llama-3-8b", "frontier", layout, framework="megatron-lm")
    fields = planner.load_machine("frontier").model_dump()
    fabric = fields["node"]["fabric"]
    assert fabric["wires"]
    for wire in fabric["wires"]:
        wire["bytes_per_s"] *= 1.1
    for rate in ("pair", "device", "card", "socket"):
        if fabric[f"{rate}_bytes_per_s"]:
            fabric[f"{rate}_bytes_per_s"]["value"] *= 1.1
    machine = planner.Machine.described(fields)
    other = planner.simulate("llama-3-8b", machine, layout, framework="megatron-lm")
    [gain] = [one.gain_s for one in step.bottlenecks if one.name == "links inside the node"]
    assert gain == pytest.approx(step.makespan_s - other.makespan_s)
    assert gain > 0.001 * step.makespan_s


def test_what_cannot_be_played_says_what_can() -> None:
    layout = Layout(pp=4, grad_accumulation=MOST_PASSES, schedule="1f1b")
    with pytest.raises(LayoutError, match="use 7,500 micro-batches instead of 60,000"):
        played(layout)
    with pytest.raises(LayoutError, match="zero"):
        played(PIPED.replaced(zero_stage=3))
