"""The command, the Python lines and the link of a job: each gives the step time of the page."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from streamlit.testing.v1 import AppTest

from planner.app import link
from planner.app.address import QueryReader
from planner.app.controls import elsewhere, page_job
from planner.app.draw import escape
from planner.app.views import fit
from planner.app.views.layouts import one_layout
from planner.ask import QUESTIONS
from planner.choose.planning import estimate, plan_job
from planner.cli import main
from planner.describe.job_description import JobDescription
from planner.errors import FITS, NOTHING_FITS
from planner.show.job_texts import EXPLORER, address
from tests.ask.jobs import OWN

_SMALL = {"model": "gpt2", "nodes": "2", "batch": "64"}
_JOBS = [
    {},
    _SMALL,
    {**_SMALL, "set": "network.latency_s=3us\ndevice.memory_bytes=20GB", "free": "10"},
    {"model": "gpt2-xl", "nodes": "1", "devices": "2", "batch": "32"},
    {**_SMALL, "network": "sockets", "set": "network.latency_s=5us"},
    {**_SMALL, "frameworks": "fsdp2,ddp", "switches": "fsdp2+compile"},
    {**_SMALL, "nodes": "3", "tolerance": "0", "exact": "True"},
    {"model": "llama-2-7b", "nodes": "1", "lora": "16", "lora_targets": "query,value"},
    {**_SMALL, "document_lengths": "100,600", "seq": "512", "tokens": "1.5B"},
    {"model": "gpt2", "machine": "jean-zay-v100", "nodes": "2", "optimizer": "sgd"},
    {"model": "mixtral-8x7b", "machine": "dgx-h100", "nodes": "4", "expert_imbalance": "1.5"},
    {"model": "vit-h-14", "machine": "vsc-5", "nodes": "1", "batch": "256"},
    {**_SMALL, "frozen": "embedding", "dropout": "0.0", "ramp": "1B:32,2B:48", "tokens": "3B"},
]


def _request(query: dict[str, str]) -> page_job.PageRequest:
    request = page_job.read(QueryReader(dict(query)))
    assert request.job is not None, request.problem
    assert not request.reader.messages
    return request


def _step(request: page_job.PageRequest) -> float:
    best = plan_job(request.job, request.job.top).recommended
    assert best is not None
    return best.step_time_s


def _printed(words: list[str]) -> str:
    """Run the command line, and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code in (FITS, NOTHING_FITS, None)
    return out.getvalue()


def _run(texts: tuple[str, str]) -> tuple[Any, Any]:
    """Run the command and the Python lines; return what both answer."""
    program, *words = shlex.split(texts[0])
    assert program == "planner"
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(texts[1], names)
    return json.loads(_printed([*words, "--json"])), names["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("query", _JOBS, ids=lambda query: "&".join(map("=".join, query.items())))
def test_all_ways_to_a_plan_give_the_step_of_the_page(query: dict[str, str]) -> None:
    request = _request(query)
    step = _step(request)
    command, python = _run(fit.elsewhere(request.job, request.description))
    assert command["recommended"]["step_time_s"] == step
    assert python.recommended.step_time_s == step
    # the link of the command line opens the same job
    words = [word for word in shlex.split(fit.elsewhere(request.job, request.description)[0])[1:]]
    url = _link(_printed(words))
    opened = _request(dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query)))
    assert opened.job.replaced(top=20).key == request.job.replaced(top=20).key


def _link(text: str) -> str:
    line = text.splitlines()[-1]
    assert line.startswith(f"Link:   {EXPLORER}")
    assert line.endswith(" (planner app)")
    return line.split()[1]


