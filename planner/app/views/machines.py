"""Page 4: machines: the topology, every fact with its source, one job on two machines."""

from __future__ import annotations

from collections import Counter
from typing import Any

import streamlit as st

from planner.app import address, cached
from planner.app.controls.page_job import PageJob, PageRequest, move_job
from planner.app.controls.panel import controls
from planner.app.draw import draw, draw_table, escape, list_lines
from planner.choose.plan import Plan
from planner.choose.verdicts.answer_lines import closest_strategy, training_cost
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_machine, names
from planner.describe.machine import Machine
from planner.errors import PlannerError
from planner.show.descriptions import format_quantity, quantities
from planner.show.figures import bars
from planner.show.figures import node_topology as figures
from planner.units import counted, format_amount, format_bytes, format_seconds

TITLE = "Machines"

_SECOND_MACHINES = ("aurora", "polaris")


def read_query(reader: address.QueryReader, job: PageJob | None) -> None:
    """Read this page's own parameters."""
    job_machine = job.machine.name if job else ""
    usual = next(name for name in _SECOND_MACHINES if name != job_machine)
    reader.choice("with", names("machine"), usual)


def page(request: PageRequest) -> None:
    """Draw the job's machine in full, then a comparison with another machine for the job."""
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
    _compare(job)


def _queues(machine: Machine) -> None:
    st.header("Queues", anchor=False)
    if not machine.scheduler.queues:
        st.caption("No queues are known.")
        return
    rows = [
        {
            "queue": q.name,
            "nodes": f"{q.min_nodes:,}-{q.max_nodes:,}",
            "limit [h]": q.max_hours,
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
    rows = [
        {
            "quantity": key,
            "value": format_quantity(key, q.value),
            "kind": q.kind,
            "source": _spelled(q.source, machine),
        }
        for key, q in quantities(machine)
    ]
    for network in machine.all_networks:
        curve = network.efficiency
        points = ", ".join(
            f"{f:.2f} at {n}" for n, f in zip(curve.num_nodes, curve.fraction, strict=True)
        )
        rows.append(
            {
                "quantity": f"network efficiency by nodes {network.name}".rstrip(),
                "value": points,
                "kind": curve.kind,
                "source": _spelled(curve.source, machine),
            }
        )
    alt = "Every quantity of the machine with value, kind and source."
    draw_table(rows, height=420, key="facts", alt=alt)
    counts = Counter(row["kind"] for row in rows)
    kinds = ("datasheet", "measured", "calibrated", "assumed")
    st.caption(
        ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind])
        + ". Any of them can be changed by its name, with a line such as "
        "`device.memory_bytes=80GB`, under *More about the job*, *Other numbers of the machine*."
    )


def _spelled(source: str, machine: Machine) -> str:
    """Return a source with its abbreviation spelled out."""
    long = machine.sources.get(source.split(":")[0])
    return f"{source} ({long})" if long else source


def _compare(job: PageJob) -> None:
    st.header("The same job on another machine", anchor=False)
    about = "It gets as many whole nodes as the job's devices need."
    second_name = st.selectbox("Compare with", names("machine"), key="with", help=about)
    second_job, message = move_job(job, load_machine(second_name))
    if message:
        st.caption(escape(message))
    plans = []
    for compared_job in (job, second_job):
        try:
            plan = cached.plan_of(compared_job)
        except PlannerError as error:
            st.warning(escape(f"{compared_job.machine.name}: {error.plain}"))
            continue
        if plan.recommended is None:
            st.warning(escape(f"{plan.machine}: does not fit. {closest_strategy(plan)}"))
        else:
            plans.append((plan, plan.recommended))
    if plans:
        draw(bars.time_bars([(plan.machine, best) for plan, best in plans]), key="compare")
        rows = [_compared(plan, best) for plan, best in plans]
        draw_table(rows, key="compare_table", alt="The job's recommended layout on each machine.")


def _compared(plan: Plan, best: Estimate) -> dict[str, Any]:
    return {
        "machine": plan.machine,
        "nodes": plan.nodes,
        "devices": plan.num_devices,
        "layout": f"{best.layout} [{best.framework}]",
        "step": format_seconds(best.step_time_s),
        "tokens/s": format_amount(best.tokens_per_s),
        "MFU [%]": round(100 * best.mfu, 1),
        "memory": format_bytes(best.memory_bytes["total"]),
        "node-hours": f"{format_amount(plan.node_hours(best))} for {training_cost(plan, best)[0]}",
    }
