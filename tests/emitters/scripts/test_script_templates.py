"""Templates: a site's own take the place of the planner's, and are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.emitters.text import VARIABLE, render, template_names
from planner.errors import EmitError

JOB = planner.Job(
    "gpt2",
    "polaris",
    workload=planner.Workload(sequence_length=1024, global_batch=64),
    frameworks="fsdp2",
)


def test_a_site_replaces_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = JOB.emit()
    (tmp_path / "rank.sh.j2").write_text("#!/bin/sh\n# ours: {{ rank }}\n", encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    files = JOB.emit()
    assert files["rank.sh"] == "#!/bin/sh\n# ours: PMI_RANK\n"
    assert {name: text for name, text in files.items() if name != "rank.sh"} == {
        name: text for name, text in usual.items() if name != "rank.sh"
    }


def test_the_users_own_folder_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "planner" / "templates"
    folder.mkdir(parents=True)
    (folder / "rank.sh.j2").write_text("# {{ rank }}\n", encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert JOB.emit()["rank.sh"] == "# PMI_RANK\n"
    monkeypatch.setenv(VARIABLE, "")
    assert JOB.emit()["rank.sh"].startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("jobs.sh.j2", "", r"has jobs\.sh\.j2, which replaces no template; name it as one of col"),
        ("rank.sh.j2", "{{ ranks }}", "'ranks' is undefined; correct it, or remove it"),
        ("rank.sh.j2", "{% if %}", "cannot be filled in: .*; correct it, or remove it"),
        ("rank.sh.j2", "{{ 1 / 0 }}", "cannot be filled in: division by zero; correct it"),
        (
            "rank.sh.j2",
            "{{ rank.__class__.mro() }}",
            "access to attribute '__class__' of 'str' object is unsafe",
        ),
        ("rank.sh.j2", "{{ rank + 1 }}", "cannot be filled in: can only concatenate str"),
        ("rank.sh", "#!/bin/sh", r"has rank\.sh, which replaces no template; name it as one of"),
    ],
)
def test_a_template_that_is_wrong_is_refused(
    name: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(EmitError, match=message) as refused:
        JOB.emit()
    assert "\n" not in str(refused.value)


def test_a_site_replaces_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = '{% block ds_config %}{"ranks": {{ layout.dp }},}{% endblock %}'
    text = config + "{% block notes %}- Ours.\n{% endblock %}"
    (tmp_path / "deepspeed.j2").write_text(text, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    files = JOB.replaced(frameworks="deepspeed").emit()
    assert files["ds_config.json"] == '{\n  "ranks": 4\n}\n'
    assert "- Ours.\n" in files["README.md"]


@pytest.mark.parametrize(
    ("framework", "template", "text", "message"),
    [
        ("deepspeed", "deepspeed", "", "cannot be filled in: it has no block ds_config; correct"),
        (
            "deepspeed",
            "deepspeed",
            "{% block ds_config %}{1}{% endblock %}",
            "cannot be filled in: Expecting property name",
        ),
        (
            "accelerate",
            "accelerate",
            "{% block accelerate %}a: b: c{% endblock %}",
            "cannot be filled in: mapping values are not allowed here",
        ),
        ("ddp", "readme", "{{ nobody }}", "'nobody' is undefined; correct it, or remove it"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused(
    framework: str,
    template: str,
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / f"{template}.j2").write_text(text, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(EmitError, match=message) as refused:
        JOB.replaced(frameworks=framework).emit()
    assert "\n" not in str(refused.value)


def test_a_template_that_is_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank.sh.j2").write_bytes(b"\xff")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(EmitError, match=r"cannot be filled in: .*; correct it, or remove it"):
        JOB.emit()


def test_a_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere")
    with pytest.raises(EmitError, match="/nowhere is not a folder; name one that exists"):
        JOB.emit()


def test_values_are_quoted() -> None:
    assert "setup.sh.j2" in template_names()
    text = render(
        "setup.sh", setup=[], exports={"A": "two words; rm"}, unset=[], hosts="", port=1, world=0
    )
    assert "export A='two words; rm'" in text
