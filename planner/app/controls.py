"""Controls: what describes a training job on a page, shared by the pages that need one.

Every widget's key is the name of its parameter in the address, so an address restores the page.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import Any

import streamlit as st

from planner.app import link
from planner.app.markdown import escape
from planner.describe.base import field_docs
from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import (
    ATTENTIONS,
    OPTIMIZERS,
    PRECISIONS,
    Workload,
    parse_tokens,
)
from planner.errors import PlannerError
from planner.units import format_bytes, format_count

__all__ = ["Job", "controls", "share"]

_FIELDS = {
    "batch": "global_batch",
    "seq": "sequence_length",
    "tokens": "tokens",
    "precision": "precision",
    "optimizer": "optimizer",
    "attention": "attention",
    "lora": "lora_rank",
}
"""Fields of the workload by the name of their control."""
_MOST = 100_000_000
_USUAL = Workload(sequence_length=4096)
_DEFAULTS: dict[str, Any] = {
    "model": "llama-3-8b",
    "machine": "polaris",
    "nodes": 4,
    **{key: getattr(_USUAL, field) for key, field in _FIELDS.items()},
    "tokens": "",
}


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked: a model on some nodes of a machine, for a workload."""

    model: Model
    machine: Machine
    nodes: int
    workload: Workload
    frameworks: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The job as text; equal jobs have equal text."""
        parts = (self.model, self.machine, self.workload)
        said = [part.model_dump_json() for part in parts]
        return "\n".join([*said, str(self.nodes), *self.frameworks])


def controls() -> Job | None:
    """Draw the controls; None, with a message, where they describe no job."""
    _recall()
    with st.container(border=True):
        first = st.columns([3, 3, 2, 2, 2, 2], vertical_alignment="bottom")
        _bound(first[0].selectbox, "Model", names("model"), "model")
        _bound(first[1].selectbox, "Machine", names("machine"), "machine")
        _number(first[2], "Nodes", "nodes", 100_000, "Nodes of the machine the job may use.")
        _number(first[3], "Batch [sequences]", "batch", _MOST, _help("batch"))
        _number(first[4], "Sequence [tokens]", "seq", _MOST, _help("seq"))
        first[5].text_input(
            "Train on [tokens]",
            key="tokens",
            bind="query-params",
            persist_state="session",
            max_chars=20,
            placeholder="such as 2T",
            help=_help("tokens"),
        )
        with st.expander("More about the job, or your own model"):
            _details()
        values = _keep()
        try:
            job = _read(values)
        except PlannerError as error:
            st.error(escape(str(error)), title="This job makes no sense yet")
            return None
        _summary(job)
    # a layout belongs to the job it was chosen for
    if st.session_state.get("job_key", job.key) != job.key and "layout" in st.query_params:
        del st.query_params["layout"]
    st.session_state["job_key"] = job.key
    return job


def share() -> None:
    """The address that restores every control, the layout and the page."""
    found = {**st.session_state["job_kept"], **st.query_params.to_dict()}
    stated = {key: value for key, value in found.items() if value not in ("", [], None)}
    base = (st.context.url or "").split("?")[0]
    st.caption("Link to exactly this page:")
    st.code(f"{base}?{urllib.parse.urlencode(stated, doseq=True)}", language=None, wrap_lines=True)


def _recall() -> None:
    """Give every control its value: the address's, else that of the page before, else the usual.

    The widgets themselves have no default, so the address always states every value: a link
    means the same when the usual values change.
    """
    kept = st.session_state.setdefault("job_kept", {})
    for key, usual in {**_DEFAULTS, "frameworks": []}.items():
        if key not in st.query_params:
            # set again even where it is there: a new page's address, still empty, would win
            value = st.session_state.get(key)
            st.session_state[key] = kept.get(key, usual) if value is None else value
    if "config" in kept and "config" not in st.query_params:
        st.query_params["config"] = kept["config"]


def _keep() -> dict[str, Any]:
    """The controls' values; an emptied one, or one that the address misspelt, is the usual."""
    found = {key: st.session_state[key] for key in (*_DEFAULTS, "frameworks")}
    kept = {key: _DEFAULTS.get(key, []) if value is None else value for key, value in found.items()}
    if "config" in st.query_params:
        kept["config"] = st.query_params["config"]
    st.session_state["job_kept"] = kept
    return kept


