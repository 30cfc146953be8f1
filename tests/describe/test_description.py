"""Descriptions: frozen, closed, finite; errors name field, value and rule."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from planner.describe.base import Description, Quantity, field_docs
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.convolutional import Convolution
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import DescriptionError, PlannerError, UnknownNameError, shorten


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Workload().sequence_length = 5  # type: ignore[misc]


def test_replaced_validates() -> None:
    assert Workload().replaced(global_batch=8).global_batch == 8
    with pytest.raises(DescriptionError, match=r"global_batch = -5 is refused"):
        Workload().replaced(global_batch=-5)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(DescriptionError, match=r"'batch' is not known"):
        Workload.described({"batch": 3})


def test_missing_field_is_named() -> None:
    with pytest.raises(DescriptionError, match=r"'source' is missing"):
        Quantity.described({"value": 1.0, "kind": "measured"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_quantities_are_finite(value: float) -> None:
    with pytest.raises(DescriptionError, match="finite"):
        Quantity.described({"value": value, "kind": "measured", "source": "log"})


def test_a_quantity_needs_its_source_and_kind() -> None:
    with pytest.raises(DescriptionError):
        Quantity.described({"value": 1.0, "kind": "measured", "source": ""})
    with pytest.raises(DescriptionError, match="kind = guessed"):
        Quantity.described({"value": 1.0, "kind": "guessed", "source": "log"})


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (Workload, {"sequence_length": 10**9}),
        (Workload, {"global_batch": 10**8}),
        (Workload, {"tokens": 1e300}),
        (Layout, {"dp": 10**12}),
    ],
)
def test_absurd_numbers_ask_for_units(cls: type[Description], fields: dict[str, float]) -> None:
    with pytest.raises(DescriptionError, match="check your units"):
        cls.described(fields)


@pytest.mark.parametrize("cls", [Workload, Layout, Model, Machine])
def test_every_field_is_documented(cls: type[Description]) -> None:
    assert [name for name, text in field_docs(cls).items() if not text] == []


def test_one_sentence_however_long_the_value() -> None:
    with pytest.raises(DescriptionError) as caught:
        Workload.described({"precision": "x" * 10_000})
    assert len(str(caught.value)) < 300


def test_nearest_names_are_offered() -> None:
    text = str(UnknownNameError("model", "lama-3-8b", ["llama-3-8b", "gpt2"]))
    assert "did you mean llama-3-8b?" in text
    assert issubclass(UnknownNameError, PlannerError)
    assert issubclass(PlannerError, ValueError)


def test_shorten() -> None:
    assert shorten("x" * 80) == "x" * 80
    assert shorten("x" * 81) == "x" * 77 + "..."


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora_targets": ["foo"]}, "lora_targets.0 = foo is refused"),
        ({"lora_rank": 8, "lora_targets": []}, "trains nothing"),
        ({"lora_targets": ["all-linear"]}, "lora_targets needs adapters; set lora_rank"),
        ({"frozen": ["embedding", "layers", "head"]}, "nothing is trained"),
    ],
)
def test_workload_rules(fields: dict[str, object], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        Workload.described(fields)


@pytest.mark.parametrize(
    ("precision", "size"), [("fp32", 4), ("tf32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 2)]
)
def test_activation_element(precision: str, size: int) -> None:
    assert Workload.described({"precision": precision}).compute_bytes == size


def test_unprintable_input_is_written_out() -> None:
    assert shorten("a\n\x1b[31m\0\udcff\u00e4") == "a\\n\\x1b[31m\\x00\\udcff\u00e4"


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (Layout, {"dp": True}),
        (Layout, {"tp": "4"}),
        (Layout, {"pp": 2.0}),
        (Layout, {"sequence_parallel": 1}),
        (Layout, {"sequence_parallel": "yes"}),
        (Workload, {"tokens": True}),
        (Workload, {"tokens": "2e12"}),
        (Workload, {"lora_targets": "query"}),
        (Workload, {"precision": True}),
    ],
)
def test_a_field_takes_its_own_type(cls: type[Description], fields: dict[str, object]) -> None:
    with pytest.raises(DescriptionError, match=f"{next(iter(fields))} = .* is refused"):
        cls.described(fields)
    with pytest.raises(PlannerError, match=f"{next(iter(fields))} = .* is refused"):
        cls(**fields)


def test_whole_numbers_are_real_ones_and_arrays_are_tuples() -> None:
    # what TOML and JSON write: 2 for 2.0, [] for ()
    workload = Workload.described({"tokens": 2, "frozen": ["head"]})
    assert workload == Workload(tokens=2.0, frozen=("head",))
    assert Workload.model_validate_json(workload.model_dump_json()) == workload
    assert Workload.described(workload.model_dump(mode="json")) == workload


def test_text_is_read_where_all_there_is_is_text() -> None:
    assert Layout.from_text({"dp": "8", "sequence_parallel": "True"}) == Layout(
        dp=8, sequence_parallel=True
    )
    with pytest.raises(DescriptionError, match="address: dp = many is refused"):
        Layout.from_text({"dp": "many"}, where="address")


@pytest.mark.parametrize(
    ("cls", "fields", "said"),
    [
        (Workload, {"document_lengths": 600}, "= 600 is refused: write a list, such as [1]"),
        (Workload, {"packing": "padded"}, "workload: packing = padded needs document_lengths"),
        (Workload, {"precision": "fp3"}, "write 'fp32', 'tf32', 'fp16', 'bf16' or 'fp8'"),
        (Workload, {"batch": 3}, "workload: the field 'batch' is not known"),
        (Workload, {"ramp": "{x}"}, "ramp = {x} is refused"),
        (Layout, {"recompute_every": 0}, "recompute_every = 0 is refused: input should be greater"),
        (Convolution, {"out_channels": 0, "kernel": (3,)}, "out_channels = 0 is refused: input"),
        (Layout, {"tp": "x"}, "layout: tp = x is refused: write a whole number"),
        (Quantity, {"value": 1.0, "kind": "measured"}, "the field 'source' is missing"),
    ],
)
def test_wrong_input_in_python_raises_the_planners_error(
    cls: type[Description], fields: dict[str, object], said: str
) -> None:
    with pytest.raises(PlannerError) as caught:
        cls(**fields)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_what_is_wrong_inside_is_named_by_its_place() -> None:
    """Descriptions inside others are built without the words of their own."""
    fields = load_machine("polaris").model_dump(mode="json")
    fields["device"]["memory_bytes"]["value"] = "much"
    with pytest.raises(DescriptionError, match=r"machine: device\.memory_bytes = much is refused"):
        Machine(**fields)
