"""Page 6: the ideas in order, each with a figure that the planner works out on the spot."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from planner.app.draw import draw
from planner.app.markdown import escape
from planner.choose.advice import guide
from planner.choose.anatomy import Played
from planner.choose.planning import estimate
from planner.cost.estimate import Estimate
from planner.cost.schedules.simulate import StageTime, simulate
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.layout import SCHEDULES, Layout, Offload
from planner.describe.question import Question
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.show.figures import collectives, compare, pipeline
from planner.show.figures import layout as layouts
from planner.units import format_bytes

__all__ = ["TITLE", "page"]

TITLE = "Learn"

_MODEL, _MACHINE, _BATCH = "gpt2-xl", "polaris", 64


def page() -> None:
    """One tab per idea; only the open one is worked out."""
    st.title(TITLE, anchor=False)
    st.caption(f"Figures are estimates for {_MODEL} on {_MACHINE}, unless they say otherwise.")
    tabs = st.tabs(list(_IDEAS), key="idea", on_change="rerun", bind="query-params")
    for tab, draw_idea in zip(tabs, _IDEAS.values(), strict=True):
        if tab.open:
            with tab:
                try:
                    draw_idea()
                except PlannerError as error:
                    st.error(escape(str(error)))


@st.cache_data(max_entries=128, show_spinner=False)
def _estimated(layout: str, framework: str, model: str = _MODEL, batch: int = _BATCH) -> Estimate:
    described = Layout.model_validate_json(layout)
    workload = Workload(sequence_length=1024, global_batch=batch)
    return estimate(model, _MACHINE, described, workload=workload, framework=framework)


def _of(layout: Layout, framework: str, model: str = _MODEL, batch: int = _BATCH) -> Estimate:
    return _estimated(layout.model_dump_json(), framework, model, batch)


def _limit() -> float:
    return load_machine(_MACHINE).device.memory_bytes.value


def _data() -> None:
    st.markdown(
        "Every device holds the **whole model** and works on its own part of the batch; gradients "
        "are summed over all devices at the end of each step. The step gets shorter, but the "
        "memory per device stays: what does not fit on one device does not fit on a thousand."
    )
    answers = []
    for dp in (1, 2, 4, 8, 16):
        layout = Layout(dp=dp, micro_batch=2, grad_accumulation=_BATCH // (2 * dp))
        answers.append((f"{dp} devices", _of(layout, "ddp")))
    left, right = st.columns(2)
    with left:
        draw(compare.time_bars(answers), key="dp_time")
    with right:
        draw(compare.memory_bars(answers, _limit()), key="dp_memory")


def _collectives() -> None:
    st.markdown(
        "Devices talk in **collectives**: every rank of a group calls the same operation. A letter "
        "is where data came from, a number which part it is. All-reduce is a reduce-scatter "
        "followed by an all-gather: that is why ZeRO-2 sends no more than plain data parallelism."
    )
    operation = st.selectbox("Operation", list(collectives.OPERATIONS), key="learn_op")
    drawing = collectives.data_picture(operation)
    draw(drawing, key="learn_picture")
    st.caption(escape(drawing.alt))
    draw(collectives.times(load_machine(_MACHINE), operation, 8, 1, 2.0**26), key="learn_times")


def _zero() -> None:
    st.markdown(
        "Data parallelism keeps the same weights, gradients and optimizer states on every device. "
        "**ZeRO** keeps a part on each: stage 1 shards the optimizer states, stage 2 the gradients "
        "too, stage 3 (also called FSDP) the weights too, which are then gathered layer by layer. "
        "Activations are not sharded: that needs tensor or pipeline parallelism, or recompute."
    )
    dp = st.select_slider("Devices", (2, 4, 8, 16, 32), value=8, key="zero_dp")
    answers = [
        (
            f"ZeRO-{stage}" if stage else "none",
            _of(
                Layout(dp=dp, zero_stage=stage, micro_batch=2, grad_accumulation=32 // dp),
                "deepspeed",
            ),
        )
        for stage in range(4)
    ]
    left, right = st.columns(2)
    with left:
        draw(compare.memory_bars(answers, _limit()), key="zero_memory")
    with right:
        draw(compare.time_bars(answers), key="zero_time")


def _tensor() -> None:
    st.markdown(
        "**Tensor parallelism** cuts every matrix product over a group of devices. Weights *and* "
        "activations shrink, but each layer waits for collectives of its activations. Inside a "
        "node these are quick; once the group leaves the node (beyond 4 here) they dominate."
    )
    answers = [
        (
            f"tp {tp}",
            _of(
                Layout(tp=tp, dp=16 // tp, micro_batch=1, grad_accumulation=_BATCH * tp // 16),
                "megatron-lm",
                "llama-2-7b",
            ),
        )
        for tp in (1, 2, 4, 8, 16)
    ]
    st.caption("llama-2-7b on 16 devices; what tp does not use is data parallel.")
    left, right = st.columns(2)
    with left:
        draw(compare.memory_bars(answers, _limit()), key="tp_memory")
    with right:
        draw(compare.time_bars(answers), key="tp_time")


def _pipeline() -> None:
    st.markdown(
        "**Pipeline parallelism** gives each device a run of layers and sends micro-batches "
        "through. While the pipeline fills and drains, stages idle: the *bubble*. More "
        "micro-batches make it smaller, interleaving divides it by the chunks, zero-bubble fills "
        "it with weight gradients."
    )
    columns = st.columns(4)
    schedule = columns[0].selectbox("Schedule", SCHEDULES[1:], index=1, key="pipe_kind")
    stages = columns[1].slider("Stages", 2, 8, 4, key="pipe_stages")
    groups = columns[2].slider("Micro-batches per stage", 1, 8, 2, key="pipe_groups")
    chunks = columns[3].slider("Chunks (interleaved)", 2, 4, 2, key="pipe_chunks")
    inside = schedule == "interleaved-1f1b"
    timeline = simulate(
        [StageTime(1.0, 2.0, 0.0, 1.0)] * stages, stages * groups, schedule, chunks if inside else 1
    )
    draw(pipeline.gantt(Played.whole(timeline), schedule), key="pipe_gantt")
    held = max(max(timeline.in_flight(stage)[1]) for stage in range(stages))
    st.caption(
        f"Forward 1 s, backward 2 s. The step takes {timeline.makespan_s:.2f} s, stages idle "
        f"{100 * timeline.idle_fraction:.1f} % of it; the fullest stage holds {held:g} "
        "micro-batches."
    )


def _three() -> None:
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
    drawing = layouts.rank_map(layout, load_machine(_MACHINE), axis or "pp")
    draw(drawing, key="three_map")
    st.caption(escape(drawing.alt))


def _offload() -> None:
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
    answers = [
        (
            name,
            _of(
                Layout(
                    dp=4,
                    zero_stage=stage,
                    offload=where,
                    micro_batch=2,
                    grad_accumulation=8,
                    recompute="full",
                ),
                "deepspeed",
                "llama-2-7b",
            ),
        )
        for name, stage, where in places
    ]
    st.caption("llama-2-7b on one node of 4 devices.")
    left, right = st.columns(2)
    with left:
        draw(compare.memory_bars(answers, _limit()), key="off_memory")
    with right:
        draw(compare.time_bars(answers), key="off_time")


def _choosing() -> None:
    st.markdown(
        "1. Fits one device? Plain data parallelism.\n"
        "2. Not quite? Recompute, a smaller micro-batch, ZeRO-1 or 2.\n"
        "3. Still not, on one node? ZeRO-3, tensor parallelism in the node, then offload.\n"
        "4. Several nodes, fast network? ZeRO-3, or tensor in the node with pipeline and data.\n"
        "5. Several nodes, slow network? Data, pipeline and tensor parallel with ZeRO-1."
    )
    columns = st.columns(3)
    models, machines = names("model"), names("machine")
    model = columns[0].selectbox(
        "Model", models, index=models.index("llama-3-8b"), key="guide_model"
    )
    place = columns[1].selectbox(
        "Machine", machines, index=machines.index(_MACHINE), key="guide_on"
    )
    nodes = int(columns[2].number_input("Nodes", 1, 10_000, 4, key="guide_nodes"))
    question = Question(load_model(model), load_machine(place), Workload(), load_framework("fsdp2"))
    st.info(escape(f"The guide: {guide(question, nodes)[1]}."))
    st.caption(
        escape(
            f"{model} has {format_bytes(16.0 * question.model.num_params)} of training state. The "
            "first page searches all layouts and says where the guide and the estimate differ."
        )
    )


_IDEAS: dict[str, Callable[[], None]] = {
    "Data parallel": _data,
    "Collectives": _collectives,
    "ZeRO": _zero,
    "Tensor": _tensor,
    "Pipeline": _pipeline,
    "3D": _three,
    "Offload": _offload,
    "Choosing": _choosing,
}
