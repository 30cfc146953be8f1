"""Collectives: what an operation does, and how long it takes by algorithm and size."""

import streamlit as st

from planner.app import address
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import choice_box
from planner.app.draw import draw, draw_table, escape, refuse
from planner.cost.network.collective_table import group_of
from planner.cost.network.topology import GroupView
from planner.describe.catalogue import load_machine
from planner.describe.job_description import JobDescription
from planner.describe.machine import Machine
from planner.errors import PlannerError
from planner.show.figures import collective_times as figures
from planner.show.reports.collective_report import group_text
from planner.units import format_bytes, format_seconds

TITLE = "Collectives"

_BYTES = {format_bytes(2**i).replace(".00", ""): 2**i for i in range(3, 33)}
_SIZES = list(_BYTES)
_SIZE = "64 MiB"
_MAX_RANKS, _MAX_STRIDE = 1_000_000, 100_000
_RANKS = 8
_STRIDE_HELP = (
    "Distance between neighbours of the group: 1 fills nodes, the number of devices per node "
    "takes one from each."
)


def read_query(reader: address.QueryReader, job: PageJob | None) -> None:
    """Read this page's own parameters; the machine is the job's."""
    operations = list(figures.OPERATIONS)
    reader.choice("op", operations, operations[0])
    devices = job.machine.num_devices if job else _RANKS
    reader.number("ranks", 2, _MAX_RANKS, max(min(_RANKS, devices), 2))
    reader.number("apart", 1, _MAX_STRIDE, 1)
    reader.choice("size", _SIZES, _SIZE)


def page(request: PageRequest) -> None:
    """Draw the controls (operation, machine, ranks, size), then the figures."""
    st.title(TITLE, anchor=False)
    machine = request.job.machine if request.job else load_machine("polaris")
    operation, ranks, stride, size = _controls()
    try:
        figures.ranks_of(machine, ranks, stride)
    except PlannerError as error:
        refuse(error)
        return
    st.header("What it does to each rank's data", anchor=False)
    draw(figures.data_picture(operation), key="picture", caption=True)
    view = group_of(machine, ranks, stride)
    st.caption(escape(f"The group spans {group_text(view)}."))
    left, right = st.columns(2)
    about = machine, operation, ranks, stride
    with left:
        st.header("Time against size", anchor=False)
        draw(figures.times(*about, size), key="times")
    with right:
        st.header("Bus bandwidth, as nccl-tests defines it", anchor=False)
        draw(figures.bandwidth(*about), key="bandwidth")
    _table(*about, view, size)


def elsewhere(_: PageJob, described: JobDescription) -> tuple[str, str]:
    """Return the command that prints the table."""
    state, start = st.session_state, f"planner collectives {described.machine}"
    group = f"--ranks {state['ranks']} --stride {state['apart']} --operation {state['op']}"
    return f"{start} {group} --size {state['size'].replace(' ', '')}", ""


def _controls() -> tuple[str, int, int, int]:
    columns = st.columns([2, 2, 1, 1, 2], vertical_alignment="bottom")
    operation = columns[0].selectbox("Operation", list(figures.OPERATIONS), key="op")
    choice_box(columns[1], "machine")
    ranks = columns[2].number_input("Ranks", 2, _MAX_RANKS, step=1, key="ranks")
    stride = columns[3].number_input(
        "Apart", 1, _MAX_STRIDE, step=1, key="apart", help=_STRIDE_HELP
    )
    size = columns[4].select_slider("Size of the full buffer", _SIZES, key="size")
    return operation, int(ranks), int(stride), _BYTES[size]


def _table(
    machine: Machine, operation: str, ranks: int, stride: int, view: GroupView, size: int
) -> None:
    column = f"time for {format_bytes(size)}"
    rows = [
        {"algorithm": name, column: format_seconds(float(timer(view, size)))}
        for name, timer in figures.algorithms_of(operation, view).items()
    ]
    draw_table(rows, key="algorithms", alt="Time by algorithm.")
    if row := figures.published(machine, operation, ranks, stride):
        st.caption(escape(f"Measured: {row.library}, {row.nodes} nodes; {row.source}."))
