"""Machines: the topology, every fact with its source."""

import streamlit as st

from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import controls
from planner.app.draw import draw, draw_table, escape, list_lines
from planner.describe.job_description import JobDescription
from planner.describe.machine import Machine
from planner.show.descriptions import efficiency_records, quantity_table
from planner.show.figures import node_topology as figures
from planner.units import counted

TITLE = "Machines"


def page(request: PageRequest) -> None:
    """Draw the job's machine in full."""
    st.title(TITLE, anchor=False)
    job = controls(request)
    if job is None:
        return
    machine = job.machine
    st.markdown(
        f"**{escape(machine.title)}**: {counted(machine.num_nodes.value, 'node')} with "
        f"{counted(machine.node.num_devices, 'device')} each ({escape(machine.device.name)})."
    )
    left, right = st.columns([3, 2])
    with left:
        st.header("One node and its way out", anchor=False)
        draw(figures.topology(machine), key="topology", caption=True)
    with right:
        _queues(machine)
        _doubts(machine)
    _facts(machine)


def elsewhere(_: PageJob, described: JobDescription) -> tuple[str, str]:
    """Return the command that prints the machine."""
    return f"planner show {described.machine}", ""


def _queues(machine: Machine) -> None:
    st.header("Queues", anchor=False)
    if not machine.scheduler.queues:
        st.caption("No queues are known.")
        return
    rows = [
        {
            "queue": q.name,
            "nodes": f"{q.min_nodes:,}-{q.max_nodes:,}",
            "limit": f"{q.max_hours:g} h{', by request' * q.on_request}",
            "note": q.note,
        }
        for q in machine.scheduler.queues
    ]
    draw_table(rows, key="queues", alt="Queues with their limits.")
    st.caption(escape(f"{machine.scheduler.kind}; {machine.scheduler.source}"))


def _doubts(machine: Machine) -> None:
    if machine.evidence:
        st.header("Measured runs behind it", anchor=False)
        st.markdown(escape(machine.evidence))
    if machine.notes:
        st.header("Doubts", anchor=False)
        list_lines(machine.notes)


def _facts(machine: Machine) -> None:
    st.header("Every number, with its source", anchor=False)
    records = [*quantity_table(machine).records, *efficiency_records(machine)]
    rows = [{**record, "source": _spelled(record["source"], machine)} for record in records]
    alt = "Every quantity of the machine with value, kind and source."
    draw_table(rows, height=420, key="facts", alt=alt)
    st.caption(
        "Any of them can be changed by its name, with a line such as "
        "`device.memory_bytes=80GB`, under *More about the job*, *Other numbers of the machine*."
    )


def _spelled(source: str, machine: Machine) -> str:
    """Return a source with its abbreviation spelled out."""
    long = machine.sources.get(source.split(":")[0])
    return f"{source} ({long})" if long else source
