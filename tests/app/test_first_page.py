"""The first page: the short answer, the figure whose star a slider moves, and figures to click."""

from __future__ import annotations

import gc
import math
import re
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from streamlit.testing.v1 import AppTest

from planner.app import link
from planner.choose.jobs import alternatives
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plan import Plan
from planner.choose.plots import LayoutSpace, layout_space, plan_with_space
from planner.choose.verdicts.layout_words import degree_words, estimate_words
from planner.cost.estimate import Estimate
from planner.describe.workload import Workload
from planner.show.figures import candidates

_QUERY = "?model=mistral-7b&machine=vsc-5&nodes=2&batch=64&seq=2048"
"""A job whose slider has five positions, the recommended one in the middle."""


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, LayoutSpace]:
    workload = Workload(global_batch=64, sequence_length=2048)
    return plan_with_space(JobSpec("mistral-7b", "vsc-5", nodes=2, workload=workload), 20)


@pytest.fixture(autouse=True)
def _own_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """AppTest leaves its page behind as __main__, which a process started later would run."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def _page(**query: str) -> AppTest:
    app = AppTest.from_string(
        "from planner.app.main import open_page\nopen_page('fit')", default_timeout=600
    )
    for name, value in (*urllib.parse.parse_qsl(_QUERY[1:]), *query.items()):
        app.query_params[name] = value
    return app.run()


def _headline(app: AppTest) -> str:
    (alert, *_) = (*app.success, *app.warning, *app.error)
    return str(alert.value).replace("\\", "")


@pytest.mark.slow
def test_plans_of_earlier_jobs_are_let_go(own_searches: None) -> None:
    app, alive = _page(), []
    for nodes in (1, 2, 3, 4):
        next(each for each in app.number_input if each.label == "Nodes").set_value(nodes).run()
        gc.collect()
        # `isinstance` would ask objects of other packages for attributes that they warn of
        alive.append(sum(type(each) is Plan for each in gc.get_objects()))
    assert alive[0] >= 1
    assert alive == alive[:1] * 4


@pytest.mark.slow
def test_the_slider_moves_the_choice_without_a_search(
    planned: tuple[Plan, LayoutSpace], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, space = planned
    assert plan.recommended in space.choices[1:-1]
    app = _page()
    slider = app.select_slider[0]
    start = space.choices.index(plan.recommended)
    assert slider.value == start
    assert degree_words(plan.recommended.layout) in _headline(app)
    searches = []
    monkeypatch.setattr(alternatives, "search_job", lambda *job: searches.append(job))
    for stop in (0, len(space.choices) - 1, start):
        app.select_slider[0].set_value(stop).run()
        assert not app.exception
        each = space.choices[stop]
        assert degree_words(each.layout) in _headline(app)
        # the recommended layout is no choice: the address stays that of the job
        layout = app.query_params.get("layout", [""])
        assert "".join(layout) == ("" if stop == start else link.of(each))
        assert app.select_slider[0].value == stop
    assert not searches


@pytest.mark.slow
def test_controls_that_are_not_drawn_keep_their_values() -> None:
    app = _page(free="20", tolerance="10", precision="fp16")
    assert not [box for box in app.number_input if box.key == "free"]
    app.number_input(key="nodes").set_value(3).run()
    app.number_input(key="batch").set_value(66).run()
    kept = {"free": "20", "tolerance": "10", "precision": "fp16", "nodes": "3", "batch": "66"}
    assert kept.items() <= {k: "".join(v) for k, v in app.query_params.items()}.items()
    # opened, the controls show what the job has had all along; closed again, it still has
    app.session_state["more"] = True
    app.run()
    assert app.number_input(key="free").value == 20
    assert app.selectbox(key="precision").value == "fp16"
    app.number_input(key="free").set_value(25).run()
    app.session_state["more"] = False
    app.run()
    assert not [box for box in app.number_input if box.key == "free"]
    app.number_input(key="nodes").set_value(2).run()
    assert "".join(app.query_params["free"]) == "25"
    assert "".join(app.query_params["precision"]) == "fp16"


# --- in a browser -----------------------------------------------------------------------------

_PLACES = """([name, axis]) => [...document.querySelectorAll('.js-plotly-plot')]
  .filter(plot => plot._fullLayout && plot._fullLayout.yaxis.title.text.startsWith(axis))
  .flatMap(plot => {
    const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
    const pixel = (axis, v) => axis._offset
      + axis.l2p(axis.type === 'category' ? axis._categoriesMap[v] : axis.d2l(v));
    return plot.data.filter(t => name ? t.name === name : t.customdata).flatMap(t =>
      [...t.x].map((x, i) => ({
        number: t.customdata ? t.customdata[i] : null, x: t.x[i], y: t.y[i],
        left: box.left + pixel(xaxis, t.x[i]), top: box.top + pixel(yaxis, t.y[i])})));
  })"""
"""Where the points of a figure's traces are in the window."""


