"""Page 7: the ideas of parallel training in order, each with a figure computed on the spot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from planner.app import address
from planner.app.cached import kept_batch
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import controls
from planner.app.draw import draw, escape, refuse
from planner.choose.planning import estimate
from planner.choose.plots import SimulatedStep
from planner.choose.verdicts.decision_guide import apply_guide
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import schedule_by_name
from planner.cost.schedules.simulate import StageTime, simulate
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import SCHEDULES, Layout, Offload
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.show.figures import bars, collective_times, step_timeline
from planner.show.figures import rank_layout as layouts
from planner.units import counted, format_bytes

TITLE = "Learn"

_JOB, _EXAMPLE = "the job above", "a small example"
_SMALL, _LARGER, _MACHINE = "gpt2-xl", "llama-2-7b", "polaris"
_RANKS = 8
_DEVICES = 16


@dataclass(frozen=True, slots=True)
class _Subject:
    """Model, machine and workload that an idea's figures show."""

    model: Model
    machine: Machine
    workload: Workload

    def __str__(self) -> str:
        job = self.workload
        return (
            f"{self.model.name} on devices of {self.machine.name}, {job.global_batch:,} sequences "
            f"of {job.sequence_length:,} tokens per step."
        )

    @property
    def memory_bytes(self) -> float:
        """Memory of one device [B]."""
        return self.machine.device.memory_bytes.value


def read_query(reader: address.QueryReader, _: PageJob | None) -> None:
    """Read this page's own parameters."""
    reader.choice("idea", list(_IDEAS), next(iter(_IDEAS)))
    reader.choice("of", (_JOB, _EXAMPLE), _JOB)


def page(request: PageRequest) -> None:
    """Draw one tab per idea; only the open one is computed."""
    st.title(TITLE, anchor=False)
    job = controls(request)
    st.radio("Figures of", (_JOB, _EXAMPLE), key="of", horizontal=True)
    if st.session_state["of"] == _EXAMPLE:
        job = None
    tabs = st.tabs(list(_IDEAS), key="idea", on_change="rerun")
    for tab, draw_idea in zip(tabs, _IDEAS.values(), strict=True):
        if tab.open:
            with tab:
                try:
                    draw_idea(job)
                except PlannerError as error:
                    refuse(error)


def _compared(
    job: PageJob | None,
    example: _Subject,
    framework: str,
    layouts_of: Callable[[_Subject], dict[str, Layout]],
    order: tuple[str, str] = ("memory", "time"),
) -> None:
    """Draw memory and time of layouts for the job, else for the example."""

    def answers(about: _Subject) -> list[tuple[str, Estimate]]:
        batch = about.workload.global_batch
        sized = {name: kept_batch(each, batch) for name, each in layouts_of(about).items()}
        return [(n, _estimated(about, e.model_dump_json(), framework)) for n, e in sized.items()]

    subject, estimates = example, []
    if job is not None:
        try:
            subject = _Subject(job.model, job.machine, job.workload)
            estimates = answers(subject)
        except PlannerError as error:
            st.caption(escape(f"The job cannot be shown: {error.plain}. This is an example."))
            subject = example
    estimates = estimates or answers(example)
    st.caption(escape(str(subject)))
    for column, quantity in zip(st.columns(2), order, strict=True):
        with column:
            if quantity == "memory":
                draw(bars.memory_bars(estimates, subject.memory_bytes), key="idea_memory")
            else:
                draw(bars.time_bars(estimates), key="idea_time")


@st.cache_data(max_entries=256, show_spinner=False, hash_funcs={_Subject: repr})
def _estimated(subject: _Subject, layout: str, framework: str) -> Estimate:
    described = Layout.model_validate_json(layout)
    return estimate(
        subject.model, subject.machine, described, workload=subject.workload, framework=framework
    )


def _small(model: str, batch: int) -> _Subject:
    workload = Workload(sequence_length=1024, global_batch=batch)
    return _Subject(load_model(model), load_machine(_MACHINE), workload)


