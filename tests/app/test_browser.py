"""The explorer in a real browser: every page, widths, themes, uploads, downloads, live shards."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.choose.plan import Plan
from tests import ROOT

pytestmark = pytest.mark.alone

_LARGEST = "?model=llama-3.1-405b&machine=aurora&nodes=10000&batch=120000&seq=8192"
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "vocab_size": 32000,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "max_position_embeddings": 4096,
}


_SMALL = "?model=gpt2&nodes=1&batch=64&seq=1024"


def test_pages_load_at_three_widths_in_both_themes(window: Callable[[], Any]) -> None:
    """Nothing stands out of the window; words can be read, as axe-core checks WCAG A and AA."""
    from planner.app.main import PAGES

    here, schemes = window(), ["light", "dark"]
    here.page.emulate_media(color_scheme="light")
    for path, module in PAGES.items():
        # a page has an address of its own, the first one too
        here.open(path + _SMALL).drawn()
        assert here.page.locator("h1").inner_text() == module.TITLE
        assert here.page.get_by_text("Page not found").count() == 0
        if path in ("fit", "layout"):
            # the answer is on the first screen, also of a phone
            for width, height in ((1440, 900), (390, 844)):
                here.page.set_viewport_size({"width": width, "height": height})
                answer = here.place(here.page.locator("[data-testid=stAlert]").first)
                assert answer["y"] < height - 44
                assert path == "fit" or answer["y"] + answer["height"] < height
        # also what is folded away
        if path in ("fit", "layout", "ask"):
            here.page.get_by_text("More about the job").first.click()
            here.settle()
        here.page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        for rules in (_RULES, _COLOURS):
            _stands_in(here, (800, 390, 1280))
            here.page.wait_for_function(_THEMED, arg=schemes[0])
            assert not _unreadable(here.settle(), rules), (path, schemes)
            # what axe-core does not look at
            here.eventually(lambda: set(here.page.evaluate(_TICKS)) <= {_INKS[schemes[0]]})
            if rules is _RULES:
                # the next page begins with the theme in which this one ends
                schemes.reverse()
                here.page.emulate_media(color_scheme=schemes[0])


def test_no_bar_of_tools_lies_over_figures_or_headings_of_a_phone(
    window: Callable[[], Any],
) -> None:
    here = window()
    here.page.set_viewport_size({"width": 390, "height": 844})
    here.open(f"{_SMALL}&view=Layouts").drawn()
    page = here.page
    page.locator(".modebar").first.wait_for(state="attached")
    page.locator(".modebar:visible").first.wait_for(state="detached")
    table = page.locator("[data-testid=stDataFrame]").first
    table.hover()
    tools = page.locator("[data-testid=stElementToolbar]:visible").first
    tools.wait_for()
    heading = page.locator("h2", has_text="Layouts that fit")
    top, above = here.steady(lambda: (tools.bounding_box(), heading.bounding_box()))
    assert top["y"] >= above["y"] + above["height"] - 1
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator(".js-plotly-plot").first.hover()
    page.locator(".modebar:visible").first.wait_for()


def _stands_in(here: Any, widths: tuple[int, ...]) -> None:
    """Wait until nothing stands out of windows of some widths: figures follow a moment later."""
    for width in widths:
        here.page.set_viewport_size({"width": width, "height": 900})
        here.page.wait_for_function(
            "w => document.querySelector('[data-testid=stMain]').scrollWidth <= w", arg=width
        )


_TICKS = "() => [...document.querySelectorAll('.xtick text')].map(t => getComputedStyle(t).fill)"
_THEMED = """scheme => getComputedStyle(document.querySelector('[data-testid=stApp]')).colorScheme
  === scheme && !document.getAnimations().some(each => each instanceof CSSTransition)"""
"""The page has a theme's colours, and no colour is on its way to another."""
_INKS = {"light": "rgb(51, 51, 51)", "dark": "rgb(224, 224, 224)"}
_RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "rules": {"heading-order": {"enabled": True}},
}
_COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
# all that a theme changes


