"""The explorer's logic, without a browser: every page, wrong input, addresses, sessions."""

from __future__ import annotations

import io
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from streamlit.testing.v1 import AppTest

from planner.app import link
from planner.app.cached import kept_batch
from planner.app.controls.own_runs import OwnRuns
from planner.app.controls.page_job import PARAMETERS, YOURS
from planner.app.draw import escape
from planner.app.main import PAGES
from planner.app.views.runs.your_run import _scored
from planner.choose.preferences import preferences
from planner.cli import main
from planner.describe.catalogue import load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.units import format_seconds
from tests import ROOT

# every page draws whole plans
pytestmark = pytest.mark.slow
_APP = str(ROOT / "app.py")
_PAGES = list(PAGES)
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


@pytest.fixture(autouse=True)
def _own_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """AppTest leaves its page behind as __main__, which a process started later would run."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def _app(page: str = "fit", *, folded: bool = False, **query: str) -> AppTest:
    """A page of the app, drawn once, with all controls of the job and the answer in full."""
    app = AppTest.from_string(
        f"from planner.app.main import open_page\nopen_page({page!r})", default_timeout=600
    )
    app.session_state["more"] = not folded
    if page == "fit" and not folded:
        query = {"view": "Why, and notes", **query}
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def _said(app: AppTest) -> str:
    kinds = (app.success, app.error, app.warning, app.info, app.caption, app.markdown)
    return " ".join(str(item.value).replace("\\", "") for kind in kinds for item in kind)


def _answer(app: AppTest) -> dict[str, str]:
    """Texts of the answer lines on a page, by label."""
    kinds = (app.success, app.error, app.warning, app.markdown)
    texts = [str(item.value) for kind in kinds for item in kind]
    lines = "  \n".join(texts).replace("\\", "").split("  \n")
    pairs = (re.match(r"\*\*(.+?):\*\* (.*)", line) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair}


def test_app_opens_on_the_first_page() -> None:
    app = AppTest.from_file(_APP, default_timeout=600).run()
    assert not app.exception
    assert app.title[0].value == "Which strategy fits?"
    assert app.success[0].value.startswith("Fits. ")
    assert _plain(app.caption[0]).startswith("llama-3-8b on 4 nodes of polaris (16 devices)")


@pytest.mark.parametrize("page", ["fit", "layout"])
def test_a_model_without_sequences_is_drawn(page: str) -> None:
    app = _app(page, model="resnet-50", machine="polaris")
    assert not app.exception
    assert "samples per step" in " ".join(str(item.value) for item in app.caption)
    assert "Fits" in _said(app) or "resnet-50 fits" in _said(app)


def test_the_whole_training_has_a_view_of_its_own() -> None:
    job = {"model": "gpt2", "machine": "polaris", "nodes": "1", "batch": "64", "seq": "1024"}
    app = _app(**job, view="Whole training")
    assert "Enter the number of training tokens" in _said(app)
    app.text_input(key="tokens").set_value("10B").run()
    assert not app.exception
    said = " ".join(str(item.value) for item in app.markdown)
    assert "The whole training takes" in said
    assert "a price of" not in said
    app.text_input(key="price").set_value("2.5").run()
    assert "a price of" in " ".join(str(item.value) for item in app.markdown)
    app.text_input(key="pue").set_value("0.2").run()
    assert not app.exception
    assert "; ignored" in " ".join(str(item.value) for item in app.warning)


@pytest.mark.parametrize("page", _PAGES)
def test_every_page_draws(page: str) -> None:
    app = _app(page)
    assert not app.exception
    assert not app.error
    assert app.title


@pytest.mark.slow
def test_a_change_changes_the_verdict() -> None:
    app = _app(frameworks="fsdp2")
    before = app.success[0].value
    app.number_input(key="nodes").set_value(1).run()
    assert not app.exception
    assert _said(app) != before
    app.selectbox(key="model").set_value("llama-3.1-405b").run()
    assert "llama-3.1-405b on 1 node of polaris" in _answer(app)["Does not fit"]
    assert not app.success


def test_own_runs_correct_all_estimates_until_they_are_removed() -> None:
    job = {"model": "gpt2", "machine": "polaris", "nodes": "1", "batch": "64", "seq": "1024"}
    app = _app(**job, frameworks="ddp")
    before = _answer(app)["Step"]
    runs = (
        "row_id,system,gpu,n_gpus,model,seq_len,framework,dp,micro_batch,global_batch,step_time_s\n"
        + "".join(f"r{i},Polaris,A100,4,GPT-2,1024,DDP,4,16,64,3\n" for i in range(2))
    )
    app.session_state["own_runs"] = OwnRuns("mine.csv", runs)
    app.run()
    assert not app.exception
    assert any("corrected by 2 measured runs" in item.value for item in app.markdown)
    assert any(item.value.startswith("2 measured step times") for item in app.caption)
    assert _answer(app)["Step"] != before
    assert all("mine" not in value for value in app.query_params.values())
    app.button(key="own_runs_remove").click().run()
    assert not app.exception
    assert _answer(app)["Step"] == before
    # what teaches nothing is said, and left out
    app.session_state["own_runs"] = OwnRuns("empty.csv", runs.split("\n")[0])
    app.run()
    assert "Your own runs are left out" in _said(app)
    assert _answer(app)["Step"] == before


@pytest.mark.slow
def test_a_batch_that_divides_is_a_button_away() -> None:
    job = {"model": "gpt2", "machine": "polaris", "nodes": "3", "batch": "512", "seq": "1024"}
    app = _app(**job)
    assert "Use a batch of 516 instead of 512" in _said(app)
    assert "12 replicas" in _answer(app)["Run"]
    # what was entered, what the answer is for, and what each button does
    assert "This answers a changed job, not the one entered. Use a batch of 516" in _said(app)
    assert app.number_input(key="batch").value == 512
    next(b for b in app.button if b.label == "Answer exactly as entered").click().run()
    assert "instead of 512" not in _said(app)
    assert app.query_params["exact"] == "True"
    next(b for b in app.button if b.label == "Consider nearby jobs too").click().run()
    assert "exact" not in app.query_params
    app.button(key="Enter batch 516").click().run()
    assert not app.exception
    assert app.number_input(key="batch").value == 516
    assert "12 replicas" in _answer(app)["Run"]
    assert "not the one entered" not in _said(app)
    assert not [button for button in app.button if button.label.startswith(("Enter", "Answer"))]
    # the job to the letter: layers are cut
    app = _app(**job, exact="True")
    assert app.checkbox(key="exact").value
    assert "instead of 512" not in _said(app)
    assert "12 x data parallel" not in _said(app)


@pytest.mark.slow
def test_address_restores_the_controls() -> None:
    app = _app(
        model="mistral-7b",
        machine="vsc-5",
        nodes="2",
        batch="64",
        seq="2048",
        precision="fp16",
        tokens="300B",
    )
    assert app.selectbox(key="model").value == "mistral-7b"
    assert app.number_input(key="nodes").value == 2
    # the fastest would use all memory but a little: it is not what is recommended
    answer = _answer(app)
    assert answer["Fits, but tight"].startswith("mistral-7b on 2 nodes of vsc-5")
    assert "out-of-memory risk" in answer["Why"]
    assert answer["Cost"].startswith("training on 300 B tokens: ")
    assert "node-hours" in answer["Cost"]


@pytest.mark.slow
def test_a_sentence_stands_where_no_strategy_has_a_layout() -> None:
    app = _app(
        model="mixtral-8x7b",
        machine="dgx-h100",
        nodes="4",
        batch="256",
        seq="2048",
        expert_capacity="1.25",
        view="Strategies",
    )
    assert not app.exception
    assert "No classic strategy has a layout for this job" in _said(app)


def test_address_tells_a_frozen_base_and_documents() -> None:
    app = _app(
        model="llama-3.1-8b",
        machine="workstation-1x4090",
        nodes="1",
        batch="16",
        seq="2048",
        lora="8",
        dora="True",
        base_format="nf4-double",
        document_lengths="300,900",
        samples="52000",
    )
    assert app.checkbox(key="dora").value is True
    assert app.selectbox(key="base_format").value == "nf4-double"
    assert app.text_input(key="document_lengths").value == "300,900"
    # 16 bits of it alone would take 15 of 23.6 GiB and DoRA's sums more
    assert _answer(app)["Fits, but tight"].startswith("llama-3.1-8b on 1 node")
    assert _answer(app)["Cost"].startswith("training on 31.2 M tokens: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", "-5"),
        ("nodes", "1e99"),
        ("nodes", "<b>"),
        ("model", "../../etc/passwd"),
        ("machine", "<script>alert(1)</script>"),
        ("batch", "0"),
        ("precision", "fp3"),
        ("view", "x"),
        ("layout", "~~~"),
        ("layout", "fsdp2~tp.-3"),
        ("config", "AAAA"),
        ("config", "%00"),
        ("tokens", "nan"),
        ("document_lengths", "/etc/passwd"),
        ("frameworks", "nothing"),
    ],
)
def test_hostile_addresses_end_in_words(name: str, value: str) -> None:
    app = _app("fit", **{name: value})
    assert not app.exception
    assert app.title


@pytest.mark.parametrize("value", ["~~~", "fsdp2~tp.-3", "nothing~dp.4", "fsdp2~dp.7", "x" * 9000])
def test_hostile_layouts_end_in_words(value: str) -> None:
    app = _app("layout", layout=value)
    assert not app.exception
    assert app.error or app.success


@pytest.mark.slow
def test_more_nodes_than_there_are_is_said() -> None:
    app = _app(nodes="5000", frameworks="fsdp2")
    assert not app.exception
    said = app.warning[0].value.replace("\\", "")
    assert "'5000' is not valid (use 1 to 560); using 560" in said
    assert "of the 560 nodes" in _said(app)


def test_tokens_that_are_no_number() -> None:
    app = _app()
    app.text_input(key="tokens").set_value("<img src=x onerror=alert(1)>").run()
    assert not app.exception
    assert "\\<img" in app.warning[0].value
    assert "<img" not in app.warning[0].value.replace("\\<img", "")


@pytest.mark.slow
def test_nothing_fits_names_the_fix() -> None:
    app = _app(model="llama-3.1-405b", nodes="1")
    assert "It fits on 4 nodes with the same batch." in _answer(app)["Why"]
    assert not app.exception


@pytest.mark.parametrize(
    "view", ["Strategies", "Layouts", "Step time", "Heatmap tp x pp", "Why, and notes", "Files"]
)
def test_every_view_draws(view: str) -> None:
    app = _app(view=view)
    assert not app.exception
    assert not app.error


@pytest.mark.slow
def test_two_sessions_share_nothing() -> None:
    first, second = _app(model="gpt2", nodes="1", frameworks="ddp"), _app()
    first.number_input(key="nodes").set_value(2).run()
    second.run()
    assert second.selectbox(key="model").value == "llama-3-8b"
    assert "gpt2 on 2 nodes" in _said(first)
    assert "llama-3-8b on 4 nodes" in _said(second)


def test_the_answer_stands_before_the_controls_that_change_the_layout() -> None:
    app = _app("layout")
    order = [item.label if item.type == "expander" else item.type for item in _items(app.main)]
    assert order.index("success") < order.index("Change this layout")
    assert order.index("success") < order.index("file_uploader")
    # the fields of every day are in the form, the others folded inside it
    form = next(each for each in app.expander if each.label == "Change this layout")
    more = next(each for each in app.expander if each.label == "More fields")
    folded = {item.label for item in (*more.number_input, *more.selectbox, *more.checkbox)}
    inside = {item.label for item in (*form.number_input, *form.selectbox, *form.checkbox)}
    assert {"embedding slots", "tiles"} <= folded
    assert len(inside - folded) == 12
    assert {"dp", "tp", "pp", "micro batch"} <= inside - folded


def _items(block: Any) -> Iterator[Any]:
    """Elements and blocks of a page in their order."""
    for child in block.children.values():
        yield child
        if hasattr(child, "children"):
            yield from _items(child)


def test_one_layout_follows_the_form() -> None:
    packed = link.pack_layout(
        Layout(dp=4, tp=4, zero_stage=1, grad_accumulation=64, sequence_parallel=True),
        "megatron-lm",
    )
    app = _app("layout", layout=packed)
    assert not app.exception
    assert "4-way tensor" in _answer(app)["Run"]


def test_collectives_refuse_more_ranks_than_devices() -> None:
    app = _app("collectives", ranks="100000")
    assert "2,240" in app.error[0].value
    assert not app.exception


# --- uploads ---------------------------------------------------------------------------------


def _zip_of_zeros() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b"0" * 10_000)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"not json", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[" * 200_000, "nested too deeply|not valid JSON"),
        (b"1" * 5000, "thousands of digits|not a JSON object"),
        (b" " * 50_000_000, "50.0 MB"),
        (_zip_of_zeros(), "UTF-8|JSON"),
    ],
)
def test_wrong_uploads_get_one_sentence(data: bytes, said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        link.parse_config(data)


def _own(fields: dict[str, Any], name: str) -> link.OwnDescription:
    return link.read_own(json.dumps(fields).encode(), name)


def test_unknown_family_is_named() -> None:
    with pytest.raises(PlannerError, match="model_type"):
        _own({**_CONFIG, "model_type": "nobody"}, "config.json").model()


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "<script>",
        "a\x00b.json",
        "x" * 900,
        "",
        "..",
        "[a](http://b)",
        "$x$",
        "config.json",
    ],
)
def test_hostile_file_names_become_harmless(name: str) -> None:
    model = _own(_CONFIG, name).model()
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,40}", model.name)


@pytest.mark.slow
def test_uploaded_model_travels_in_the_address() -> None:
    packed = link.pack_own(_own({**_CONFIG, "junk": "x" * 5000}, "tiny.json"))
    assert len(packed) < 400
    assert link.unpack_own(packed).model() == _own(_CONFIG, "tiny.json").model()
    app = _app(config=packed, nodes="1")
    assert _answer(app)["Fits"].startswith("tiny on 1 node")
    assert not app.exception


@pytest.mark.parametrize("packed", ["", "!!!", "AAAA", "é", "eJwDAAAAAAE=", "A" * 100_000])
def test_damaged_addresses_are_said_to_be_so(packed: str) -> None:
    with pytest.raises(PlannerError, match="damaged"):
        link.unpack_own(packed)


def test_compressed_bomb_stays_small() -> None:
    import base64
    import zlib

    packed = base64.urlsafe_b64encode(zlib.compress(b"[" + b" " * 4_000_000 + b"]", 9)).decode()
    with pytest.raises(PlannerError):
        link.unpack_own(packed)


def test_layouts_survive_the_address() -> None:
    for layout in (
        Layout(),
        Layout(
            dp=8,
            dp_shard=4,
            tp=2,
            sequence_parallel=True,
            zero_stage=3,
            recompute="selective",
            offload="all-cpu",
        ),
        Layout(pp=4, vpp=2, schedule="interleaved-1f1b", grad_accumulation=8),
    ):
        assert link.unpack_layout(link.pack_layout(layout, "fsdp2")) == (layout, "fsdp2")


@pytest.mark.parametrize("text", ["", "x", "a,b\n1,2", "\x00" * 50])
def test_wrong_tables_get_one_sentence(text: str) -> None:
    with pytest.raises(PlannerError, match=r"\A[^\n]*not a table of runs[^\n]*\Z"):
        _scored(text)


def test_table_without_rows_scores_nothing() -> None:
    assert not _scored("n_gpus,gpu\n").scores


# --- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "[a](http://b)",
        "![x](y)",
        "$a$",
        "`x`",
        "**b**",
        ":material/home:",
        "# h",
        "a | b",
    ],
)
def test_escape_leaves_nothing_alive(text: str) -> None:
    escaped = escape(text)
    rest = escaped
    for char in "\\`*_{}[]()<>#|$~:":
        rest = rest.replace("\\" + char, "")
    assert not set(rest) & set("`*_{}[]()<>#|$~:")


def test_download_parses() -> None:
    import planner

    plan = planner.plan(
        "gpt2", "polaris", nodes=1, workload=planner.Workload(global_batch=64, sequence_length=1024)
    )
    found: dict[str, Any] = json.loads(plan.to_json())
    assert found["fits"] is True


def test_files_to_run_are_offered() -> None:
    app = _app(view="Files")
    assert not app.exception
    assert "Files to run it (ZIP)" in [button.label for button in app.get("download_button")]
    assert "No files to run" not in " ".join(str(item.value) for item in app.caption)


def test_files_that_cannot_be_written_are_a_sentence_and_the_next_that_can_are_offered() -> None:
    # llm-foundry is described for comparison only
    job = {"model": "gpt2-xl", "nodes": "2", "seq": "1024"}
    app = _app(**job, frameworks="llm-foundry,accelerate", view="Files")
    assert not app.exception
    assert "Take the first that has files" in app.button(key="take_files").label
    assert "Files to run it (ZIP)" not in [button.label for button in app.get("download_button")]
    said = " ".join(str(item.value) for item in app.caption)
    assert "No files to run this layout" in said


def test_config_forbids_reporting_and_the_outside() -> None:

    path = ROOT / ".streamlit" / "config.toml"
    config = tomllib.loads(path.read_text())
    assert config["browser"]["gatherUsageStats"] is False
    assert config["server"]["address"] == "127.0.0.1"
    assert config["server"]["maxUploadSize"] <= 5
    assert config["runner"]["fastReruns"] is False
    assert "theme" in config


def test_catalogue_names_are_harmless() -> None:
    assert load_model("gpt2").name == escape("gpt2")


def test_streamlit_finds_no_pages_of_its_own() -> None:
    """It takes a folder `pages` beside the script for an app of its own, and ours for lost."""
    assert not (ROOT / "planner" / "app" / "pages").exists()
    assert not (ROOT / "pages").exists()


# --- one job everywhere ----------------------------------------------------------------------


@pytest.mark.slow
def test_controls_ask_every_field_of_the_workload_and_of_a_layout() -> None:
    app = _app()
    kinds = ("number_input", "selectbox", "text_input", "multiselect", "text_area", "checkbox")
    shown = {item.key for kind in kinds for item in app.get(kind)}
    fields = {PARAMETERS.get(name, name) for name in Workload.model_fields}
    assert fields | {"model", "machine", "nodes", "frameworks", "set", "top"} <= shown
    app = _app("layout")
    labels = {item.label for kind in kinds for item in app.get(kind)}
    # accumulation follows from the batch
    assert {name.replace("_", " ") for name in Layout.model_fields} - labels == {
        "grad accumulation"
    }


@pytest.mark.slow
def test_compare_and_the_first_page_say_the_same_step() -> None:
    query = {"nodes": "12", "batch": "768"}
    page = _app("fit", **query)
    step = _answer(page)["Step"].partition(" (")[0]
    table = _app("compare", **query).dataframe[0].value
    assert f"{table[table[''] == 'step [s]'].iloc[0]['A'].partition(' (')[0]} s" == step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "precision", "nodes"),
    [("summit", "fp16", 4), ("vsc-4", "fp32", 4), ("workstation-1x4090", "bf16", 1)],
)
def test_controls_follow_the_machine(machine: str, precision: str, nodes: int) -> None:
    app = _app(model="gpt2", view="Strategies")
    app.selectbox(key="machine").set_value(machine).run()
    assert not app.exception
    assert app.selectbox(key="precision").value == precision
    assert app.number_input(key="nodes").value == nodes
    assert not app.warning
    assert "gpt2" in _said(app)
    assert app.query_params == {"model": "gpt2", "machine": machine, "view": "Strategies"}


@pytest.mark.slow
def test_a_sequence_longer_than_the_models_own_is_planned() -> None:
    app = _app(seq="32768", nodes="16", frameworks="fsdp2")
    assert app.number_input(key="seq").value == 32768
    assert any("256 x 32,768 tokens a step" in str(c.value) for c in app.caption)
    assert next(iter(_answer(app))).startswith("Fits")


@pytest.mark.slow
def test_what_a_link_asks_and_cannot_be_is_said_and_kept() -> None:
    asked = {"precision": "fp9", "nodes": "64", "machine": "workstation-1x4090"}
    app = _app(model="lama-3-8b", **asked, frameworks="fsdp2")
    said = app.warning[0].value.replace("\\", "")
    assert "did you mean llama-3-8b" in said
    assert "'fp9' is not valid" in said
    assert "'64' is not valid (only 1 is possible); using 1" in said
    app.selectbox(key="machine").set_value("polaris").run()
    # more nodes are there now
    assert app.number_input(key="nodes").value == 64


@pytest.mark.slow
def test_usual_values_leave_the_address() -> None:
    app = _app(folded=True)
    app.number_input(key="nodes").set_value(8).run()
    assert app.query_params == {"nodes": "8"}
    app.number_input(key="nodes").set_value(4).run()
    assert app.query_params == {}


def test_another_job_has_no_chosen_layout() -> None:
    packed = link.pack_layout(
        Layout(dp=16, zero_stage=3, micro_batch=1, grad_accumulation=16), "fsdp2"
    )
    app = _app(layout=packed)
    assert any("Numbers of the chosen layout: fsdp2, 16 replicas" in _plain(c) for c in app.caption)
    app.number_input(key="nodes").set_value(8).run()
    assert any("Numbers of the recommended layout" in _plain(c) for c in app.caption)
    assert "layout" not in app.query_params


def _plain(item: Any) -> str:
    return str(item.value).replace("\\", "")


def test_a_layout_of_another_batch_is_said_to_be_so() -> None:
    packed = link.pack_layout(
        Layout(dp=16, zero_stage=3, micro_batch=1, grad_accumulation=32), "fsdp2"
    )
    app = _app("layout", layout=packed)
    assert "trains 512 sequences per step, the job 256" in app.warning[0].value


def test_a_changed_layout_keeps_the_batch_or_is_refused() -> None:
    assert kept_batch(Layout(dp=8, micro_batch=4), 256).global_batch == 256
    with pytest.raises(PlannerError, match="use other degrees or a batch of 240 or 264"):
        kept_batch(Layout(dp=8, micro_batch=3), 256)


@pytest.mark.slow
def test_nothing_fits_shows_the_closest_layout() -> None:
    app = _app("layout", model="llama-3.1-405b", nodes="2")
    assert "Does not fit" in _said(app)
    assert "single device" not in str(app.selectbox[-1].value)
    assert "1 rank" not in _said(app)


@pytest.mark.slow
def test_own_machine_is_named_and_planned() -> None:
    text = (ROOT / "hardware_profiles" / "polaris.toml").read_text()
    own = link.read_own(
        text.replace("num_devices             = 4", "num_devices = 4").encode(), "m.toml"
    )
    app = _app(model="gpt2", profile=link.pack_own(own), frameworks="fsdp2")
    assert _answer(app)["Fits"].startswith("gpt2 on 4 nodes of m ")
    assert app.selectbox(key="machine").value == YOURS
    app.selectbox(key="machine").set_value("aurora").run()
    assert "nodes of aurora" in _said(app)
    assert "profile" not in app.query_params
    app.selectbox(key="machine").set_value(YOURS).run()
    assert "nodes of m " in _said(app)


def test_a_nameless_config_is_called_after_what_it_holds() -> None:
    data = {**_CONFIG, "_name_or_path": "org/tiny-llama"}
    assert _own(data, "config.json").name == "tiny-llama"
    assert _own(_CONFIG, "config.json").name == "own-llama"


@pytest.mark.slow
def test_a_part_of_a_node_and_the_tolerance_are_asked_as_on_the_command_line() -> None:
    one = {"model": "gpt2", "machine": "vsc-5", "batch": "8", "seq": "1024"}
    app = _app(**one, devices="1", frameworks="ddp")
    assert _answer(app)["Fits"].startswith("gpt2 on 1 node of vsc-5 (1 device)")
    job = app.session_state["asked"]
    assert (job["devices"], "nodes" in job) == ("1", False)
    job = {"model": "llama-3-8b", "nodes": "4", "seq": "1024", "frameworks": "fsdp2"}
    strict, loose = _app(**job, tolerance="0"), _app(**job, tolerance="40")
    said = [next(_plain(c) for c in x.caption if "Numbers of" in c.value) for x in (strict, loose)]
    assert said[0] != said[1]


@pytest.mark.slow
def test_memory_is_left_free_as_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = _app(model="gpt2-xl", nodes="1", batch="64", seq="1024", frameworks="fsdp2")
    app.number_input(key="free").set_value(60).run()
    assert app.query_params["free"] == "60"
    captions = " ".join(item.value.replace("\\", "") for item in app.caption)
    assert "15.80 GiB each (60 % of the memory left free)" in captions
    options = "--machine polaris --nodes 1 --global-batch 64 --seq-length 1024 --leave-free 60"
    with pytest.raises(SystemExit) as ended:
        main(["plan", "gpt2-xl", *options.split(), "-f", "fsdp2", "--json"])
    assert ended.value.code == 0
    best = json.loads(capsys.readouterr().out)["recommended"]
    assert best["memory_bytes"]["total"] <= 0.4 * 39.5 * 2**30
    answer = _answer(app)
    assert f"{best['memory_bytes']['total'] / 2**30:.1f} of 15.8 GiB" in answer["Memory"]
    assert answer["Step"].startswith(format_seconds(best["step_time_s"]))


@pytest.mark.slow
def test_the_network_is_chosen_as_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = _app(model="gpt2-xl", nodes="2", batch="64", seq="1024", frameworks="ddp")
    app.selectbox(key="network").set_value("sockets").run()
    assert app.query_params["network"] == "sockets"
    options = "--machine polaris --nodes 2 --global-batch 64 --seq-length 1024 --network sockets"
    with pytest.raises(SystemExit):
        main(["plan", "gpt2-xl", *options.split(), "-f", "ddp", "--json"])
    best = json.loads(capsys.readouterr().out)["recommended"]
    assert best["network"] == "sockets"
    assert _answer(app)["Step"].startswith(format_seconds(best["step_time_s"]))
    # a machine with one network has no such control, and a name from elsewhere is said
    assert not [
        box for box in _app(machine="vsc-5", frameworks="ddp").selectbox if box.key == "network"
    ]
    said = " ".join(
        _plain(warning) for warning in _app(network="carrier pigeon", frameworks="ddp").warning
    )
    assert "carrier pigeon" in said


@pytest.mark.slow
def test_machines_names_numbers_as_they_are_set() -> None:
    app = _app("machines", model="gpt2")
    facts = next(table.value for table in app.dataframe if "quantity" in table.value)
    names = list(facts["quantity"])
    assert "device.memory_bytes" in names
    machine = load_machine("polaris")
    for name in names:
        if not name.startswith("network.efficiency by nodes") and "[" not in name:
            override_fields(machine, (f"{name}={_value_of(machine, name)!r}",))


def _value_of(machine: Machine, name: str) -> float:
    found: Any = machine
    for part in name.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return float(found.value)


def test_other_numbers_of_the_machine_are_used() -> None:
    app = _app(model="gpt2", set="device.memory_bytes=80GB", frameworks="ddp")
    assert any("74.51 GiB each" in _plain(c) for c in app.caption)
    app = _app(model="gpt2", set="device.nothing=1", frameworks="ddp")
    assert "unknown field" in app.warning[0].value
    assert "planner show" not in app.warning[0].value


def test_own_links_state_what_the_page_shows() -> None:
    app = _app("collectives", machine="aurora", ranks="12", nodes="2")
    assert app.selectbox(key="machine").value == "aurora"
    app.number_input(key="ranks").set_value(24).run()
    assert app.query_params == {"machine": "aurora", "ranks": "24", "nodes": "2"}


@pytest.mark.slow
def test_switches_of_chosen_frameworks_are_chosen_kept_and_refused() -> None:
    asked = {"model": "gpt2", "nodes": "1", "batch": "64", "seq": "1024"}
    app = _app(**asked)
    assert not [box for box in app.multiselect if box.key == "switches"]
    frameworks = next(box for box in app.multiselect if box.key == "frameworks")
    assert "torch.compile" in frameworks.help
    app = _app(**asked, frameworks="ddp,deepspeed", switches="ddp+compile,deepspeed bucket=2e7")
    box = app.multiselect(key="switches")
    assert not app.exception
    assert box.value == ["ddp+compile", "deepspeed+bucket=2e7"]
    assert "deepspeed+liger" in box.options
    assert "megatron-lm+cuda-graphs" not in box.options
    # for 16-bit formats of states and for all of them
    assert "deepspeed+bf16-states" in box.options
    box = _app(**asked, frameworks="deepspeed", precision="fp16").multiselect(key="switches")
    assert "deepspeed+bf16-states" not in box.options
    assert "deepspeed+liger" in box.options
    app = _app(**asked, frameworks="ddp,deepspeed", switches="ddp+compile,deepspeed bucket=2e7")
    box = app.multiselect(key="switches")
    text = " ".join(element.value for element in [*app.caption, *app.markdown])
    assert "ddp+compile" in text or "deepspeed+bucket=2e7" in text
    box.set_value(["deepspeed+liger"]).run()
    assert "deepspeed+liger" in app.query_params["switches"]
    app = _app(**asked, frameworks="fsdp2", switches="fsdp2+async-tp,fsdp2+compil")
    said = " ".join(element.value for element in app.warning)
    assert "needs 'compile'" in said
    assert "'fsdp2+compil' is not valid" in said


def test_layouts_of_a_high_risk_are_marked() -> None:
    app = _app(view="Layouts")
    table = next(each.value for each in app.dataframe if "out of memory" in each.value)
    risky = table[""].map(lambda roles: "risky" in roles)
    risk = table["out of memory"].str.extract(r"([\d.]+)")[0].astype(float)
    assert risky.any()
    assert not risky.all()
    assert risk[risky].min() > 100 * preferences().risk >= risk[~risky].max() - 0.5
    assert any("Risky: out-of-memory risk above" in each.value for each in app.caption)


def test_unknown_parameters_of_an_address_are_told() -> None:
    app = _app(modle="gpt2", nodes="2")
    [message] = [each.value.replace("\\", "") for each in app.warning]
    assert message == "'modle' in the address is ignored (did you mean model?)."
    # those of other pages, questions and machines are known
    app = _app(op="broadcast", ask_days="3", network="sockets", kept_config="x")
    assert not app.warning


def test_queues_are_described_alike_on_all_pages() -> None:
    def words(page: str) -> str:
        job = {"model": "gpt2", "nodes": "1", "batch": "64", "seq": "1024"}
        app = _app(page, **job, view="Why, and notes")
        texts = [each.value.replace("\\", "") for each in (*app.caption, *app.markdown)]
        return " ".join([*texts, *(each.value.to_string() for each in app.dataframe)])

    for page in ("fit", "machines"):
        assert "72 h, by request" in words(page)
        assert "may be killed by demand jobs" in words(page)