def _place(job: PageJob | None, ranks: int) -> Machine:
    """Return the job's machine if it has at least `ranks` devices, else the example's machine."""
    fits = job is not None and job.machine.num_devices >= ranks
    return job.machine if job is not None and fits else load_machine(_MACHINE)


def _data(job: PageJob | None) -> None:
    st.markdown(
        "Every device holds the **whole model** and works on its own part of the batch; gradients "
        "are summed over all devices at the end of each step. The step gets shorter, but the "
        "memory per device stays: what does not fit on one device does not fit on a thousand."
    )

    def replicas(subject: _Subject) -> dict[str, Layout]:
        degrees = [dp for dp in (1, 2, 4, 8, 16) if subject.workload.global_batch % dp == 0]
        return {counted(dp, "device"): Layout(dp=dp) for dp in degrees}

    _compared(job, _small(_SMALL, 64), "ddp", replicas, ("time", "memory"))


def _collectives(job: PageJob | None) -> None:
    st.markdown(
        "Devices talk in **collectives**: every rank of a group calls the same operation. A letter "
        "is where data came from, a number which part it is. All-reduce is a reduce-scatter "
        "followed by an all-gather: that is why ZeRO-2 sends no more than plain data parallelism."
    )
    operation = st.selectbox("Operation", list(collective_times.OPERATIONS), key="learn_op")
    draw(collective_times.data_picture(operation), key="learn_picture", caption=True)
    place = _place(job, _RANKS)
    st.caption(escape(f"{_RANKS} neighbouring devices of {place.name}."))
    draw(collective_times.times(place, operation, _RANKS, 1, 2.0**26), key="learn_times")


def _zero(job: PageJob | None) -> None:
    st.markdown(
        "Data parallelism keeps the same weights, gradients and optimizer states on every device. "
        "**ZeRO** keeps a part on each: stage 1 shards the optimizer states, stage 2 the gradients "
        "too, stage 3 (also called FSDP) the weights too, which are then gathered layer by layer. "
        "Activations are not sharded: that needs tensor or pipeline parallelism, or recompute."
    )
    dp = st.select_slider("Devices", (2, 4, 8, 16, 32), value=8, key="zero_dp")
    names = ("none", "ZeRO-1", "ZeRO-2", "ZeRO-3")
    stages = {name: Layout(dp=dp, zero_stage=stage) for stage, name in enumerate(names)}
    _compared(job, _small(_SMALL, 32), "deepspeed", lambda _: stages)


