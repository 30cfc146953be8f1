"""Words: sentences about plans and estimates, the same in the terminal, notebooks and pages."""

from planner.choose.plan import Plan
from planner.choose.verdicts.answer_lines import fit_word, step_interval, throughput_unit
from planner.choose.verdicts.fixes import shortage_summary
from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.units import counted, format_amount, format_bytes, format_count, format_seconds


def memory_interval(estimate: Estimate) -> str:
    """State the 90 % interval of measured memory."""
    low, high = estimate.interval_memory_bytes
    return f"90 % of measured runs so estimated took {format_bytes(low)} to {format_bytes(high)}"


def search_summary(plan: Plan) -> str:
    """State how many layouts were searched, and how many were fully estimated."""
    count, full = plan.num_candidates, plan.num_estimated
    if full == count:
        return f"{count:,} layouts evaluated"
    return f"{count:,} layouts decided, {full:,} of them estimated in full and the rest by bounds"


def fit_sentence(estimate: Estimate, machine: Machine) -> str:
    """State whether a layout fits, with its free or missing memory."""
    free_bytes = machine.device.memory_bytes.value - estimate.memory_bytes["total"]
    head, free = fit_word(estimate), f"{format_bytes(free_bytes)} free per device"
    if estimate.tight:
        return f"{head}: {free}; {memory_interval(estimate)}: run it once first"
    return f"{head}: {free if estimate.fits else shortage_summary(estimate, machine)}"


def step_figures(estimate: Estimate) -> str:
    """Format step time, utilisation and throughput of an estimate."""
    return (
        f"step {format_seconds(estimate.step_time_s)} ({step_interval(estimate)}), MFU "
        f"{100 * estimate.mfu:.1f} %, {format_amount(estimate.tokens_per_s)} "
        f"{throughput_unit(estimate)}/s"
    )


def idle_explanation(estimate: Estimate, numbered: bool) -> str:
    """Explain the gaps, and the numbers if any, in the figure of a step."""
    numbers = "Numbers are micro-batches. " if numbered else ""
    if estimate.layout.pp == 1:
        return f"{numbers}There is one stage: it waits for no other."
    parts = estimate.step_time_parts_s
    bubble, transfer = (
        f"{100 * parts[name] / estimate.step_time_s:.1f} %"
        for name in ("pipeline_bubble", "pipeline_transfer")
    )
    return (
        f"{numbers}Gaps are waiting: of the stage that works longest the bubble is {bubble} of the "
        f"step, transfers {transfer}."
    )


def better_layout(estimate: Estimate, better: Estimate | None) -> str:
    """Compare a configured layout with the fastest one of its framework."""
    step = format_seconds(estimate.step_time_s) if estimate.fits else "does not fit"
    if better is None:
        verdict = "is faster" if estimate.fits else "fits either"
        rest = f"no layout of {estimate.framework} that was searched {verdict}"
    else:
        step_time = format_seconds(better.step_time_s)
        rest = f"{better.framework} can do {step_time} with {better.layout}"
    return f"Your layout: {step}; {rest}."


def queue_sentence(plan: Plan) -> str:
    """List the queues that admit the job; empty if the machine's queues are unknown."""
    nodes = counted(plan.nodes, "node")
    if not plan.queued:
        return ""
    if not plan.queues:
        return f"No queue of {plan.machine} is known to admit {nodes}."
    queues = ", ".join(
        f"{q.name} (up to {q.max_hours:g} h{', by request' * q.on_request}"
        f"{f'; {q.note}' * (q.on_request and bool(q.note))})"
        for q in plan.queues
    )
    return f"Queues that admit {nodes}: {queues}."


def size_sentence(plan: Plan) -> str:
    """State the parameters, and of the recommended layout host memory and rate of a device."""
    if (estimate := plan.recommended) is None:
        return ""
    rate = estimate.tokens_per_s / plan.num_devices
    return (
        f"{format_count(plan.num_params)} parameters; "
        f"{format_bytes(estimate.host_memory_bytes['total'])} of memory per host; "
        f"{format_amount(rate)} {throughput_unit(estimate)}/s per device."
    )
