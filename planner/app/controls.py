"""Job: the controls that describe a training job, shared by the pages that need one.

Every widget's key is the name of its parameter in the address, so an address restores the page.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import Any

import streamlit as st

from planner.app import link
from planner.app.words import escape
from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.units import format_bytes, format_count, parse_quantity

__all__ = ["Job", "controls", "share"]

_PRECISIONS = ("bf16", "fp16", "fp8", "tf32", "fp32")
_OPTIMIZERS = ("adamw", "adam", "adam-8bit", "adafactor", "muon", "sgd-momentum", "sgd")
_DEFAULTS: dict[str, Any] = {
    "model": "llama-3-8b",
    "machine": "polaris",
    "nodes": 4,
    "batch": 256,
    "seq": 4096,
    "tokens": "",
    "precision": "bf16",
    "optimizer": "adamw",
    "attention": "flash",
    "lora": 0,
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
        _number(
            first[3],
            "Batch [sequences]",
            "batch",
            100_000_000,
            "Global batch: sequences of one optimizer step, over all devices.",
        )
        _number(first[4], "Sequence [tokens]", "seq", 100_000_000, "Tokens of one sequence.")
        first[5].text_input(
            "Train on [tokens]",
            key="tokens",
            bind="query-params",
            persist_state="session",
            max_chars=20,
            placeholder="such as 2T",
            help="Tokens of the whole training, for days and node-hours: 300B, 2e12.",
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


def _details() -> None:
    columns = st.columns(4)
    _bound(
        columns[0].selectbox,
        "Precision",
        _PRECISIONS,
        "precision",
        help="Number format of the matrix products; fp8 means FP8 products in bf16 training.",
    )
    _bound(
        columns[1].selectbox,
        "Optimizer",
        _OPTIMIZERS,
        "optimizer",
        help="Decides the states kept per parameter.",
    )
    _bound(
        columns[2].selectbox,
        "Attention",
        ("flash", "eager"),
        "attention",
        help="flash keeps no scores; eager writes them to memory.",
    )
    _number(columns[3], "LoRA rank", "lora", 65_536, "0 trains the weights themselves.")
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
    tokens = _tokens(state["tokens"])
    workload = Workload.described(
        {
            "sequence_length": min(state["seq"], _longest(model)),
            "global_batch": state["batch"],
            "tokens": tokens,
            "precision": state["precision"],
            "optimizer": state["optimizer"],
            "attention": state["attention"],
            "lora_rank": state["lora"],
        },
        where="job",
    )
    return Job(model, machine, int(state["nodes"]), workload, tuple(state["frameworks"]))


def _tokens(text: str) -> float:
    """A number of tokens; `B` means 1e9 here, not bytes.

    >>> _tokens("300B"), _tokens("2e12"), _tokens(" ")
    (300000000000.0, 2000000000000.0, 0.0)
    """
    text = text.strip()
    if text[-1:] in ("b", "B"):
        text = text[:-1] + "G"
    return parse_quantity(text) if text else 0.0


def _longest(model: Model) -> int:
    """The model's own limit: its positions, or the patches of an image."""
    if model.vision is not None:
        return (model.vision.image_size // model.vision.patch_size) ** 2 + 1
    return int(model.max_sequence_length) or 100_000_000


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
