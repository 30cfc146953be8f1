"""Where the explorer's pages meet, in a real browser: one job on every page and in the address."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from planner.app import link
from planner.choose.verdicts.layout_words import layout_words

pytestmark = pytest.mark.alone


def _link(here: Any) -> str:
    """What the page says its own address is."""
    return str(here.settle().page.locator("[data-testid=stCode]").last.inner_text()).strip()


def _asked(address: str) -> dict[str, str]:
    """What an address asks, in any order."""
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))


def _numbers(here: Any) -> str:
    """Which layout the numbers on top are of."""
    return str(here.settle().page.get_by_text(re.compile("^Numbers of the")).first.inner_text())


def test_a_selected_layout_is_carried_and_never_becomes_another(window: Callable[[], Any]) -> None:
    here = window().open("?model=gpt2-xl&nodes=2&view=Layouts")
    here.select(3).reads("Numbers of the chosen layout")
    chosen, address = _numbers(here), here.asked
    layout, framework = link.unpack_layout(_asked(address)["layout"])
    told = f"4. {framework}, {layout_words(layout, brief=True)}"
    assert _link(here) == here.page.url
    # the other page shows it, also after a reload and in a copied link
    here.go("One layout")
    assert here.value("Layout").startswith(told)
    job = {name: value for name, value in _asked(address).items() if name != "view"}
    assert _asked(here.asked) == job
    assert _link(here) == here.page.url
    here.page.reload()
    assert here.value("Layout").startswith(told)
    there = window().open(address)
    assert _numbers(there) == chosen
    # back on the first page it is still selected
    here.go("Which strategy").reads("Numbers of the chosen layout")
    assert _numbers(here) == chosen
    # another job has no chosen layout
    here.number("Nodes", 1).reads("Numbers of the recommended layout")
    assert "layout=" not in here.asked
    here.back().reads("Numbers of the chosen layout")
    assert _numbers(here) == chosen


def test_back_and_forward_undo_one_act_at_a_time(window: Callable[[], Any]) -> None:
    here = window().open("?model=gpt2")
    first = here.entries
    here.number("Nodes", 2).says("on 2 nodes")
    here.number("Nodes", 3).says("on 3 nodes")
    here.pick("Model", "gpt2-medium").says("gpt2-medium on 3 nodes")
    here.go("Machines").go("Collectives")
    assert here.entries == first + 5
    here.back().page.locator("h1", has_text="Machines").wait_for()
    here.back().says("gpt2-medium on 3 nodes")
    here.back().says("gpt2 on 3 nodes")
    here.back().says("gpt2 on 2 nodes")
    assert here.value("Nodes") == "2"
    here.forward().says("gpt2 on 3 nodes")
    assert here.value("Nodes") == "3"


def test_every_page_and_a_reload_speak_of_the_same_job(window: Callable[[], Any]) -> None:
    query = "?model=mistral-7b&machine=vsc-5&nodes=2&batch=64&seq=2048"
    here, other = window().open(query), window().open()
    here.says("mistral-7b on 2 nodes of vsc-5")
    step = re.search(r"([\d.]+ \w+) a step", here.says("Fits"))
    assert step is not None
    here.go("Machines")
    assert here.value("Machine") == "vsc-5"
    here.page.reload()
    assert (here.value("Model"), here.value("Sequence [tokens]")) == ("mistral-7b", "2048")
    here.go("Collectives")
    assert here.value("Machine") == "vsc-5"
    page, _, asked = here.asked.partition("?")
    assert (page, sorted(asked.split("&"))) == ("collectives", sorted(query[1:].split("&")))
    here.go("One layout").says(f"Step: {step[1]}")
    # another window is another session
    other.number("Nodes", 2).says("llama-3-8b on 2 nodes of polaris")
    # what is typed goes along, however soon the link is clicked
    here.page.get_by_role("spinbutton", name="Nodes", exact=True).first.fill("4")
    here.go("Which strategy").says("mistral-7b on 4 nodes of vsc-5")


def test_what_is_typed_goes_along_however_soon_a_link_is_clicked(
    window: Callable[[], Any],
) -> None:
    here = window().open("layout?model=gpt2&nodes=2&batch=64&seq=1024")

    def typed(role: str, label: str, value: str, page: str) -> dict[str, str]:
        here.page.get_by_role(role, name=label, exact=True).first.fill(value)
        # a finger lets go at once: the click is there before what was typed is sent
        here.go(page, press_ms=0)
        assert _asked(_link(here)) == _asked(here.page.url)
        return _asked(here.page.url)

    job = {"model": "gpt2", "nodes": "2", "batch": "64", "seq": "1024"}
    job["nodes"] = "3"
    assert typed("spinbutton", "Nodes", "3", "Machines") == job
    assert here.value("Nodes") == "3"
    job["tokens"] = "7B"
    assert typed("textbox", "Train on [tokens]", "7B", "Questions") == job
    # what only one page asks stands in the address of that page, and waits there
    assert typed("textbox", "Other machines", "vsc-5", "One layout") == job
    assert _asked(here.go("Questions").page.url) == {**job, "ask_against": "vsc-5"}


def test_a_layout_changed_by_hand_keeps_the_batch(window: Callable[[], Any]) -> None:
    here = window().open("layout?model=llama-2-7b&nodes=2")
    here.page.get_by_text("Change this layout").click()
    here.settle()
    for field, value in (("dp", 4), ("tp", 2), ("pp", 1), ("micro batch", 2)):
        here.page.get_by_role("spinbutton", name=field, exact=True).first.fill(str(value))
    here.page.get_by_role("button", name="Estimate").click()
    assert "micro-batch 2" in here.says("4 replicas x 2-way tensor")
    here.go("Which strategy")
    assert _numbers(here).startswith(
        "Numbers of the chosen layout: megatron-lm, 4 replicas x 2-way tensor"
    )
    there = window().open(here.asked)
    assert _numbers(there) == _numbers(here)


def test_unknown_values_of_a_link_are_said(window: Callable[[], Any]) -> None:
    here = window().open("?model=nonsense&nodes=abc&machine=polaris")
    said = here.says("nonsense")
    assert "'nonsense' is not valid" in said
    assert "'abc' is not valid (use a whole number); using 4" in said
    here.says("llama-3-8b on 4 nodes")


def test_an_answer_survives_a_reload(window: Callable[[], Any]) -> None:
    here = window().open("ask?model=gpt2&nodes=2&batch=64&seq=1024&question=nodes&ask_most_nodes=4")
    here.page.get_by_role("button", name="Answer", exact=True).click()
    verdict = here.says("gpt2")
    assert _asked(here.asked)["answer"] == "1"
    here.page.reload()
    assert here.settle().says("gpt2") == verdict
    # a quick question needs no click; Back shows the answer before it
    here.page.get_by_text("Layouts", exact=True).click()
    assert here.says("GiB") != verdict
    assert _asked(here.asked)["question"] == "memory"
    here.page.reload()
    here.settle().says("GiB")
    assert here.back().says("gpt2") == verdict


def test_the_command_of_a_page_is_folded_and_copied(window: Callable[[], Any]) -> None:
    here = window().open("?model=gpt2&nodes=2&batch=64")
    command = here.page.get_by_text("planner plan gpt2 --machine polaris --nodes 2")
    assert not command.first.is_visible()
    here.page.get_by_text("The same in a terminal or in Python").click()
    command.first.wait_for()
    # what is shown last is still the link
    assert _link(here) == here.page.url
    # an unknown parameter is told
    there = window().open("?modle=gpt2")
    assert "did you mean model?" in there.says("modle")
