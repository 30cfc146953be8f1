"""Your run: dropped files fill the job, are compared, explained and learned from."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from planner.app import link
from tests import ROOT

# every page draws whole plans
pytestmark = pytest.mark.slow
_JOB = {"model": "gpt2", "nodes": "1", "batch": "64", "seq": "1024", "frameworks": "ddp"}
_DEEPSPEED = (
    b'{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, '
    b'"zero_optimization": {"stage": 3}}'
)
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


def _lines(seconds: float) -> bytes:
    """Write a log of nanoGPT."""
    rows = (f"iter {i}: loss 2.1, time {1e3 * seconds:.1f}ms, mfu -100%\n" for i in range(9))
    return "".join(rows).encode()


def _app(page: str = "run", **query: str) -> AppTest:
    app = AppTest.from_string(
        f"from planner.app.main import open_page\nopen_page({page!r})", default_timeout=600
    )
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def _drop(app: AppTest, *files: tuple[str, bytes]) -> AppTest:
    app.file_uploader[0].set_value([(name, data, "") for name, data in files]).run()
    assert not app.exception
    return app


def _text(app: AppTest) -> str:
    """Everything that the page says."""
    kinds = (app.success, app.error, app.warning, app.info, app.caption, app.markdown, app.metric)
    return "\n".join(str(item.value).replace("\\", "") for kind in kinds for item in kind)


def _measured(app: AppTest) -> dict[str, str]:
    return {item.label: item.value for item in app.metric}


def test_a_log_is_compared_explained_and_learned_from() -> None:
    app = _drop(_app(**_JOB), ("nano.log", _lines(0.1)))
    estimated = _measured(app)["estimated"]
    seconds = float(estimated.split()[0]) * (1e-3 if estimated.endswith("ms") else 1)
    _drop(app, ("nano.log", _lines(8 * seconds)))
    text = _text(app)
    assert "nano.log: nanoGPT log, 9 steps" in text
    assert "the log does not state its model: that of the job, gpt2" in text
    assert float(_measured(app)["measured / estimated"]) == pytest.approx(8, rel=0.03)
    assert "took 8.0 times as long as estimated" in text
    assert re.search(r"Gradient accumulation \d+ instead of \d+, a batch of 512", text)
    (figure,) = app.get("plotly_chart")[:1]
    assert "measured" in str(figure.proto)
    number = next(
        index
        for index, item in enumerate(each for each in app.markdown if "the run" in each.value)
        if "Gradient accumulation" in item.value and "512" in item.value
    )
    app.button(key=f"explain_{number}").click().run()
    assert app.query_params["batch"] == "512"
    assert float(_measured(app)["measured / estimated"]) == pytest.approx(1, abs=0.1)
    assert "inside the estimate's interval" in _text(app)
    before, layouts = _first_page(app), _layout_box(app).options
    assert "layout: the one chosen below is used" in _text(app)
    assert "with your runs" not in _measured(app)
    app.button(key="learn_nano.log").click().run()
    assert not app.exception
    assert "corrected by 1 measured run (nano.log)" in _text(app)
    assert app.button(key="learn_nano.log").disabled
    assert _first_page(app) != before
    # what the run taught stands beside the estimate without it, and in the list of layouts
    corrected = _measured(app)["with your runs"]
    assert corrected != _measured(app)["estimated"]
    assert _layout_box(app).options != layouts
    assert corrected in _layout_box(app).options[0]
    # an address opened anew knows that the session has lost it
    query = {name: "".join(value) for name, value in app.query_params.items()}
    assert query["measured"] == "yes"
    there = _app("fit", **query)
    assert "No longer corrected by measured runs" in _text(there)
    there.button(key="own_runs_remove").click().run()
    assert "No longer corrected" not in _text(there)
    assert "measured" not in there.query_params


def _layout_box(app: AppTest) -> Any:
    return next(box for box in app.selectbox if box.label == "Layout of the run")


def test_a_log_says_what_it_leaves_as_entered() -> None:
    app = _drop(_app(**_JOB, tokens="300B"), ("nano.log", _lines(0.1)))
    assert "training on 300 B tokens, as the job before; no log states it" in _text(app)
    assert "the log does not state its layout: choose it below" in _text(app)
    box = _layout_box(app)
    box.set_value(box.options[1]).run()
    assert not app.exception
    assert "choose it below" not in _text(app)
    assert "layout: the one chosen below is used" in _text(app)


def _first_page(app: AppTest) -> str:
    """Return the step time and the interval that the first page states for the session's job."""
    first = _app("fit", **dict(app.query_params.items()))
    if "own_runs" in app.session_state:
        first.session_state["own_runs"] = app.session_state["own_runs"]
        first.run()
    assert not first.exception
    return next(each.value for kind in ("success", "warning") for each in first.get(kind))


