"""Job texts: a job as a command, as Python lines, and as an address of the explorer."""

import shlex
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from planner.describe.catalogue import names
from planner.describe.framework.switches import split_name
from planner.describe.job_description import JobDescription
from planner.describe.layout import Layout
from planner.describe.model.huggingface.hub import parse_hub_name

EXPLORER = "http://127.0.0.1:8501/"
"""Address at which `planner app` serves the explorer."""
PARAMETERS = {
    "global_batch": "batch",
    "sequence_length": "seq",
    "lora_rank": "lora",
    "leave_free": "free",
}
"""Fields of a job that have another name in the explorer's address."""
_OPTIONS = {"sequence_length": "seq-length", "frameworks": "framework", "zero_stage": "zero"}
"""Fields that have another name as an option."""
_REPEATED = ("frameworks", "set", "measured", "against", "among", "also")
"""Fields whose option is repeated for every value."""


def _fields(job: JobDescription) -> dict[str, Any]:
    """Return the fields of a job that differ from their defaults, without model and workload."""
    fields = job.model_dump(exclude_defaults=True, exclude={"model", "workload", "training"})
    percent = {"tolerance": round(100 * job.tolerance, 10)} if job.tolerance is not None else {}
    return {**fields, **percent}


def command(start: str, job: JobDescription, **options: Any) -> str:
    """Write the command for a job: `start` such as "planner plan", the job, then `options`."""
    fields = {**_fields(job), **job.workload, **options}
    words = (word for name, value in fields.items() for word in _option(name, value))
    return shlex.join([*start.split(), str(job.model), *words])


def _option(name: str, value: Any) -> Iterator[str]:
    flag = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
    for each in value if name in _REPEATED else (value,):
        yield from (flag,) if each is True else (flag, word_of(each))


def word_of(value: Any) -> str:
    """Write a value of a field as one word."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def python(job: JobDescription, call: str, printed: str) -> str:
    """Write the Python lines that make a job, its answer with `call`, and print a part of it."""
    fields = job.model_dump(exclude_defaults=True, exclude={"model", "machine", "workload"})
    if fields.keys() & {"set", "network", "devices", "leave_free"}:
        import tomlkit

        table = job.model_dump(exclude_defaults=True)
        ordered = sorted(table.items(), key=lambda item: isinstance(item[1], dict))
        text = tomlkit.dumps({k: list(v) if isinstance(v, tuple) else v for k, v in ordered})
        literal = repr(text) if "'''" in text else f"r'''\n{text}'''"
        lines = [f"job = planner.Job.from_toml({literal})"]
    else:
        place = ", ".join(filter(None, (repr(job.machine), arguments(fields))))
        lines = [f"workload = planner.Workload({arguments(job.workload)})"]
        lines += [f"job = planner.Job({job.model!r}, {place}, workload=workload)"]
    lines = ["import planner", "", *lines, f"answer = job.{call}", f"print(answer.{printed})"]
    return "\n".join(lines)


def arguments(fields: Mapping[str, Any]) -> str:
    """Write fields as keyword arguments."""
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def address(job: JobDescription, page: str = "", **parameters: Any) -> str:
    """Return the explorer's address of a job; empty if the job needs files of the user."""
    fields = {"model": job.model, **_fields(job), "nodes": job.nodes, **job.workload, **parameters}
    words = [str(value) for value in (*job.frameworks, *parameters.values())]
    frameworks = [split_name(each)[0] for each in map(str, job.frameworks)]
    is_public = job.model in names("model") or parse_hub_name(str(job.model))
    has_files = job.measured or any(word.endswith((".toml", ".csv", ".jsonl")) for word in words)
    has_fractions = job.leave_free % 1 or fields.get("tolerance", 0) % 1
    if has_files or has_fractions or not is_public or job.machine not in names("machine"):
        return ""
    if job.frameworks:
        fields |= {"frameworks": frameworks, "switches": [w for w in job.frameworks if "+" in w]}
    fields |= {"set": "\n".join(job.set)} if job.set else {}
    query = {PARAMETERS.get(name, name): word_of(v) for name, v in fields.items() if v != []}
    return f"{EXPLORER}{page}?{urllib.parse.urlencode(query)}"


def pack_layout(layout: Layout, framework: str) -> str:
    """Encode a layout and its framework as one word for an address."""
    fields = layout.model_dump(mode="json", exclude_defaults=True).items()
    plain = [(name, "+".join(v) if isinstance(v, list) else v) for name, v in fields]
    return "~".join([framework, *(f"{name}.{value}" for name, value in plain)])
