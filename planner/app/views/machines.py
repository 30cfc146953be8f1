"""Page 3: machines: the topology, every fact with its source, two machines for one job."""

from __future__ import annotations

from typing import Any

import streamlit as st

from planner.app import cached
from planner.app.controls import Job
from planner.app.draw import draw
from planner.app.markdown import escape
from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.machine import Machine
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.show import words
from planner.show.figures import compare
from planner.show.figures import machines as figures
from planner.show.report import format_quantity, quantities
from planner.units import format_bytes, format_seconds

__all__ = ["TITLE", "page"]

TITLE = "Machines"

_KEPT: dict[str, Any] = {"bind": "query-params", "persist_state": "session"}


def page() -> None:
    """One machine in full, then two for the same job."""
    st.title(TITLE, anchor=False)
    every = names("machine")
    columns = st.columns(2)
    name = columns[0].selectbox(
        "Machine",
        every,
        index=every.index("polaris"),
        key="show",
        bind="query-params",
        persist_state="session",
    )
    other = columns[1].selectbox(
        "Compare with",
        every,
        index=every.index("aurora"),
        key="with",
        bind="query-params",
        persist_state="session",
    )
    machine = load_machine(name)
    st.markdown(
        f"**{escape(machine.title)}**: {machine.num_nodes.value:,.0f} nodes with "
        f"{machine.node.num_devices} devices each ({escape(machine.device.name)})."
    )
    left, right = st.columns([3, 2])
    with left:
        st.subheader("One node and its way out", anchor=False)
        drawing = figures.topology(machine)
        draw(drawing, key="topology")
        st.caption(escape(drawing.alt))
    with right:
        _queues(machine)
        _doubts(machine)
    _facts(machine)
    _compare(machine, load_machine(other))


def _queues(machine: Machine) -> None:
    st.subheader("Queues", anchor=False)
    if not machine.scheduler.queues:
        st.caption("No queues are known.")
        return
    st.dataframe(
        [
            {
                "queue": q.name,
                "nodes": f"{q.min_nodes:,}-{q.max_nodes:,}",
                "limit [h]": q.max_hours,
                "note": q.note,
            }
            for q in machine.scheduler.queues
        ],
        hide_index=True,
        key="queues",
        alt="Queues with their limits.",
    )
    st.caption(escape(f"{machine.scheduler.kind}; {machine.scheduler.source}"))


def _doubts(machine: Machine) -> None:
    if machine.notes:
        st.subheader("Doubts", anchor=False)
        for note in machine.notes:
            st.markdown("- " + escape(note))


def _facts(machine: Machine) -> None:
    st.subheader("Every number, with its source", anchor=False)
    rows = [
        {
            "quantity": key.replace("_", " "),
            "value": format_quantity(key, q.value),
            "kind": q.kind,
            "source": _spelled(q.source, machine),
        }
        for key, q in quantities(machine)
    ]
    if machine.network is not None:
        curve = machine.network.efficiency
        points = ", ".join(
            f"{f:.2f} at {n}" for n, f in zip(curve.num_nodes, curve.fraction, strict=True)
        )
        rows.append(
            {
                "quantity": "network efficiency by nodes",
                "value": points,
                "kind": curve.kind,
                "source": _spelled(curve.source, machine),
            }
        )
    st.dataframe(
        rows,
        hide_index=True,
        height=420,
        key="facts",
        alt="Every quantity of the machine with value, kind and source.",
    )
    counts = {
        kind: sum(row["kind"] == kind for row in rows)
        for kind in ("datasheet", "measured", "calibrated", "assumed")
    }
    st.caption(
        ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        + ". Assumed values can be overridden on the command line with --set."
    )


def _spelled(source: str, machine: Machine) -> str:
    """A source with its abbreviation spelled out."""
    short = source.split(":")[0]
    long = machine.sources.get(short)
    return f"{source} ({long})" if long else source


def _compare(first: Machine, second: Machine) -> None:
    st.subheader(f"One job on {first.name} and on {second.name}", anchor=False)
    columns = st.columns(3)
    models = names("model")
    usual = models.index("llama-3-8b")
    model = columns[0].selectbox("Model", models, index=usual, key="job_model", **_KEPT)
    devices = columns[1].number_input(
        "Devices (at least)",
        1,
        100_000,
        48,
        key="job_devices",
        help="Each machine gets as many whole nodes as that needs.",
        **_KEPT,
    )
    batch = columns[2].number_input(
        "Batch [sequences]", 1, 10_000_000, 768, key="job_batch", **_KEPT
    )
    plans = []
    for machine in (first,) if first == second else (first, second):
        nodes = -(-int(devices) // machine.node.num_devices)
        job = Job(load_model(model), machine, nodes, Workload(global_batch=int(batch)))
        try:
            plan = cached.plan_of(job)
        except PlannerError as error:
            st.warning(escape(str(error)))
            continue
        if plan.best is None:
            st.warning(escape(words.verdict(plan)))
        else:
            plans.append((plan, plan.best))
    if plans:
        draw(compare.time_bars([(plan.machine, best) for plan, best in plans]), key="compare")
        rows = [_compared(plan, best) for plan, best in plans]
        said = "The job's best layout on each machine."
        st.dataframe(rows, hide_index=True, key="compare_table", alt=said)


def _compared(plan: Plan, best: Estimate) -> dict[str, Any]:
    return {
        "machine": plan.machine,
        "nodes": plan.nodes,
        "devices": plan.num_devices,
        "layout": f"{best.layout} [{best.framework}]",
        "step": format_seconds(best.step_time_s),
        "tokens/s": round(best.tokens_per_s),
        "MFU [%]": round(100 * best.mfu, 1),
        "memory": format_bytes(best.memory_bytes["total"]),
        "node-hours, 1,000 steps": round(plan.node_hours(best), 2),
    }