@pytest.mark.slow
@pytest.mark.parametrize("query", _JOBS[1:4])
def test_all_ways_to_a_layout_give_the_step_of_the_page(query: dict[str, str]) -> None:
    first = _request(query)
    best = plan_job(first.job, 20).ranked[-1]
    request = _request({**query, "layout": link.of(best)})
    shown = estimate(
        request.job.model,
        request.job.machine,
        best.layout,
        workload=request.job.workload,
        framework=best.framework,
    )
    texts = one_layout.elsewhere(request.job, request.description)
    assert texts is not None
    command, python = _run(texts)
    assert command["step_time_s"] == python.step_time_s == shown.step_time_s
    url = _link(_printed(shlex.split(texts[0])[1:]))
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
    opened = _request(query)
    assert link.unpack_layout(opened.job.layout) == (best.layout, best.framework)
    assert opened.job.key == request.job.replaced(nodes=opened.job.nodes).key


def test_own_files_are_named_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.describe.catalogue import folder

    own = link.read_own((folder("model") / "gpt2.toml").read_bytes(), "mine.toml")
    machine = link.read_own((folder("machine") / "vsc-5.toml").read_bytes(), "here.toml")
    query = {"config": link.pack_own(own), "profile": link.pack_own(machine), "nodes": "2"}
    request = _request(query)
    monkeypatch.chdir(tmp_path)
    for name, text in elsewhere.own_files(request).items():
        Path(name).write_text(text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.toml", "mine.toml"]
    command, python = _run(fit.elsewhere(request.job, request.description))
    assert command["recommended"]["step_time_s"] == _step(request)
    assert python.recommended.step_time_s == _step(request)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "mine.toml"},
        {"machine": "here.toml"},
        {"frameworks": ("mine.toml",)},
        {"measured": ("runs.csv",)},
        {"leave_free": 2.5},
    ],
)
def test_a_job_of_own_files_has_no_link(fields: dict[str, Any]) -> None:
    job = {"model": "gpt2", "machine": "polaris"}
    assert address(JobDescription(**job)).startswith(EXPLORER)
    assert address(JobDescription(**{**job, **fields})) == ""


def _texts(path: str, **query: str) -> tuple[AppTest, tuple[str, str]]:
    """Open a page; return it with the command and the Python lines that it offers, if any."""
    main_before = sys.modules["__main__"]
    app = AppTest.from_string(
        f"from planner.app.main import open_page\nopen_page({path!r})", default_timeout=600
    )
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    # AppTest leaves its page behind, which a process started later would run
    sys.modules["__main__"] = main_before
    assert not app.exception
    command, *python = [each.value for each in app.code[:-1]]
    assert command.startswith("planner ")
    return app, (command, python[0] if python else "")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_all_ways_to_an_answer_give_the_sentence_of_the_page(name: str) -> None:
    options = {
        f"ask_{k}": " ".join(v) if isinstance(v, tuple) else str(v)
        for k, v in OWN[name].items()
        if k != "nodes"
    }
    query = {**_SMALL, "seq": "1024", "tokens": "1B", **options}
    app, texts = _texts("ask", question=name, answer="1", **query)
    [shown] = [*app.success, *app.error]
    command, python = _run(texts)
    assert shown.value == escape(python.verdict)
    assert command == json.loads(python.to_json())


@pytest.mark.parametrize("machine", ["polaris", "vsc-5"])
def test_the_command_prints_the_facts_of_the_machine(machine: str) -> None:
    app, (command, python) = _texts("machines", **_SMALL, machine=machine)
    assert not python
    printed = " ".join(_printed(shlex.split(command)[1:]).split())
    facts = next(each.value for each in app.dataframe if "kind" in each.value)
    assert len(facts) > 20
    for value, kind in zip(facts["value"], facts["kind"], strict=True):
        assert str(value) in printed, value
        assert kind in printed


@pytest.mark.parametrize(
    "query",
    [{}, {"op": "all-gather", "ranks": "16", "apart": "4", "size": "1 MiB"}, {"op": "send-recv"}],
)
def test_the_command_prints_the_times_of_the_collective(query: dict[str, str]) -> None:
    app, (command, python) = _texts("collectives", **_SMALL, **query)
    assert not python
    printed = _printed(shlex.split(command)[1:])
    [table] = [each.value for each in app.dataframe]
    assert len(table)
    for row in table.itertuples(index=False):
        name = "<- taken" if row[0] == "the library's choice" else row[0]
        assert any(name in line and row[1] in line for line in printed.splitlines()), row