def _places(here: Any, name: str, axis: str) -> list[dict[str, Any]]:
    """Where the points of a trace are, once it is drawn and stands still."""
    plot = here.drawn().page.locator(".js-plotly-plot", has_text=axis).first
    plot.scroll_into_view_if_needed()
    points: list[dict[str, Any]] = here.steady(lambda: here.page.evaluate(_PLACES, [name, axis]))
    return points


def _click(here: Any, left: float, top: float) -> None:
    """Click a point of a figure, once the figure names what the pointer is on."""
    here.page.mouse.move(left, top)
    here.page.locator(".hoverlayer > *").first.wait_for(state="attached")
    here.page.mouse.click(left, top)


def _distance_to_next(place: dict[str, Any], places: list[dict[str, Any]]) -> float:
    """Pixels to the nearest other point: clicked apart from all others, a dot is no other."""
    x, y = place["left"], place["top"]
    return min(math.hypot(p["left"] - x, p["top"] - y) for p in places if p is not place)


def _chosen(here: Any, words: str) -> str:
    """The layout of the address, once the page says that it is chosen."""
    here.reads("Numbers of the chosen layout")
    here.page.locator("[data-testid=stAlert]", has_text=words).first.wait_for()
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(here.asked).query)
    return query["layout"][0]


def _as_one_layout(here: Any, estimate: Estimate) -> None:
    """The page One layout shows the layout that was clicked."""
    assert _chosen(here, degree_words(estimate.layout)) == link.of(estimate)
    here.go("One layout")
    assert estimate_words(estimate) in here.value("Layout")
    assert f"layout={urllib.parse.quote(link.of(estimate))}" in here.asked


@pytest.mark.alone
def test_a_clicked_dot_is_the_layout_of_every_page(
    window: Callable[[], Any], planned: tuple[Plan, LayoutSpace]
) -> None:
    plan, space = planned
    assert plan.recommended is not None
    here = window().open(_QUERY).drawn()
    slowest_s = 4 * plan.recommended.step_time_s  # slower ones are above the figure
    places = [p for p in _places(here, "", "step time") if p["y"] < slowest_s]
    place = max(places, key=lambda each: _distance_to_next(each, places))
    estimate = candidates.dots(space)[place["number"][0]]
    _click(here, place["left"], place["top"])
    _as_one_layout(here, estimate)


@pytest.mark.alone
def test_a_clicked_bar_is_its_strategys_layout(
    window: Callable[[], Any], planned: tuple[Plan, LayoutSpace]
) -> None:
    plan, _ = planned
    here = window().open(_QUERY).drawn()
    tp = next(each.estimate for each in plan.strategies if each.name == "TP")
    assert tp is not None
    here.page.get_by_text("The classic strategies, each").scroll_into_view_if_needed()
    row = here.place(here.page.locator(".js-plotly-plot .ytick", has_text=re.compile(r"^TP$")))
    _click(here, row["x"] + row["width"] + 20, row["y"] + row["height"] / 2)
    _as_one_layout(here, tp)


@pytest.mark.alone
def test_a_clicked_cell_is_its_best_layout_or_says_why_not(
    window: Callable[[], Any],
) -> None:
    workload = Workload(global_batch=64, sequence_length=2048)
    job = JobSpec("llama-2-70b", "polaris", nodes=8, workload=workload)
    space = layout_space(job)
    cells = {(str(e.layout.tp), str(e.layout.pp)): e for e in space.cells}
    query = "?model=llama-2-70b&nodes=8&batch=64&seq=2048&exact=True&view=Heatmap+tp+x+pp"
    here = window().open(query).drawn()
    fitting = [cell for cell in cells if cells[cell].fits]
    slowest = max(fitting, key=lambda cell: cells[cell].step_time_s)  # it is not recommended
    places = {(p["x"], p["y"]): p for p in _places(here, "", "pipeline stages")}
    grey = next(cell for cell in cells if cell not in fitting)
    _click(here, places[grey]["left"], places[grey]["top"])
    answer = here.says("does not fit: needs")
    assert estimate_words(cells[grey], brief=False) in answer
    assert "Cheapest change" in answer
    assert "layout=" not in here.asked
    places = {(p["x"], p["y"]): p for p in _places(here, "", "pipeline stages")}
    # not only the middle of a cell answers
    _click(here, places[slowest]["left"] + 25, places[slowest]["top"] - 8)
    _as_one_layout(here, cells[slowest])


