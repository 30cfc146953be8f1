"""Wording: pages speak of their own controls, never of options, commands or names in the code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from streamlit.testing.v1 import AppTest

from planner.app.draw import on_page
from planner.app.main import PAGES
from planner.app.views.fit import _VIEWS
from planner.ask import QUESTIONS
from planner.describe.catalogue import load_machine, names

pytestmark = pytest.mark.slow
_JOB = {"model": "gpt2", "nodes": "2", "batch": "64", "seq": "1024", "tokens": "1B"}
_COMMAND = re.compile(
    r"(?<![\w-])--[a-z][a-z-]+"  # an option
    r"|(?<![\w-])-[fmn] "
    r"|\bplanner (plan|ask|show|emit|estimate|simulate|validate|calibrate|compare|models|machines|"
    r"frameworks|datasets|sweep|collectives|config|backtest)\b"
    r"|HF_[A-Z]+|command line"
)
_CODE = re.compile(
    rf"{_COMMAND.pattern}"
    r"|(?<![\w.=/~-])[a-z]+(_[a-z]+)+(?![\w.(/])"  # a name in the code
)
_ALLOWED = re.compile(
    # names of DeepSpeed, PyTorch and Megatron
    r"stage3_gather_16bit_weights_on_model_save|reduce_bucket_size|allgather_bucket_size|"
    r"reshard_after_forward|memory_format|core_attn|moe_act|mla_up_proj|shared_experts|"
    # numbers of a machine, as they are typed
    r"network.latency_s|num_nodes\?"
)


@pytest.fixture(autouse=True)
def _own_main(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def _app(page: str, **query: str) -> AppTest:
    app = AppTest.from_string(
        f"from planner.app.main import open_page\nopen_page({page!r})", default_timeout=600
    )
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def _texts(app: AppTest) -> Iterator[str]:
    """What a visitor reads: texts, messages, labels, helps, tables; not code that is copied."""
    assert not app.exception
    for kind in ("title", "header", "subheader", "markdown", "caption", "info", "warning"):
        yield from (str(each.value) for each in app.get(kind))
    for kind in ("success", "error", "metric"):
        yield from (str(each.value) for each in app.get(kind))
    for kind in ("number_input", "selectbox", "text_input", "text_area", "multiselect", "checkbox"):
        for each in app.get(kind):
            yield from (str(each.label), str(each.help or ""), *map(str, _options(each)))
    for each in (*app.dataframe, *app.table):
        frame = each.value
        yield from map(str, frame.columns)
        for column in frame.columns:
            # names of numbers, as the control for other numbers of the machine takes them
            if column not in ("quantity", "fact", "source"):
                yield from map(str, frame[column])


def _options(control: Any) -> list[Any]:
    options = getattr(control, "options", [])
    # switches are words of the frameworks, and typed as such
    return [] if getattr(control, "key", "") in ("switches", "frameworks") else options


def _check(app: AppTest, code: re.Pattern[str] = _CODE) -> None:
    for text in _texts(app):
        if "Written by `benchmarks" in text or text.startswith("A JSON object"):
            continue  # documents that are shown as they are
        plain = re.sub(r"`[^`]*`", "", text.replace("\\", "")) if "=" in text else text
        plain = _ALLOWED.sub("", plain.replace("\\", ""))
        assert not (match := code.search(plain)), (match[0], text)


@pytest.mark.parametrize("page", PAGES)
def test_every_page(page: str) -> None:
    # this page shows columns of tables of runs by their names
    code = _COMMAND if page == "trust" else _CODE
    _check(_app(page, **_JOB), code)
    _check(_app(page), code)


@pytest.mark.parametrize("view", _VIEWS)
def test_every_view(view: str) -> None:
    _check(_app("fit", **_JOB, view=view))
    _check(_app("fit", **_JOB, view=view, machine="vsc-5", dataset="openwebtext", power="2kW"))


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question(name: str) -> None:
    _check(_app("ask", **_JOB, question=name, answer="1", ask_most_nodes="4"))


@pytest.mark.parametrize("machine", names("machine"))
def test_every_machine(machine: str) -> None:
    texts = [load_machine(machine).evidence, *load_machine(machine).notes]
    texts += [queue.note for queue in load_machine(machine).scheduler.queues]
    for text in texts:
        assert not re.search(r"--(network|set|device|nodes)\b|`planner|planner [a-z]+ -", text)


_REFUSED: list[tuple[str, dict[str, str]]] = [
    ("fit", {"model": "nonsense", "machine": "nowhere", "nodes": "abc"}),
    ("fit", {"model": "here/nothing"}),
    ("fit", {"nodes": "100000"}),
    ("fit", {"model": "llama-3.1-405b", "nodes": "1"}),
    ("fit", {"lora": "8", "model": "unet3d-mlperf"}),
    ("fit", {"set": "nonsense=3"}),
    ("fit", {"seq": "100000", "model": "gpt2"}),
    ("fit", {"expert_imbalance": "3", "model": "gpt2"}),
    ("fit", {"tokens": "many", "ramp": "x", "document_lengths": "-1"}),
    ("fit", {"frameworks": "fsdp2", "switches": "fsdp2+nonsense"}),
    ("fit", {"layout": "fsdp2~tp.3", "model": "gpt2"}),
    ("fit", {"layout": "fsdp2~dp.8~micro_batch.3~zero_stage.3", "model": "gpt2"}),
    ("fit", {"network": "sockets", "machine": "polaris"}),
    ("layout", {"layout": "megatron-lm~dp.1~tp.4~pp.3~schedule.1f1b", "model": "gpt2"}),
    ("layout", {"layout": "nonsense"}),
    ("machines", {"model": "llama-3.1-405b", "nodes": "560"}),
    ("collectives", {"ranks": "100000"}),
    ("ask", {"question": "deadline"}),
    ("ask", {"question": "deadline", "answer": "1", "tokens": "300B", "ask_most_jobs": "2"}),
    ("ask", {"question": "nodes", "answer": "1", "ask_most_nodes": "100000"}),
    ("ask", {"question": "machine", "ask_against": "nowhere"}),
    ("ask", {"question": "machine", "ask_against": ""}),
    ("ask", {"question": "data", "ask_dataset": "nowhere"}),
    ("ask", {"question": "zero", "batch": "7", "ask_alone": "True"}),
    ("ask", {"question": "model", "answer": "1", "ask_family": "nowhere"}),
    ("ask", {"question": "cheapest", "answer": "1", "ask_node_power": "much", "ask_days": "3"}),
]


@pytest.mark.parametrize(("page", "query"), _REFUSED)
def test_every_refusal(page: str, query: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _check(_app(page, **query))


def test_names_of_fields_are_written_as_their_labels() -> None:
    text = "global_batch = 7 is no multiple of dp * micro_batch = 2; use a smaller num_heads"
    assert on_page(text) == text.replace("_", " ")
    for kept in ("device.memory_bytes=80GB", "nvidia_smi", "global_batch.json"):
        assert on_page(kept) == kept
