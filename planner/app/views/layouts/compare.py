"""Page: two to four answers side by side, and the difference of each part."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from planner.app import address, cached
from planner.app.address import Query, QueryReader
from planner.app.controls import own_runs, page_job
from planner.app.controls.page_job import PageJob, PageRequest, running_on
from planner.app.controls.panel import ROW
from planner.app.controls.pins import job_query, pinned, pins_button
from planner.app.draw import draw, draw_table, escape, in_rows, refuse
from planner.choose.plan import Plan
from planner.choose.verdicts import differences
from planner.choose.verdicts.answer_lines import closest_strategy, percent_chance, training_cost
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_machine, names
from planner.errors import PlannerError
from planner.show.figures import bars
from planner.show.figures.frame import named_rows
from planner.units import GIB, format_amount, format_bytes, format_seconds

TITLE = "Compare"
_LETTERS = "ABCD"
_CHANGES = ("Machine", "Nodes", "Batch", "Framework", "Model")
"""What one click changes in an answer."""


@dataclass(frozen=True)
class _Answer:
    """A pinned answer: its query, job, plan and the layout that it shows."""

    letter: str
    query: Query
    job: PageJob
    plan: Plan
    estimate: Estimate

    @property
    def facts(self) -> dict[str, str]:
        """What may distinguish it from other answers."""
        plan, workload = self.plan, self.plan.workload
        return {
            "model": plan.model,
            "machine": plan.machine,
            "nodes": f"{plan.nodes:,}",
            "batch": f"{workload.global_batch:,}",
            "sequence": f"{workload.sequence_length:,}",
            "precision": workload.precision,
            "framework": self.estimate.framework,
            "layout": str(self.estimate.layout),
        }


def page(_: PageRequest) -> None:
    """Draw the pinned answers, what changes between them, and controls that add one."""
    st.title(TITLE, anchor=False)
    st.caption(
        "Pin answers on *Which strategy fits?* and *One layout*, or change one thing below. The "
        "first is the measure of the others."
    )
    queries: list[Query] = []
    try:
        queries = pinned()
    except PlannerError as error:
        refuse(error)
    # without pins, the answer of the other pages is the first
    queries = queries or [job_query()]
    answers = [each for each in map(_answer, _LETTERS, queries) if each is not None]
    if not answers:
        return
    labels = _labels(answers)
    _add(answers, queries)
    _list(answers, labels, queries)
    if len(answers) > 1:
        _differences(answers, labels)
    _figures(answers, labels)


def _answer(letter: str, query: Query) -> _Answer | None:
    """Plan a pinned job; a problem is shown in place of its answer."""
    request = own_runs.with_own_runs(page_job.read(QueryReader(dict(query))))
    problems, job, answer = [*request.reader.messages, request.problem], request.job, None
    try:
        if job is not None:
            plan = cached.plan_of(job)
            estimate = cached.estimate_of(job, job.layout) if job.layout else plan.recommended
            if estimate is None:
                problems.append(f"does not fit. {closest_strategy(plan)}")
            else:
                answer = _Answer(letter, query, job, plan, estimate)
    except PlannerError as error:
        problems.append(error.plain)
    if text := " ".join(filter(None, problems)):
        st.warning(escape(f"{letter}: {text}"))
    return answer


def _labels(answers: Sequence[_Answer]) -> list[str]:
    """Name every answer by what distinguishes it from the others, the layout only if need be."""
    facts = [each.facts for each in answers]
    distinct = [key for key in facts[0] if len({fact[key] for fact in facts}) > 1] or ["model"]
    brief = [key for key in distinct if key != "layout"]
    is_enough = len({tuple(fact[key] for key in brief) for fact in facts}) == len(facts)
    return [
        f"{each.letter}: "
        + ", ".join(
            # a number says what it counts
            f"{key} {fact[key]}" if fact[key][0].isdigit() else fact[key]
            for key in brief * is_enough or distinct
        )
        for each, fact in zip(answers, facts, strict=True)
    ]


def _list(answers: Sequence[_Answer], labels: Sequence[str], queries: Sequence[Query]) -> None:
    columns = {each.letter: _column(each) for each in answers}
    first = columns[answers[0].letter]
    rows = [{"": name} | {key: each[name] for key, each in columns.items()} for name in first]
    alt = "The compared answers, one a column, with their numbers."
    draw_table(rows, key="answers", alt=alt, height="content")
    cleared: dict[str, str | None] = dict.fromkeys(job_query())
    with st.container(horizontal=True):
        for each, label in zip(answers, labels, strict=True):
            take = functools.partial(address.request, **(cleared | each.query))
            st.button(f"Use {each.letter}", key=f"use_{each.letter}", help=label, on_click=take)
            if len(queries) > 1:
                rest = [query for query in queries if query is not each.query]
                pins_button(st, f"Remove {each.letter}", rest, f"remove_{each.letter}")


def _column(each: _Answer) -> dict[str, str]:
    estimate = each.estimate
    low, high = estimate.interval_step_time_s
    return {
        **each.facts,
        "step [s]": f"{estimate.step_time_s:.3g} ({low:.3g} to {high:.3g})",
        "tokens/s": format_amount(estimate.tokens_per_s),
        "MFU [%]": f"{100 * estimate.mfu:.1f}",
        "memory [GiB]": f"{estimate.memory_bytes['total'] / GIB:.2f}",
        "fits": "yes" if estimate.fits else "no",
        "out of memory": percent_chance(estimate.out_of_memory_probability),
        **dict(zip(("work", "time", "cost"), training_cost(each.plan, estimate), strict=True)),
    }


def _add(answers: Sequence[_Answer], queries: Sequence[Query]) -> None:
    with st.container(key=f"{ROW}_change"):
        columns = st.columns([1, 2, 3, 2], vertical_alignment="bottom")
    letters = {each.letter: each for each in answers}
    letter = columns[0].selectbox("Start from", list(letters), key="change_of")
    change = columns[1].selectbox("Change one thing", _CHANGES, key="change_what")
    base, key = letters.get(letter) or answers[0], f"change_to_{change}"
    job = base.job
    if change in ("Nodes", "Batch"):
        most = int(job.machine.num_nodes.value) if change == "Nodes" else 10_000_000
        now = job.nodes if change == "Nodes" else job.workload.global_batch
        value = str(columns[2].number_input(change, 1, most, min(2 * now, most), key=key))
    else:
        offered = running_on(job.machine) if change == "Framework" else names(change.lower())
        options = [name for name in offered if name != base.facts[change.lower()]]
        value = str(columns[2].selectbox(change, options, key=key))
    pins = [*queries, query := _changed(base, change, value)]
    pins_button(columns[3], "Add to compare", pins, "change_add", ":material/add:")
    if change == "Machine":
        nodes, devices = query["nodes"], f"{job.num_devices:,} devices of {base.letter}"
        st.caption(f"Nodes of {escape(value)}: {nodes}, for the {devices}.")


def _changed(base: _Answer, change: str, value: str) -> Query:
    """Return the query of an answer with one thing changed; its layout is found anew."""
    key = "frameworks" if change == "Framework" else change.lower()
    dropped, changed = {"layout"}, {key: value}
    if change == "Model":
        dropped |= {"config"}
    if change == "Machine":
        # as many devices, in whole nodes
        dropped |= {"profile", "network", "set", "devices"}
        per_node = load_machine(value).node.num_devices
        changed["nodes"] = str(-(-base.job.num_devices // per_node))
    return {k: v for k, v in base.query.items() if k not in dropped} | changed


def _differences(answers: Sequence[_Answer], labels: Sequence[str]) -> None:
    st.header("What makes the difference", anchor=False)
    first = answers[0]
    rows: dict[str, dict[str, str]] = {}
    for each, label in zip(answers[1:], labels[1:], strict=True):
        text = differences.difference_sentence(first.estimate, each.estimate, (first.letter, label))
        doubt = differences.closeness(first.estimate, each.estimate)
        st.markdown(f"- {escape(f'{text} {doubt}')}")
        for change in differences.time_changes(first.estimate, each.estimate):
            more = differences.signed(change.change, format_seconds)
            row = rows.setdefault(change.name, {"part": change.label})
            row[first.letter] = format_seconds(change.before)
            row[each.letter] = format_seconds(change.after)
            row[f"{each.letter} - {first.letter}"] = more
    draw_table(list(rows.values()), key="parts", alt="Every part of the step and its differences.")
    st.caption(f"All for as many tokens as one step of {first.letter} trains.")


def _figures(answers: Sequence[_Answer], labels: Sequence[str]) -> None:
    named = [(label, each.estimate) for label, each in zip(labels, answers, strict=True)]
    limits = [each.job.machine.device.memory_bytes.value for each in answers]
    drawings = {"Step time": bars.time_bars(named)}
    longest = max([*limits, *(each.memory_bytes["total"] for _, each in named)])
    for limit in dict.fromkeys(limits):
        group = [pair for pair, size in zip(named, limits, strict=True) if size == limit]
        title = f"Memory of devices with {format_bytes(limit)}"
        drawings[title] = bars.memory_bars(group, limit)
        drawings[title].figure.update_xaxes(range=[0, 1.7 * longest / GIB])
    for title, drawing in drawings.items():
        st.header(title, anchor=False)
        named_rows(drawing.figure, labels)
        draw(drawing, key=f"compare_{title}")
    st.header("Every step, part by part", anchor=False)
    end = max(max(1.6 * e.step_time_s, 1.1 * e.interval_step_time_s[1]) for _, e in named)
    for column, (label, estimate) in in_rows(named, 2):
        with column:
            st.subheader(escape(label), anchor=False)
            drawing = bars.waterfall(estimate)
            drawing.figure.update_xaxes(range=[0, end])
            draw(drawing, key=f"waterfall_{label[0]}")