def test_a_configuration_fills_the_job_and_is_estimated() -> None:
    app = _drop(_app(model="gpt2", nodes="1"), ("ds.json", _DEEPSPEED))
    layout, framework = link.unpack_layout(app.query_params["layout"])
    assert (layout.dp, layout.zero_stage, framework) == (4, 3, "deepspeed")
    assert app.number_input(key="batch").value == 32
    assert "ds.json: DeepSpeed's configuration" in _text(app)
    assert "**Step:**" in _text(app)


def test_descriptions_become_the_job() -> None:
    machine = (ROOT / "hardware_profiles" / "polaris.toml").read_bytes()
    files = [("tiny.json", json.dumps(_CONFIG).encode()), ("mine.toml", machine)]
    app = _drop(_app(nodes="1"), *files)
    assert {"config", "profile"} <= app.query_params.keys()
    assert "tiny.json: description of a model" in _text(app)
    wrong = json.dumps({**_CONFIG, "model_type": "<b>nobody</b>"}).encode()
    _drop(app, ("nobody.json", wrong))
    assert "unknown model_type" in app.error[0].value.replace("\\", "")


def test_columns_are_chosen_from_those_of_the_file() -> None:
    rows = b"a,b\n" + b"".join(b"%d,0.5\n" % i for i in range(9))
    app = _drop(_app(**_JOB), ("odd.csv", rows))
    assert "odd.csv holds no time" in _text(app)
    assert "--" not in app.error[0].value
    assert app.selectbox(key="column_time_s").options == ["by its name", "a", "b"]
    app.selectbox(key="column_time_s").set_value("b")
    next(each for each in app.button if each.label == "Read these columns").click().run()
    assert _measured(app)["measured"] == "500 ms"
    assert not app.error


def test_a_table_of_which_no_row_counts_says_so_aloud() -> None:
    app = _drop(_app(), ("mine.csv", b"row_id,model,n_gpus,gpu\nfirst,nope,4,A100\n"))
    assert "No row can be scored (1 row). first: " in app.warning[0].value.replace("\\", "")
    assert not [each for each in app.button if each.label == "Learn from these runs"]


def test_a_table_of_runs_is_scored_and_learned_from() -> None:
    app = _app()
    app.button(key="try_example").click().run()
    assert "example_runs.csv: CSV of runs" in _text(app)
    assert "the mean absolute error is" in _text(app)
    app.button(key="use_runs").click().run()
    assert "corrected by 9 measured runs" in _text(app)
    app.button(key="drop_clear").click().run()
    assert "example_runs.csv: CSV of runs" not in _text(app)
    assert "corrected by 9 measured runs" in _text(app)
    app.button(key="own_runs_remove").click().run()
    assert "corrected by" not in _text(app)


@pytest.mark.parametrize(
    "data",
    [b"", b"words\n", bytes(range(256)) * 9, b"[" * 60_000, b"\x1f\x8bjunk", b"a,b\n1,2\n3,4\n"],
)
def test_no_message_names_a_folder_of_the_server(data: bytes) -> None:
    for name in ("../../x/odd.log", "events.out.tfevents.9"):
        app = _drop(_app(), (name, data))
        (error,) = app.error
        assert "\n" not in error.value
        assert "tmp" not in error.value
        assert "x/odd" not in error.value.replace("\\", "")
