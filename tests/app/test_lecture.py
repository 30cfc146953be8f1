"""The page *Lecture*: steps in the address and by keys, and what it draws; it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from planner.app.views.lecture import _calls, _method, _picture, _summary, _title
from tests.lecture import CLASSES, FOLDER, KEPT

CUTS = dict(zip(("Data", "ZeRO-3", "Tensor", "Pipeline"), CLASSES, strict=True))
RECORDS = json.loads(KEPT.read_text(encoding="utf-8"))


def _page(**query: str) -> AppTest:
    app = AppTest.from_string("from planner.app.main import open_page\nopen_page('lecture')")
    for name, value in query.items():
        app.query_params[name] = value
    return app.run(timeout=600)


def _drawn(app: AppTest) -> str:
    return next(item.proto.body for item in app.get("html") if "ranks" in item.proto.body)


@pytest.mark.parametrize("cut", CUTS)
def test_every_call_has_a_picture_and_code(cut: str) -> None:
    calls, file = _calls(cut), CUTS[cut]
    assert calls == RECORDS[file]
    source = (FOLDER / f"{file}.py").read_text(encoding="utf-8")
    source += (FOLDER / "shared.py").read_text(encoding="utf-8")
    for before, after in zip([calls[0], *calls], calls, strict=False):
        sentence, code = _method(file, after["call"][0])
        assert sentence.endswith(".")
        assert all(line.strip() in source for line in code.splitlines())
        picture = _picture(_title(cut, after), sentence, before, after, file)
        assert picture.count("<h3>") == 4
        held = sum(len(rank["held"]) for rank in after["ranks"])
        assert picture.count("<i class=") == held
        sent = sum(len(rank["sent"]) for rank in after["ranks"])
        assert picture.count('class="sends"') == sent


def test_the_summary_names_what_a_step_holds_and_sends() -> None:
    # 65,536 fp32 weights and two moments: 768 KiB; a ring sends 2 x 3/4 of 256 KiB, ZeRO-3 3 x 3/4
    assert _summary("Data") == {
        "strategy": "Data",
        "holds between steps": "768 KiB",
        "holds at most": "1 MiB",
        "sends in a step": "384 KiB",
    }
    assert _summary("ZeRO-3")["holds between steps"] == "192 KiB"
    assert _summary("ZeRO-3")["sends in a step"] == "576 KiB"


@pytest.mark.slow
def test_steps_are_in_the_address_and_a_button_away() -> None:
    app = _page(strategy="ZeRO-3", step="3")
    assert not app.exception
    assert "3 of 23: All-gather, layer 0" in _drawn(app)
    assert "dist.all_gather" in app.code[0].value
    app.button[1].click().run(timeout=600)
    assert "4 of 23: Forward, layer 0" in _drawn(app)
    assert app.query_params["step"] == "4"
    # another strategy begins at its start
    app.segmented_control(key="strategy").set_value("Pipeline").run(timeout=600)
    assert "1 of 17: Start" in _drawn(app)
    assert "step" not in app.query_params


@pytest.mark.slow
def test_steps_that_are_not_there_are_said() -> None:
    app = _page(strategy="Tensor", step="99")
    assert "use 1 to 10" in app.warning[0].value
    assert "10 of 10: Update" in _drawn(app)


@pytest.mark.slow
def test_the_page_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from streamlit.testing.v1 import AppTest\n"
        "app = AppTest.from_string("
        "\"from planner.app.main import open_page\\nopen_page('lecture')\").run(timeout=600)\n"
        "assert not app.exception and app.code"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.alone
def test_keys_turn_the_steps(window: Callable[[], Any]) -> None:
    here = window().open("lecture?strategy=Tensor")
    here.reads("1 of 10: Start")
    here.page.keyboard.press("ArrowRight")
    here.reads("2 of 10: Load")
    here.settle().page.get_by_role("slider", name="Step").focus()
    here.page.keyboard.press("ArrowRight")
    here.reads("3 of 10: Forward, layers 0 and 1")
    assert "step=3" in here.asked
    here.page.keyboard.press("ArrowLeft")
    here.reads("2 of 10: Load")
    # all is reached by the tab key
    names = []
    for _ in range(24):
        here.page.keyboard.press("Tab")
        names.append(here.page.evaluate("() => document.activeElement.innerText || ''"))
    assert any("All of tensor_parallel.py" in name for name in names)
