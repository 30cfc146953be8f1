"""Units: typed quantities are converted to SI units and back."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import units
from planner.errors import DescriptionError
from planner.units import (
    GIB,
    counted,
    format_amount,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40GB", 40e9),
        ("40 GiB", 40 * 2**30),
        ("200 Gb/s", 25e9),  # bits
        ("200 GB/s", 200e9),  # bytes
        ("1.6TB/s", 1.6e12),
        ("312TFLOP/s", 312e12),
        ("312 TFLOPS", 312e12),
        ("5us", 5e-6),
        ("12 ms", 12e-3),
        ("2h", 7200),
        ("2T", 2e12),
        ("1,024", 1024),
        ("1_000_000", 1e6),
        ("2e12", 2e12),
        (".5", 0.5),
        ("-3 MiB", -3 * 2**20),
        ("3Ki", 3072),
    ],
)
def test_parse(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("40gb", "40GB"),
        ("5mb", "5MB"),
        ("312tflops", "312TFLOPS"),
        ("2t", "2T"),
        ("3gib", "3GiB"),
        ("5 US", "5us"),
        ("25gB/s", "25GB/s"),
    ],
)
def test_case_of_a_prefix_never_drops_it(typed: str, meant: str) -> None:
    assert parse_quantity(typed) == parse_quantity(meant)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "0x10",
        "--3",
        "4 GiBs",
        "3 parsecs",
        "1;2",
        "9" * 5000,
        "[" * 5000,
        "40 G i B",
        "\0",
        "1e",
    ],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        parse_quantity(text)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=40))
def test_parse_gives_a_finite_number_or_refuses(text: str) -> None:
    with contextlib.suppress(DescriptionError):
        assert math.isfinite(parse_quantity(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5 * GIB, "1.50 GiB"),
        (2**41, "2.00 TiB"),
        (-3 * 2**20, "-3.00 MiB"),
        (10, "10 B"),
        (0, "0 B"),
    ],
)
def test_format_bytes(value: float, text: str) -> None:
    assert format_bytes(value) == text


def test_gib_is_binary_and_gb_decimal() -> None:
    # some tools print 2**30 bytes as GB
    assert parse_quantity("1GiB") == GIB == 1.073741824 * parse_quantity("1GB")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (2e-5, "20 us"),
        (0.285, "285 ms"),
        (81.58, "81.6 s"),
        (4e5, "4.63 d"),
        (7200, "2 h"),
        (1e-9, "1 ns"),
        (1.9e-10, "0.19 ns"),
        (0.9997, "1 s"),
        (999.7, "16.7 min"),
        (3625, "60.4 min"),
        (3600 * 1008, "42 d"),
        (3.25e3 * 86400, "8.9 years"),
    ],
)
def test_format_seconds(value: float, text: str) -> None:
    assert format_seconds(value) == text


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_format_seconds_reads_back(value: float) -> None:
    number, unit = format_seconds(value).split()
    scale = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}.get(unit, 86400.0)
    scale *= 365.25 if unit == "years" else 1
    assert float(number) * scale == pytest.approx(value, rel=6e-3)


@given(st.floats(min_value=1, max_value=1e18))
def test_format_bytes_reads_back(value: float) -> None:
    assert parse_quantity(format_bytes(value)) == pytest.approx(value, rel=6e-3, abs=0.5)


def test_format_rate_and_count() -> None:
    assert format_rate(1.56e12) == "1.56 TB/s"
    assert format_rate(312e12, "FLOP/s") == "312 TFLOP/s"
    assert format_rate(0) == "0 B/s"
    assert format_count(8_030_261_248) == "8.03 B"
    assert format_count(512) == "512"


def test_an_estimate_has_three_digits() -> None:
    # thirteen digits would be misleading for an estimate with an interval of 30 %
    assert format_amount(10_635_697.9474) == "10.6 M"
    assert format_amount(5_247_592) == "5.25 M"
    assert format_amount(13_224) == "13,200"
    assert format_amount(0.1234) == "0.123"
    assert format_amount(0) == "0"


def test_one_is_singular() -> None:
    assert counted(1, "device") == "1 device"
    assert counted(0, "rank") == "0 ranks"
    assert counted(1024, "node") == "1,024 nodes"


def test_numbers_are_written_and_read_in_units() -> None:
    for value, text in ((1.5 * 2**30, "1.50 GiB"), (-3 * 2**20, "-3.00 MiB"), (1e17, "88.82 PiB")):
        assert units.format_bytes(value) == text
    assert units.format_rate(1.56e12) == "1.56 TB/s"
    assert units.format_rate(312e12, "FLOP/s") == "312 TFLOP/s"
    assert [units.format_count(n) for n in (8030261248, 85_003_776, 512)] == [
        "8.03 B",
        "85 M",
        "512",
    ]
    amounts = {13_224_257: "13.2 M", 131_234: "131,000", 2007.4: "2,010", 0.5: "0.5"}
    assert {n: units.format_amount(n) for n in amounts} == amounts
    times = {0.285: "285 ms", 81.58: "81.6 s", 4e5: "4.63 d", 2e-5: "20 us", 2.81e8: "8.9 years"}
    assert {n: units.format_seconds(n) for n in times} == times
    assert units.format_seconds(946, like=1710) == "15.8 min"
    assert units.parse_quantity("40 GiB") == 40 * 2**30
    assert (units.parse_quantity("200 Gb/s"), units.parse_power("2.5 kW")) == (25e9, 2500.0)
    assert (units.counted(1, "node"), units.counted(12_288, "device")) == (
        "1 node",
        "12,288 devices",
    )
    assert units.either(["ddp", "fsdp2", "deepspeed"]) == "ddp, fsdp2 or deepspeed"
    assert units.parse_places("0-2,5", 6) == (0, 1, 2, 5)