def _unreadable(here: Any, rules: dict[str, Any]) -> list[tuple[str, str]]:
    """What axe-core complains of, each with where; nothing where it is not installed."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        return []
    found = Axe().run(here.page, options=rules).response["violations"]
    return [(rule["id"], node["html"][:200]) for rule in found for node in rule["nodes"]]


def test_first_page_is_read_aloud_and_reached_by_keys(window: Callable[[], Any]) -> None:
    here = window().open(_SMALL)
    # the browser fetches the drawing library after the page
    here.page.wait_for_function(
        """() => [...document.querySelectorAll('[data-testid=stPlotlyChart]')].some(
            e => e.outerHTML.includes('Memory against step time: '))"""
    )
    wanted = {"Model", "Nodes"}
    # where a control is drawn anew, keys begin again at the first one
    for _ in range(100):
        here.page.keyboard.press("Tab")
        focus = "() => document.activeElement.getAttribute('aria-label') || ''"
        name = here.page.evaluate(focus)
        wanted = {each for each in wanted if each not in name}
        if not wanted:
            break
    assert not wanted


def test_downloads_parse_and_say_what_they_are(window: Callable[[], Any]) -> None:
    here = window().open("?model=gpt2&nodes=1&batch=64&seq=1024&view=Files")

    def got(button: str) -> tuple[str, Path]:
        with here.page.expect_download() as download:
            here.page.get_by_role("button", name=button).click()
        return download.value.suggested_filename, Path(download.value.path())

    name, path = got("Plan (JSON)")
    plan = json.loads(path.read_text())
    assert (name, plan["fits"]) == ("gpt2-polaris-1-plan.json", True)
    name, path = got("Report to print (HTML)")
    assert name == "gpt2-polaris-1-report.html"
    assert path.read_text(encoding="utf-8") == Plan.from_json(json.dumps(plan)).report()
    name, path = got("Layouts (CSV)")
    header, *rows = path.read_text().splitlines()
    assert name == "gpt2-polaris-1-layouts.csv"
    assert "step_time_s" in header.split(",")
    assert len(rows) == len(plan["ranked"]) + (plan["recommended"] not in plan["ranked"])
    name, path = got("Files to run it (ZIP)")
    assert name == "gpt2-polaris-1-run.zip"
    with zipfile.ZipFile(path) as files:
        assert "#PBS" in files.read("job.sh").decode()
        written = json.loads(files.read("layout.json"))
    assert written["layout"] == plan["recommended"]["layout"]
    name, path = got("Small runs to measure first (ZIP)")
    assert name == "gpt2-polaris-1-probe.zip"
    with zipfile.ZipFile(path) as files:
        assert "#PBS" in files.read("job.sh").decode()
        assert json.loads(files.read("1/layout.json"))["layout"]["dp"] <= 4


def _drop(here: Any, name: str, data: bytes) -> None:
    """Drop a file at the place of the page, which leads to Your run."""
    here.settle().page.locator("[data-testid=stMain] input[type=file]").last.set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    )
    here.page.locator("h1", has_text="Your run").wait_for()
    # what the page calls it, whether it reads it or not; browsers write a quotation mark as %22
    here.reads(re.sub(r"[^\w.-]+", "_", name.split('"')[0]).strip("._")).settle()


def test_own_model_is_named_changed_put_aside_and_removed(window: Callable[[], Any]) -> None:
    here = window().open("?nodes=1")
    hostile = '<img src=x onerror="window.hit=1">[a](http://b).json'
    _drop(here, hostile, json.dumps(_CONFIG).encode())
    verdict = here.go("Which strategy fits?").says("img_src_x")
    assert here.settle().page.evaluate("() => window.hit === undefined")
    assert "(yours)" in here.value("Model")
    # a copied link plans the same model in another window
    there = window().open(here.asked)
    assert there.says("img_src_x") == verdict
    assert there.says("Numbers of") == here.says("Numbers of")
    assert there.value("Model") == here.value("Model")
    text = _numbers_to_change(here)
    text.fill(json.dumps({**_CONFIG, "num_hidden_layers": 16}))
    here.page.get_by_role("textbox", name="Name").fill("deeper")
    here.page.keyboard.press("Tab")
    here.settle().page.get_by_role("button", name="Use these numbers").click()
    here.says("deeper on 1 node")
    here.pick("Model", "gpt2-xl").says("gpt2-xl on 1 node")
    assert "config=" not in here.asked
    here.pick("Model", "deeper").says("deeper on 1 node")
    here.settle().page.get_by_role("button", name="Remove").first.click()
    here.says("llama-3-8b")
    assert here.value("Model") == "llama-3-8b"
    assert here.asked == "?nodes=1"


def _numbers_to_change(here: Any) -> Any:
    """Unfold the numbers of the job's model; return their text."""
    for text in ("More about the job", "Your own model or machine"):
        here.settle().page.get_by_text(text).first.click()
    here.settle().page.get_by_role("button", name="Change its numbers").first.click()
    description = here.settle().page.get_by_role("textbox", name="Description")
    description.wait_for()
    return description


def test_model_of_the_hub_is_asked_by_its_name(window: Callable[[], Any]) -> None:
    here = window().open("?nodes=1").pick("Model", "here/small")
    verdict = here.says("here/small on 1 node")
    assert here.asked == "?model=here%2Fsmall&nodes=1"
    # a copied link plans the same model in another window, and not that of another's last name
    there = window().open(here.asked)
    assert there.says("here/small on 1 node") == verdict
    assert there.value("Model") == "here/small"
    assert there.open("?nodes=1&model=there/small@v2").says("there/small@v2 on 1 node") != verdict
    there.page.get_by_role("tab", name="Files").click()
    with there.page.expect_download() as download:
        there.page.get_by_role("button", name="Plan (JSON)").click()
    assert download.value.suggested_filename == "there-small-v2-polaris-1-plan.json"
    # its numbers can be changed as those of the catalogue can
    assert json.loads(_numbers_to_change(there).input_value())["num_hidden_layers"] == 6
    # what cannot be had is said, and something else shown
    here.pick("Model", "here/gated").says("here/gated is gated")
    assert here.value("Model") == "llama-3-8b"
    here.pick("Model", "here/nothing").says("that you may read")
    # a name is pasted over the shown one, of which it is a longer form
    assert here.value("Model") == "llama-3-8b"
    here.page.get_by_role("combobox", name="Model").first.fill("llama-3.1-8b")
    here.page.keyboard.press("Enter")
    here.says("llama-3.1-8b on 1 node")
    # a part of a name suffices, as in any list
    here.pick("Model", "gpt2-x").says("gpt2-xl on 1 node")