@pytest.mark.alone
def test_the_slider_is_moved_by_keys_and_the_star_follows(
    window: Callable[[], Any], planned: tuple[Plan, LayoutSpace]
) -> None:
    plan, space = planned
    here = window().open(_QUERY).drawn()
    here.page.get_by_role("slider").focus()
    here.page.keyboard.press("ArrowRight")
    each = space.choices[space.choices.index(plan.recommended) + 1]
    assert _chosen(here, degree_words(each.layout)) == link.of(each)
    (star,) = _places(here, f"chosen: {degree_words(each.layout)}", "step time")
    assert star["y"] == each.step_time_s
    here.page.get_by_role("slider").focus()
    here.page.keyboard.press("ArrowLeft")
    here.reads("Numbers of the recommended layout")
    assert "layout=" not in here.asked


@pytest.mark.alone
def test_ten_keys_lead_from_the_top_to_another_answer(window: Callable[[], Any]) -> None:
    # with the buttons of a changed job between the navigation and the controls
    here = window().open("?model=gpt2&nodes=3&batch=512&seq=1024").drawn()
    here.page.get_by_role("button", name="Answer exactly as entered").wait_for()
    focus = "() => [document.activeElement.tagName, document.activeElement.ariaLabel, "
    focus += "document.activeElement.textContent]"
    stops = []
    while len(stops) < 10 and "Nodes" not in stops:
        here.page.keyboard.press("Tab")
        tag, label, text = here.page.evaluate(focus)
        if (tag, text) == ("A", "Skip to the job"):
            assert here.page.get_by_role("link", name=text).bounding_box()["height"] > 10
            here.page.keyboard.press("Enter")
            here.page.wait_for_function("() => location.hash === '#content'")
        stops.append(label or text)
    assert stops[-1] == "Nodes", stops
    assert len(stops) <= 8
    here.page.keyboard.press("ControlOrMeta+a")
    here.page.keyboard.type("2")
    here.page.keyboard.press("Enter")
    here.says("on 2 nodes")
    assert "nodes=2" in here.asked


@pytest.mark.alone
def test_the_navigation_of_a_phone_takes_two_lines(window: Callable[[], Any]) -> None:
    here = window()
    here.page.set_viewport_size({"width": 390, "height": 844})
    here.open(_QUERY)
    anchors = here.page.locator(".st-key-pages a")
    # links are drawn one by one
    anchors.nth(8).wait_for()
    name, *links = here.steady(
        lambda: [
            here.page.get_by_text("Parallelism planner").first.bounding_box(),
            *(anchor.bounding_box() for anchor in anchors.all()),
        ]
    )
    assert len(links) == 9
    assert len({link["y"] for link in links}) == 1
    assert name["y"] < links[0]["y"] < 90
    here.go("Lecture")


@pytest.mark.alone
def test_the_first_screen_is_an_answer_with_a_handful_of_controls(
    window: Callable[[], Any],
) -> None:
    here = window()
    for width, height in ((1440, 900), (390, 844)):
        here.page.set_viewport_size({"width": width, "height": height})
        here.open(_QUERY).drawn()
        alert = here.page.locator("[data-testid=stAlert]").first
        words = [word for word in alert.inner_text().split() if word != "x"]
        assert 8 <= len(words) <= 20
        box = here.place(alert)
        assert box["y"] + box["height"] < height / 2
        # none of the controls that are folded away is there, once those that are not are
        assert here.value("Nodes") == "2"
        inputs = here.page.locator("input:visible, select:visible, textarea:visible").count()
        assert inputs < 12
    here.page.get_by_text("More about the job").click()
    here.page.get_by_label("Leave free [%]").first.wait_for()
