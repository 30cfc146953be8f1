"""Recognition: which kind of file a user gives, by its content, and what it holds."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.describe.configurations.configuration import joined
from planner.describe.configurations.document import MAX_BYTES, Document
from planner.describe.configurations.reading import READERS
from planner.describe.files import parse_toml
from planner.errors import CatalogueError, PlannerError, shorten_path
from planner.evidence.logs.log_files import read_log
from planner.evidence.logs.scalars import is_table
from planner.evidence.logs.steps import LogError, NoStepLineError
from planner.evidence.runs.run_files import COMPARED, decoded, is_table_of_runs

LARGEST_TEXT = 5_000_000
"""Largest table of runs [B]."""
_LARGEST_MODEL = 1_000_000
_PROBE = 65_536
_KEYS = {"model": {"family", "num_layers"}, "machine": {"device", "node"}}
"""Keys that make a TOML file a description."""
_CONFIG_KEYS = {"model_type", "architectures"}
"""Keys of which each makes a JSON file a model's config.json."""
_COUNTERS = {"step", "iteration", "iter"}
"""Columns of a log of steps; a table of runs has none of them."""
_SUPPORTED = (
    "a training log, a profile or a table of steps; a CSV of runs; a configuration of "
    "Accelerate, DeepSpeed, Megatron, nanoGPT, nanotron, torchtitan or the Trainer; a config.json; "
    "a TOML file of a model or a machine; a result of the planner"
)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A file of the user: its kind and content."""

    name: str
    kind: str
    """log, runs, comparison, configuration, model or machine."""
    title: str
    """The kind in words."""
    content: Any
    """RunLog, text of a table, printed comparison, Configuration, or the bytes of a description."""


def recognise(data: bytes, name: str, columns: Mapping[str, str] | None = None) -> Recognised:
    """Recognise a file, with columns as `read_log` takes them; PlannerError in one sentence."""
    name = re.sub(r"[^\w.-]+", "_", name)[-100:].strip("._") or "file"
    if not data.strip():
        raise LogError(f"{name} is empty; give the log of a run that made some steps")
    text = _text(data)
    data = data if text is None else text.encode()
    first = (text or "").lstrip("\ufeff").split("\n", 1)[0]
    if text is not None and not is_table(text[:_PROBE]):
        columns = None
    if is_table_of_runs(first):
        return _runs(text or "", name, first, columns)
    refusal = None
    try:
        if text is not None and not columns and (described := _described(text, name)):
            return described
    except CatalogueError as error:
        refusal = error  # the first line of a log may look like an object
    try:
        return _log(data, name, columns)
    except NoStepLineError:
        if refusal:
            raise refusal from None
        if name.endswith(".toml"):
            parse_toml(text or "", name)  # says which line is malformed
        raise CatalogueError(f"{name} is nothing that is read here; give {_SUPPORTED}") from None


def _text(data: bytes) -> str | None:
    """Decode a text; None for a binary file."""
    is_wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    is_binary = b"\0" in data[:_PROBE] or data[:2] == b"\x1f\x8b"
    return None if is_binary and not is_wide else decoded(data)


def _runs(text: str, name: str, first: str, columns: Mapping[str, str] | None) -> Recognised:
    names = {cell.strip().strip('"').lower() for cell in re.split("[,;\t]", first)}
    counters = sorted(names & _COUNTERS)
    if counters and names.isdisjoint({"model", "n_layers"}):
        return _log(text.encode(), name, columns)
    if counters:
        raise CatalogueError(
            f"{name} has a column {counters[0]!r} of a log and one of a table of runs; drop one: "
            "a log has a row per step, a table of runs a row per run"
        )
    if len(text) > LARGEST_TEXT:
        raise CatalogueError(
            f"{name} has {len(text) / 1e6:.0f} MB; at most {LARGEST_TEXT / 1e6:.0f} MB of runs are "
            "read: split it"
        )
    return Recognised(name, "runs", "CSV of runs", text)


def _described(text: str, name: str) -> Recognised | None:
    """Recognise a description, a configuration or a printed comparison; None for other texts."""
    starts_object = text.lstrip()[:1] == "{"
    if len(text) > (_LARGEST_MODEL if starts_object else MAX_BYTES):
        return None
    document = Document(name, text)
    if starts_object and ('"traceEvents"' in text[:_PROBE] or is_table(text)):
        return None  # a profile, or JSON lines
    keys = set(document.tables)
    if keys >= COMPARED:
        return Recognised(name, "comparison", "result of a comparison", dict(document.tables))
    claims = {kind: marks for kind in _KEYS if (marks := _marks(kind, keys, starts_object))}
    reader = next((each for each in READERS.values() if each.recognises(document)), None)
    if len(claims) + (reader is not None) > 1:
        kinds = [f"a {kind} ({', '.join(sorted(marks))})" for kind, marks in claims.items()]
        kinds += [reader.kind] if reader else []
        raise CatalogueError(f"{name} has keys of {' and of '.join(kinds)}; give a file for each")
    for kind in claims:
        return Recognised(name, kind, f"description of a {kind}", text.encode())
    if reader is None:
        return None
    return Recognised(name, "configuration", reader.kind, joined([reader.read(document)]))


def _marks(kind: str, keys: set[str], is_json: bool) -> set[str]:
    """Return the keys that make a file a description of a kind; empty if it is none."""
    if kind == "model" and is_json:
        return keys & _CONFIG_KEYS
    return _KEYS[kind] if keys >= _KEYS[kind] else set()


def _log(data: bytes, name: str, columns: Mapping[str, str] | None) -> Recognised:
    """Read a log of any known format; its messages name the file as the user does."""
    is_events = "tfevents" in name or b"brain.Event:" in data[:_PROBE]
    # readers of profiles and event files need a file on disk
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("tfevents" if is_events else "log")
        path.write_bytes(data)
        try:
            log = replace(read_log(path, columns), source=name)
        except PlannerError as error:
            error.plain = error.plain.replace(shorten_path(path), name)
            error.args = (error.plain,)
            raise
    return Recognised(name, "log", f"{log.title} log, {log.num_steps:,} steps", log)