def test_wrong_files_are_answered_kindly(window: Callable[[], Any], tmp_path: Path) -> None:
    here = window().open("?nodes=1")
    _drop(here, "config.json", b"this is not json")
    here.says("config.json is nothing that is read here")
    nobody = {**_CONFIG, "model_type": "<b>nobody</b>"}
    _drop(here, "nobody.json", json.dumps(nobody).encode())
    here.says("unknown model_type")
    assert here.settle().page.locator("[data-testid=stMain] b", has_text="nobody").count() == 0
    _drop(here, "cut.toml", b"num_nodes = ")
    here.says("not valid TOML")
    _drop(here, "mine.toml", (ROOT / "hardware_profiles" / "polaris.toml").read_bytes())
    assert here.value("Machine") == "mine (yours)"
    here.go("Which strategy fits?").says("on 1 node of mine")
    path = tmp_path / "weights.json"
    path.write_bytes(b" " * 60_000_000)
    here.settle().page.locator("input[type=file]").last.set_input_files(path)
    here.page.get_by_text(re.compile(r"50(\.0)?MB or smaller|exceeds|too large")).first.wait_for()


def test_configuration_files_become_the_job(window: Callable[[], Any]) -> None:
    here = window().open(f"layout{_SMALL}")
    passes = '"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8'
    text = f'{{{passes}, "zero_optimization": {{"stage": 2}}}}'
    _drop(here, "ds_config.json", text.encode())
    here.says("DeepSpeed's configuration")
    assert "4 replicas, ZeRO-2, micro-batch 2" in here.value("Layout of the run")
    assert here.value("Model") == "gpt2"
    _drop(here, "other.json", b'{"zero_optimization": ')
    here.says("other.json is not valid JSON")
    here.go("One layout")
    assert "4 replicas, ZeRO-2, micro-batch 2" in here.value("Layout")


_LOG = """[2024-07-17][INFO] - [0/4] Using device='cuda' with backend='DDP' + 'nccl' for training.
[2024-07-17][INFO] - Tokens per iteration: 262,144
[2024-07-17][INFO] - Model size: num_params=85003776
""" + "".join(
    f"step={i}0 loss=1.5 dt=0.285 tps=919803 tps_per_gpu=229951 mfu=45.9\n" for i in range(1, 13)
)

_MARKS = [
    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": 1e5 * i, "dur": 1e5}
    for i in range(6)
]
_TRACE = json.dumps({"schemaVersion": 1, "traceEvents": _MARKS}).encode()


def test_a_log_is_compared_and_shards_run_and_stop(window: Callable[[], Any]) -> None:
    here = window().open("?machine=polaris&nodes=2")
    _drop(here, "run.log", _LOG.encode())
    here.says("inside the estimate's interval")
    assert here.value("Model") == "wordplay-85m-char"
    assert here.value("Nodes") == "1"
    here.page.get_by_role("button", name="Learn from this run").click()
    here.reads("corrected by 1 measured run (run.log)")
    here.settle().go("Which strategy fits?").reads("corrected by 1 measured run (run.log)")
    assert "wordplay-85m-char" in here.value("Model")
    # a profile is no text, and states no job
    _drop(here, "trace.json.gz", gzip.compress(_TRACE))
    here.reads("torch profiler log, 6 steps")
    pytest.importorskip("torch", reason="no torch: the live validation needs it")
    page, bar = here.settle().page, "[data-testid=stProgress]"
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector(bar)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("Stopped:").wait_for()
    here.settle()
    # one strategy is enough to see the end
    page.get_by_role("button", name="Remove zero3").or_(
        page.locator("[data-baseweb=tag]", has_text="zero3").locator("[role=presentation], svg")
    ).first.click()
    here.settle()
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector(bar)
    page.wait_for_selector(bar, state="detached", timeout=300_000)
    assert here.settle().page.get_by_text("Stopped:").count() == 0


def test_the_largest_job_answers_every_change(window: Callable[[], Any]) -> None:
    here = window().open(_LARGEST)
    here.says("on 10,000 nodes")
    here.number("Nodes", 5000).says("on 5,000 nodes")
    before = here.settle().says("on 5,000 nodes")
    here.number("Sequence [tokens]", 4096).says("x 4,096 tokens a step")
    assert here.settle().says("on 5,000 nodes") != before
    here.pick("Model", "gpt3-175b").says("gpt3-175b")
