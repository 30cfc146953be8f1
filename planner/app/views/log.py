"""Log: the user's own run, from any file that `planner compare` reads, beside its estimate."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import streamlit as st

from planner.app.controls.page_job import PageJob
from planner.app.draw import refuse
from planner.describe.catalogue import load_machine, names
from planner.describe.model.huggingface.hub import is_from_hub
from planner.errors import CatalogueError, PlannerError
from planner.evidence.logs.comparison import compare, comparison_text
from planner.evidence.logs.log_files import read_log
from planner.evidence.logs.log_job import read_job
from planner.evidence.logs.scalars import chosen_columns
from planner.evidence.logs.steps import LogError, RunLog

__all__ = ["log", "read_upload"]

_MOST_MB = 50
_AS_LOGGED = "as the log says"
_HELP = (
    "Lines of wordplay/ezpz, nanoGPT, Megatron-LM, DeepSpeed, torchtitan, nanotron, Trainer and "
    "others; CSV or JSON lines with a column of times; a profile of torch.profiler (.json or "
    ".json.gz); an event file of TensorBoard. It is deleted once it is read."
)


def log(job: PageJob | None) -> None:
    """What the run is of, its file, and the comparison."""
    st.header("Your own log against its estimate", anchor=False)
    columns = st.columns([2, 2, 3, 3])
    machines = names("machine")
    usual = job.machine.name if job and job.machine.name in machines else "polaris"
    machine = columns[0].selectbox("Machine", machines, index=machines.index(usual), key="log_on")
    own_models = {job.model.name: job.model} if job and is_from_hub(job.model) else {}
    options = (_AS_LOGGED, *own_models, *names("model"))
    model = columns[1].selectbox("Model", options, key="log_model")
    layout = columns[2].text_input(
        "Layout, where the log does not say",
        key="log_layout",
        max_chars=400,
        placeholder='{"dp": 4, "micro_batch": 16}',
        help="A JSON object of degrees, or of a job: "
        '{"layout": {"dp": 8}, "workload": {"sequence_length": 1024}, "framework": "fsdp2"}.',
    )
    named = columns[3].text_input(
        "Columns, where their names do not say",
        key="log_columns",
        max_chars=400,
        placeholder="time_s=dt, loss=train loss",
        help="What a column of a table or a scalar of TensorBoard holds: FIGURE=COLUMN, ...",
    )
    upload = st.file_uploader(
        "A training log", max_upload_size=_MOST_MB, key="log_file", help=_HELP
    )
    if upload is None:
        return
    try:
        chosen = chosen_columns([words for words in named.split(",") if words.strip()])
        comparison = read_upload(upload.getvalue(), upload.name, chosen)
        logged = read_job(
            comparison,
            load_machine(machine),
            _object(layout),
            model=None if model == _AS_LOGGED else own_models.get(model, model),
        )
        st.code(comparison_text(compare(comparison, logged)), language=None, wrap_lines=True)
    except PlannerError as error:
        refuse(error, title="This log cannot be compared yet")


def read_upload(data: bytes, name: str, columns: dict[str, str] | None = None) -> RunLog:
    """What an uploaded log states, whatever its format; LogError where it states nothing.

    Readers of profiles and of events want files, so it is one for as long as they read.
    """
    called = re.sub(r"[^\w.-]+", "_", name)[-100:].strip(".") or "log"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / called
        path.write_bytes(data)
        try:
            return read_log(path, columns)
        except PlannerError as error:
            # users of the page know the file by its name, and no options of a command
            message = error.plain.replace(f"{folder}/", "").replace("as in --column", "such as")
            raise LogError(message) from None


def _object(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise CatalogueError('the layout is no JSON object; write for example {"dp": 4, "tp": 2}')
    return data
