"""Batch script: nodes, queue, wall time, ranks and files of a user's own job script."""

import functools
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.describe.configurations.configuration import Configuration, joined
from planner.describe.configurations.document import MAX_BYTES, Document
from planner.describe.configurations.reading import reader_of
from planner.describe.configurations.shell import FollowedScript, follow_script
from planner.describe.configurations.stated_job import KEYS
from planner.describe.files import read_text, read_toml
from planner.errors import CatalogueError, shorten_path

_FACTS = read_toml(Path(__file__).with_name("batch_systems.toml"))
_SYSTEMS, _ACROSS, _INSIDE = _FACTS["systems"], _FACTS["across"], _FACTS["inside"]
_PLAN = "layout.json"
"""File of `planner emit` that states the layout, for what the other files leave open."""
_ENDINGS = (".json", ".yaml", ".yml", ".toml", ".args", ".txt", ".py", ".conf")
_RESUMES = re.compile(r"resume|^--load$|^finished$", re.IGNORECASE)
_HOSTS = re.compile(r"(\$\(|`)[^()`]*NODEFILE[^()`]*(\)|`)")
_GPUS = re.compile(r"(?:^|[:,])(?:gpu:)?(?:[a-zA-Z]\w*:)?(\d+)(?:$|[,(])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class BatchScript:
    """What a job script asks of the batch system, and what it starts."""

    path: Path
    text: str
    scheduler: str
    """Batch system of its directives; empty: none."""
    requested: Mapping[str, str]
    """Value of every directive, by field or by its own option."""
    run: FollowedScript
    nodes: int | None
    launchers: tuple[str, ...]
    """Launchers of the training, the outermost first."""
    starts: Mapping[str, int]
    """Numbers of the launchers: nodes, tasks, tasks_per_node, processes, world."""

    @property
    def inside(self) -> bool:
        """Whether a launcher of one node, such as torchrun, starts the ranks."""
        return any(name in _INSIDE for name in self.launchers)

    @property
    def starts_alone(self) -> bool:
        """Whether the launcher reaches no other node; DeepSpeed's own does."""
        forks = self.inside and self.launchers[0] != "deepspeed"
        return bool(self.scheduler) and len(self.launchers) == 1 and forks

    @property
    def devices(self) -> int | None:
        """Devices of a node that the directives ask for; None: not stated."""
        requested, nodes = self.requested, self.nodes or 1
        match = _GPUS.search(requested.get("devices", ""))
        match = match or re.search(r":ngpus=(\d+)", requested.get("nodes", ""))
        if match:
            return int(match[1])
        names = ("task_devices", "tasks_per_node", "all_devices")
        each, tasks, total = (_count(requested.get(name)) or 0 for name in names)
        return each * tasks or total // nodes or None

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks that start on one node; None: not stated."""
        starts, nodes = self.starts, self.nodes or 1
        tasks = starts.get("tasks_per_node") or starts.get("tasks", 0) // nodes
        if not self.inside:
            return tasks or None
        if "accelerate" in self.launchers:
            return starts.get("world", 0) // nodes or None
        processes = starts.get("processes") or self.devices
        return processes * max(tasks, 1) if processes else None

    @property
    def walltime_s(self) -> float | None:
        """Wall time that it asks for [s]; None: not stated."""
        text = self.requested.get("time", "")
        if unit := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
            return float(unit[1]) * _UNITS[unit[2]]
        days, _, rest = text.rpartition("-")
        parts = rest.split(":")
        if not all(part.isdecimal() for part in [*parts, days or "0"]):
            return None
        sizes = _SYSTEMS[self.scheduler]["time"]
        first = 3600 if days else sizes[min(len(parts), len(sizes)) - 1]
        rest_s = sum(int(part) * first / 60**place for place, part in enumerate(parts))
        return int(days or 0) * 86400 + rest_s

    @property
    def resumes(self) -> bool:
        """Whether a later job goes on from a checkpoint, by the words of the script."""
        return any(_RESUMES.search(word) for words in self.run.commands for word in words)


def directives(kind: str, lines: Iterable[str]) -> dict[str, str]:
    """Read directives without their prefix: value by field, or by option for unknown ones."""
    requested: dict[str, str] = {}
    for line in lines:
        line = re.sub(r"\s#.*", "", line)
        if kind == "pbs" and line.startswith("-l"):
            pairs = [pair.strip().partition("=") for pair in line[2:].split(",")]
            settings = [(f"-l {name}", value) for name, _, value in pairs]
        else:
            settings = re.findall(r"(-[-\w]+)(?:[= ]+(?!-)(\S+))?", line)
        requested |= {_SYSTEMS[kind]["options"].get(k, k): v.strip("'\"") for k, v in settings}
    return requested


def read_batch_script(place: Path) -> BatchScript:
    """Read a job script, or that of a folder; raises CatalogueError."""
    path = _script_in(place) if os.path.isdir(place) else place
    text = read_text(path, MAX_BYTES)
    kind = next((k for k, facts in _SYSTEMS.items() if f"\n{facts['prefix']}" in text), "")
    prefix = _SYSTEMS[kind]["prefix"] if kind else "\n"
    lines = [x.removeprefix(prefix).strip() for x in text.splitlines() if x.startswith(prefix)]
    requested = directives(kind, lines) if kind else {}
    nodes = _count(requested.get("nodes")) or (1 if kind else None)
    run = _followed(path, text, kind, nodes, requested)
    launchers, starts = _launch(run, requested)
    return BatchScript(
        path, text, kind, requested, run, nodes or starts.get("nodes"), launchers, starts
    )


def _script_in(folder: Path) -> Path:
    scripts = sorted(folder.glob("job.sh")) or sorted(folder.glob("*.sh"))
    scripts = scripts or sorted(p for p in folder.iterdir() if p.suffix in (".slurm", ".pbs"))
    if len(scripts) != 1:
        names = ", ".join(path.name for path in scripts) or "no job script"
        raise CatalogueError(f"{shorten_path(folder)} holds {names}; name the job script")
    return scripts[0]


def _followed(
    path: Path, text: str, kind: str, nodes: int | None, requested: Mapping[str, str]
) -> FollowedScript:
    """Follow a script and those beside it that it runs, with the batch system's variables."""
    each, tasks = _count(requested.get("tasks_per_node")), _count(requested.get("tasks"))
    values = {"nodes": nodes or 0, "tasks": tasks or (nodes or 1) * (each or 1), "number": 1}
    gpus = _GPUS.search(requested.get("devices", ""))
    values["devices"] = int(gpus[1]) if gpus else 0
    variables = {n: v for k, v in values.items() if v and kind for n in _SYSTEMS[kind].get(k, ())}
    text = _HOSTS.sub(lambda m: str(nodes) if "wc" in m[0] and nodes else m[0], text)
    run = follow_script("".join(f"{name}={value}\n" for name, value in variables.items()) + text)
    words = dict.fromkeys(word for command in run.commands for word in command)
    for file in (path.parent / word for word in words if word.endswith(".sh") and len(word) < 200):
        if file.is_file() and file.resolve() != path.resolve():
            set_before = "".join(f"{k}={shlex.quote(v)}\n" for k, v in run.variables.items())
            more = follow_script(set_before + read_text(file, MAX_BYTES))
            run = replace(more, commands=run.commands + more.commands, files=run.files)
    return run


def _launch(
    run: FollowedScript, requested: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Launchers of the training, and the numbers that they and the directives state."""
    tables, launchers = {**_ACROSS, **_INSIDE}, []
    numbers = {k: n for k in ("tasks", "tasks_per_node") if (n := _count(requested.get(k)))}
    for command in run.commands:
        if {"hostname", "nvidia-smi", "install", "scontrol"} & set(command):
            continue
        table: Mapping[str, str] = {}
        for word, after in zip(command, [*command[1:], ""], strict=True):
            program = word.rpartition("/")[2]
            if word.endswith(".py"):
                break
            if program in tables:
                table = tables[program]
                launchers.append(program)
            name, _, value = word.partition("=")
            field = table.get(name) or table.get(name.replace("_", "-"))
            if field and (number := _count(value or after)):
                numbers[field] = number
    if "sets" in numbers:
        numbers["tasks"] = numbers["sets"] * numbers.get("set_tasks", 1)
    return tuple(dict.fromkeys(launchers)), numbers


def _count(text: str | None) -> int | None:
    match = re.match(r"(\d+)(?:-\d+)?(?:$|:)", text or "")
    return (int(match[1]) or None) if match else None


def configuration_of(script: BatchScript, whole_folder: bool) -> Configuration:
    """Read the configuration files that a script names or writes, and its own options."""
    folder, words = script.path.parent, [w for words in script.run.commands for w in words]
    program = next((word for word in words if word.endswith(".py")), "")
    names = {part.lstrip("@") for word in words for part in (word, word.partition("=")[2])}
    if whole_folder:
        names |= {path.name for path in folder.iterdir()}
    names = {n for n in names if n.endswith(_ENDINGS) and len(n) < 200} - {program, _PLAN}
    run = [words for words in script.run.commands if words[0] not in ("echo", "cat")]
    lines = [shlex.join(word for word in words if "<" not in word) for words in run]
    texts = {script.path.name: "\n".join(lines)}
    texts |= {name: text for name, text in script.run.files.items() if name in names}
    # names are relative to the script, or to where it is submitted
    places = ((folder / name, Path(name)) for name in sorted(names - set(texts)))
    for path in (next(filter(Path.is_file, pair), pair[0]) for pair in places):
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            texts[path.name] = read_text(path, MAX_BYTES)
    documents = [Document(name.rpartition("/")[2], text) for name, text in texts.items()]
    parts = [reader.read(each) for each in documents if (reader := reader_of(each))]
    if whole_folder and (plan := folder / _PLAN).is_file():
        document = Document(_PLAN, read_text(plan, MAX_BYTES))
        planned = [reader.read(document)] if (reader := reader_of(document)) else []
        parts = [*(_usual(each) if parts else each for each in planned), *parts]
    configuration = joined(parts) if parts else Configuration((script.path.name,), ())
    steps, model = (_first(documents, KEYS["run"][name]) for name in ("steps", "models"))
    return replace(configuration, model=configuration.model or model, steps=_count(steps) or 0)


def _usual(plan: Configuration) -> Configuration:
    """A planned layout as defaults: the job's other files are what runs."""
    fields: dict[str, Any] = {**plan.workload, **plan.layout}
    usual = {k: v for k, v in fields.items() if k not in ("dp", "grad_accumulation")}
    plan = replace(plan, usual_framework=plan.framework, framework="")
    return replace(plan, layout={}, workload={}, usual=usual)


def _first(documents: Iterable[Document], keys: Iterable[str]) -> str:
    """Value of the first dotted key that the files state, with `+` between two; empty: none."""
    for table in (each for file in documents for each in (file.tables, file.options)):
        for paths in (key.split("+") for key in keys):
            values: list[Any] = [functools.reduce(_inner, p.split("."), table) for p in paths]
            text = "-".join(map(str, values))
            if all(type(value) in (str, int) for value in values) and "$" not in text:
                return text
    return ""


def _inner(table: Any, key: str) -> Any:
    return table.get(key) if isinstance(table, Mapping) else None
