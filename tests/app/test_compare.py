"""Compare and why not: pins in the address, hostile ones, and answers to any layout."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="no streamlit: pip install '.[app]'")

from planner.app.link import pack_pins, unpack_pins
from planner.errors import PlannerError
from tests.app.test_app import _app

# every page draws whole plans
pytestmark = pytest.mark.slow

SMALL = {"model": "gpt2", "nodes": "1", "batch": "64", "seq": "1024"}


def bomb(size: int) -> str:
    """A short word that expands to many bytes."""
    return base64.urlsafe_b64encode(zlib.compress(b"[" * size, 9)).decode()


def words(app: Any) -> str:
    kinds = ("markdown", "warning", "error", "caption")
    return " ".join(str(e.value) for kind in kinds for e in app.get(kind)).replace("\\", "")


def facts(app: Any, name: str) -> list[str]:
    """One fact of all compared answers."""
    table = app.dataframe[0].value
    return list(table[table[""] == name].iloc[0])[1:]


def test_what_estimates_cannot_rank_is_said() -> None:
    job = {"model": "llama-3-8b", "nodes": "4"}
    pins = [job, {**job, "machine": "a100-40gb-roce", "nodes": "2"}, {**job, "nodes": "16"}]
    lines = [str(each.value) for each in _app("compare", pins=pack_pins(pins)).markdown]
    close, far = (line for line in lines if "against A" in line)
    assert "too close for estimates to rank" in close
    assert "overlap" not in far
    assert "too close" not in far


def test_pins_are_read_back() -> None:
    pins = [SMALL, {"model": "llama-3-8b", "layout": "fsdp2~dp.16~zero_stage.3"}]
    assert unpack_pins(pack_pins(pins)) == pins
    assert unpack_pins("") == [] == unpack_pins(pack_pins([]))
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", pack_pins(pins))
    assert len(unpack_pins(pack_pins([SMALL] * 9))) == 4


@pytest.mark.parametrize(
    "packed", ["x", "<b>", "eNo=", "%00", bomb(10**7), pack_pins([SMALL])[:-5], "A" * 30_000]
)
def test_damaged_pins_get_a_sentence_and_the_page_goes_on(packed: str) -> None:
    with pytest.raises(PlannerError, match="damaged"):
        unpack_pins(packed)
    app = _app("compare", pins=packed, **SMALL)
    assert not app.exception
    assert "pinned answers in the address are damaged" in words(app)
    # the page's own job is still there, and others can be added to it
    assert not app.button(key="change_add").disabled
    assert not _app("fit", pins=packed, **SMALL).exception


def test_pins_of_other_programs_are_no_pins() -> None:
    for value in (3, "text", {"a": 1}, [1], [["a"]], None):
        text = json.dumps(value).encode()
        with pytest.raises(PlannerError):
            unpack_pins(base64.urlsafe_b64encode(zlib.compress(text)).decode())


def test_a_pin_that_states_no_job_is_told_beside_the_others() -> None:
    odd = [
        {**SMALL, "machine": "nosuch"},
        {**SMALL, "layout": "fsdp2~dp.3~<script>"},
        {**SMALL, "batch": "abc", "config": "x", "pins": "y"},
    ]
    app = _app("compare", pins=pack_pins([SMALL, *odd]))
    assert not app.exception
    told = [str(e.value).replace("\\", "") for e in app.warning]
    assert any("B: Machine: 'nosuch' is not valid" in text for text in told)
    assert any(text.startswith("C: ") and "address" in text for text in told)
    assert any("D: " in text and "'abc' is not valid" in text for text in told)
    # nothing of them runs, and all that can be planned is compared
    assert list(app.dataframe[0].value.columns) == ["", "A", "B", "D"]


def test_differences_on_the_page_are_those_of_the_estimates() -> None:
    pins = [SMALL, {**SMALL, "batch": "128"}, {**SMALL, "machine": "dgx-h100"}]
    app = _app("compare", pins=pack_pins(pins))
    assert not app.exception
    said = words(app)
    assert re.search(
        "B: polaris, batch 128(, [a-z0-9-]+)? against A: step for as many tokens", said
    )
    assert re.search("C: dgx-h100, batch 64(, [a-z0-9-]+)? against A: step ", said)
    parts = app.dataframe[1].value
    assert list(parts.columns) == ["part", "A", "B", "B - A", "C", "C - A"]
    app.button(key="remove_A").click().run()
    assert facts(app, "machine") == ["polaris", "dgx-h100"]
    app.button(key="use_B").click().run()
    assert "machine=dgx-h100" in " ".join(str(e.value) for e in app.code)


def test_what_does_not_fit_is_told_and_the_rest_is_compared() -> None:
    job = {"model": "llama-3-8b", "machine": "polaris", "nodes": "4"}
    layouts = (f"fsdp2~dp.16~zero_stage.3~micro_batch.{n}~grad_accumulation.16" for n in (1, 2))
    chosen = [{**job, "layout": each} for each in layouts]
    large = {"model": "llama-3.1-405b", "machine": "workstation-1x4090", "nodes": "1"}
    app = _app("compare", pins=pack_pins([job, large, *chosen]))
    assert not app.exception
    assert any("B: does not fit" in str(e.value).replace("\\", "") for e in app.warning)
    assert list(app.dataframe[0].value.columns) == ["", "A", "C", "D"]
    # answers that differ in the layout alone are named by it
    assert "C: fsdp2, dp16 zero3 mb1x16 against A" in words(app)


def test_one_change_adds_an_answer_until_there_are_four() -> None:
    app = _app("compare", **SMALL)
    for what, value in (("Batch", 128), ("Framework", "fsdp2"), ("Machine", "vsc-5")):
        app.selectbox(key="change_what").set_value(what).run()
        control = app.number_input if what == "Batch" else app.selectbox
        control(key=f"change_to_{what}").set_value(value).run()
        # as many devices: a node of polaris has four, one of vsc-5 two
        assert ("Nodes of vsc-5: 2, for the 4 devices of A" in words(app)) is (what == "Machine")
        app.button(key="change_add").click().run()
        assert not app.exception
    assert facts(app, "batch") == ["64", "128", "64", "64"]
    assert facts(app, "framework")[2] == "fsdp2"
    assert facts(app, "nodes")[3] == "2"
    assert app.button(key="change_add").disabled


def test_any_layout_is_answered_on_one_layout() -> None:
    app = _app("layout", why="tp5")
    assert "tp5 is not legal: tp = 5 does not divide num heads = 32" in words(app)
    assert "Cheapest change: tp 5 -> " in words(app).replace("**", "").replace("\\", "")
    app.button(key="take_Show the changed layout").click().run()
    assert not app.exception
    app.text_input(key="why").set_value("dp4 <img src=x>").run()
    assert "'<img' is not part of a layout" in words(app)
    app.text_input(key="why").set_value("dp16 zero3 mb1x16 full recompute [fsdp2]").run()
    assert "fits, but" in words(app)
    assert app.text_input(key="why").value.startswith("dp16")
    # a strategy has the layout that the first page gives it
    app.text_input(key="why").set_value("DP").run()
    assert "ddp, 16 replicas, micro-batch 1 x 16, full recompute does not fit: needs" in words(app)


def test_a_refused_edit_is_answered_in_full() -> None:
    app = _app("layout", layout="fsdp2~dp.16~zero_stage.3~micro_batch.1~grad_accumulation.16")
    field = next(each for each in app.number_input if each.label == "tp")
    field.set_value(3)
    next(each for each in app.button if each.label == "Estimate").click().run()
    assert not app.exception
    said = words(app)
    assert "tp = 3 does not divide" in said
    assert "Cheapest change" in said


@pytest.mark.alone
def test_pins_survive_reload_back_and_other_pages(window: Callable[[], Any]) -> None:
    here = window().open("?model=gpt2&nodes=1&batch=64&seq=1024")
    here.page.get_by_role("button", name="Pin to compare").click()
    here.settle().page.get_by_role("button", name="Pinned (1 of 4)").wait_for()
    assert "pins=" in here.asked
    here.page.reload()
    here.settle().page.get_by_role("button", name="Pinned (1 of 4)").wait_for()
    here.number("Nodes", 2)
    here.page.get_by_role("button", name="Pin to compare (1 of 4)").wait_for()
    here.go("One layout")
    here.page.get_by_role("button", name="Pin to compare (1 of 4)").click()
    here.settle().go("Compare").reads("against A")
    two = here.asked
    here.page.get_by_role("button", name="Add to compare").click()
    here.settle().page.get_by_role("button", name="Remove C").wait_for()
    three = here.asked
    assert three != two
    here.page.reload()
    here.settle().page.get_by_role("button", name="Remove C").wait_for()
    assert here.asked == three
    here.back()
    here.page.get_by_role("button", name="Remove C").wait_for(state="detached")
    assert here.asked == two
    # a link alone holds everything
    window().open(three).page.get_by_role("button", name="Remove C").wait_for()