def _tensor(job: PageJob | None) -> None:
    st.markdown(
        "**Tensor parallelism** cuts every matrix product over a group of devices. Weights *and* "
        "activations shrink, but each layer waits for collectives of its activations. Inside a "
        "node these are quick; once the group leaves the node they dominate."
    )
    st.caption(f"{_DEVICES} devices; what tp does not use is data parallel.")
    degrees = {f"tp {tp}": Layout(tp=tp, dp=_DEVICES // tp) for tp in (1, 2, 4, 8, 16)}
    _compared(job, _small(_LARGER, 64), "megatron-lm", lambda _: degrees)


def _pipeline(_: PageJob | None) -> None:
    st.markdown(
        "**Pipeline parallelism** gives each device a run of layers and sends micro-batches "
        "through. While the pipeline fills and drains, stages idle: the *bubble*. More "
        "micro-batches make it smaller, interleaving divides it by the chunks, zero-bubble fills "
        "it with weight gradients; zero-bubble-v also lets the model turn at the last stage, so "
        "that the first one holds both of its ends."
    )
    columns = st.columns(4)
    schedule = columns[0].selectbox("Schedule", SCHEDULES[1:], index=1, key="pipe_kind")
    stages = columns[1].slider("Stages", 2, 8, 4, key="pipe_stages")
    groups = columns[2].slider("Micro-batches per stage", 1, 8, 2, key="pipe_groups")
    chunks = columns[3].slider("Chunks (interleaved)", 2, 4, 2, key="pipe_chunks")
    rules = schedule_by_name(schedule)
    number = chunks if rules.interleaves else 2 if rules.v_shaped else 1
    timeline = simulate([StageTime(1.0, 2.0, 0.0, 1.0)] * stages, stages * groups, schedule, number)
    draw(step_timeline.gantt(SimulatedStep.of_schedule(timeline), schedule), key="pipe_gantt")
    micro_batches = max(max(timeline.in_flight(stage)[1]) for stage in range(stages))
    st.caption(
        f"Forward 1 s, backward 2 s. The step takes {timeline.makespan_s:.2f} s, stages idle "
        f"{100 * timeline.idle_fraction:.1f} % of it; the fullest stage holds {micro_batches:g} "
        "micro-batches."
    )


def _three(job: PageJob | None) -> None:
    st.markdown(
        "**3D parallelism** multiplies the three: tensor inside the node, where links are fastest; "
        "pipeline between nodes, because it sends least; data parallel with what is left."
    )
    columns = st.columns(4)
    tp = columns[0].select_slider("Tensor", (1, 2, 4, 8), value=4, key="three_tp")
    pp = columns[1].select_slider("Pipeline", (1, 2, 4), value=2, key="three_pp")
    dp = columns[2].select_slider("Data", (1, 2, 4), value=2, key="three_dp")
    axis = columns[3].segmented_control("Colour", ("tp", "dp", "pp"), default="pp", key="three_by")
    layout = Layout(tp=tp, pp=pp, dp=dp)
    drawing = layouts.rank_map(layout, _place(job, layout.world), axis or "pp")
    draw(drawing, key="three_map", caption=True)


def _offload(job: PageJob | None) -> None:
    st.markdown(
        "**Offload** keeps optimizer states, or the weights too, in the host's memory or on NVMe. "
        "It buys memory with time: all of it passes through the link to the host in every step."
    )
    places: tuple[tuple[str, int, Offload], ...] = (
        ("ZeRO-3", 3, "none"),
        ("states on CPU", 2, "optimizer-cpu"),
        ("all on CPU", 3, "all-cpu"),
        ("all on NVMe", 3, "all-nvme"),
    )
    offloaded = {
        name: Layout(dp=4, zero_stage=stage, offload=where, recompute="full")
        for name, stage, where in places
    }
    st.caption("Four devices.")
    _compared(job, _small(_LARGER, 64), "deepspeed", lambda _: offloaded)


def _choosing(job: PageJob | None) -> None:
    st.markdown(
        "1. Fits one device? Plain data parallelism.\n"
        "2. Not quite? Recompute, a smaller micro-batch, ZeRO-1 or 2.\n"
        "3. Still not, and there is one device? ZeRO with offload to the host, then to NVMe.\n"
        "4. One node? PP, ZeRO-3 or TP; over PCIe PP before ZeRO before TP.\n"
        "5. Not even one layer? TP, or ZeRO-3 in tiles.\n"
        "6. Several nodes, fast network? ZeRO-3, or tensor in the node with pipeline and data.\n"
        "7. Several nodes, slow network? Data, pipeline and tensor parallel with ZeRO-1."
    )
    if job is None:
        example = _small(_LARGER, 64)
        job = PageJob(example.model, example.machine, workload=example.workload)
    scenario = Scenario(job.model, job.machine, job.workload, load_framework("fsdp2"))
    place = f"{counted(job.nodes, 'node')} of {job.machine.name}"
    advice = apply_guide([scenario], job.nodes)[1]
    st.info(escape(f"The guide for {job.model.name} on {place}: {advice}."))
    state = f"{job.model.name} has {format_bytes(16.0 * job.model.num_params)} of training state. "
    state += "The first page searches all layouts and says where the guide and the estimate differ."
    st.caption(escape(state))


_IDEAS: dict[str, Callable[[PageJob | None], None]] = {
    "Data parallel": _data,
    "Collectives": _collectives,
    "ZeRO": _zero,
    "Tensor": _tensor,
    "Pipeline": _pipeline,
    "3D": _three,
    "Offload": _offload,
    "Choosing": _choosing,
}