def _bound(widget: Any, label: str, options: Any, key: str, **more: Any) -> Any:
    """A selection that the address restores."""
    return widget(
        label,
        options,
        index=None,
        required=True,
        key=key,
        bind="query-params",
        persist_state="session",
        **more,
    )


def _number(column: Any, label: str, key: str, most: int, text: str) -> None:
    least = 0 if key == "lora" else 1
    column.number_input(
        label,
        min_value=least,
        max_value=most,
        value=None,
        step=1,
        key=key,
        help=text,
        bind="query-params",
        persist_state="session",
    )


def _help(key: str) -> str:
    """What the field of a control means."""
    return field_docs(Workload)[_FIELDS[key]]


def _details() -> None:
    columns = st.columns(4)
    choices = {"precision": PRECISIONS, "optimizer": OPTIMIZERS, "attention": ATTENTIONS}
    for column, (key, options) in zip(columns, choices.items(), strict=False):
        _bound(column.selectbox, key.capitalize(), options, key, help=_help(key))
    _number(columns[3], "LoRA rank", "lora", 65_536, _help("lora"))
    st.multiselect(
        "Frameworks",
        names("framework"),
        key="frameworks",
        bind="query-params",
        persist_state="session",
        placeholder="all that run on the machine",
        help="Which training frameworks to search; none chosen means the usual ones.",
    )
    _upload()


def _upload() -> None:
    """The user's own config.json instead of a model of the catalogue."""
    upload = st.file_uploader(
        "Your own model: a Hugging Face config.json",
        type=["json"],
        max_upload_size=1,
        key="config_file",
        help="Only the file's shapes are read. It is kept in the page's address, nowhere else.",
    )
    if upload is not None and st.session_state.get("config_seen") != upload.file_id:
        st.session_state["config_seen"] = upload.file_id
        _take(upload.getvalue(), upload.name)
    if "config" in st.query_params and st.button("Back to the catalogue", key="config_drop"):
        del st.query_params["config"]
        st.session_state["job_kept"].pop("config", None)
    if message := st.session_state.pop("config_error", ""):
        st.error(escape(message), title="This file describes no model")


def _take(data: bytes, name: str) -> None:
    """Keep an uploaded configuration in the address, or say what is wrong with it."""
    try:
        fields = link.parse_config(data)
        link.read_model(fields, name)
        st.query_params["config"] = link.pack_config(fields, name)
    except PlannerError as error:
        st.session_state["config_error"] = str(error)


def _read(state: dict[str, Any]) -> Job:
    packed = st.query_params.get("config", "")
    model = link.unpack_model(packed) if packed else load_model(state["model"])
    machine = load_machine(state["machine"])
    fields = {field: state[key] for key, field in _FIELDS.items()}
    limit = model.longest_sequence or _MOST
    fields["sequence_length"] = min(fields["sequence_length"], limit)
    fields["tokens"] = parse_tokens(state["tokens"]) if state["tokens"].strip() else 0.0
    workload = Workload.described(fields, where="job")
    return Job(model, machine, int(state["nodes"]), workload, tuple(state["frameworks"]))


def _summary(job: Job) -> None:
    if job.workload.sequence_length < (st.session_state["seq"] or 0):
        st.info(
            escape(
                f"{job.model.name} ends at {job.workload.sequence_length:,} tokens per sequence: "
                "that is what is planned here."
            )
        )
    machine, devices = job.machine, job.nodes * job.machine.node.num_devices
    st.caption(
        escape(
            f"{job.model.name}: {format_count(job.model.num_params)} parameters. "
            f"{job.nodes} of {machine.num_nodes.value:,.0f} nodes of {machine.title}, "
            f"{devices:,} devices ({machine.device.name}) with "
            f"{format_bytes(machine.device.memory_bytes.value)} each. "
            f"{format_count(job.workload.tokens_per_step)} tokens per step."
        )
    )
