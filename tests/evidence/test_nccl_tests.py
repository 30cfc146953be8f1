"""Measured collectives beside the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli import main
from planner.cost.network.collective_table import OPERATIONS, group_of
from planner.cost.network.topology import group_view
from planner.describe.catalogue import load_machine
from planner.errors import CatalogueError
from planner.evidence.nccl_tests import published_for, read_measured, score

# a part of what nccl-tests prints: two hosts of one rank each, out of place
OUTPUT = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on  x3004 device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid  2 on  x3005 device  0 [0x07] NVIDIA A100
           0             0     float     sum      -1     5.00    0.00    0.00      0
     1048576        262144     float     sum      -1    176.0    5.96   10.43      0
  1073741824     268435456     float     sum      -1    52079   20.62   36.08      0
"""


def test_output_of_nccl_tests_is_scored_on_as_many_nodes_as_hosts(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.txt"
    path.write_text(OUTPUT)
    polaris = load_machine("polaris")
    rows, refused = read_measured(path, polaris)
    assert refused == []
    assert [(row.operation, row.nodes, row.size_bytes) for row in rows] == [
        ("all_reduce", 2, 2**20),
        ("all_reduce", 2, 2**30),
    ]
    # each rank has its own interface for itself: half of a node's two, whose share is a fourth
    assert [row.ranks for row in rows] == [2, 2]
    alone = group_view(polaris, 2, 4)
    alone = replace(alone, network_bytes_per_s=2 * alone.network_bytes_per_s)
    expected = float(OPERATIONS["all_reduce"](alone, 2**30))
    assert rows[1].estimated_s == expected
    assert rows[1].error == pytest.approx(expected / 0.052079 - 1)
    [(name, nodes, count, mean, median)] = score(rows)
    assert (name, nodes, count) == ("all_reduce >= 1 MiB, 2 ranks", 2, 2)
    assert mean == pytest.approx((abs(rows[0].error) + abs(rows[1].error)) / 2)
    assert median == pytest.approx((rows[0].error + rows[1].error) / 2)


def test_ranks_are_those_of_the_file_unless_other_nodes_are_stated(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.txt"
    for text, nodes, expected in (
        (OUTPUT, None, (2, 2)),
        (OUTPUT, 2, (2, 2)),
        # the hosts of the file are not the nodes of the run: all of their devices are counted
        (OUTPUT, 4, (4, None)),
        ("".join(x for x in OUTPUT.splitlines(True) if "Rank" not in x), 3, (3, None)),
    ):
        path.write_text(text)
        rows, refused = read_measured(path, load_machine("polaris"), nodes)
        assert refused == []
        assert {(row.nodes, row.ranks) for row in rows} == {expected}


@pytest.mark.parametrize("time", ["-1234.5", "nan", "inf", "0", "1e308", "1e-9", "", "N/A"])
def test_a_row_without_a_plausible_time_is_refused_by_its_line(tmp_path: Path, time: str) -> None:
    """None is dropped in silence; rows of size 0, which measure the launch, are none of them."""
    path = tmp_path / "all_reduce.txt"
    path.write_text(OUTPUT.replace("    176.0    5.96   10.43      0", f"    {time}"))
    rows, refused = read_measured(path, load_machine("polaris"))
    assert [row.size_bytes for row in rows] == [2**30]
    assert refused == [
        f"line 6: size 1048576 or time {time or 'missing'} is no plausible number of bytes or us"
    ]


def test_a_row_without_a_plausible_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.txt"
    path.write_text(OUTPUT.replace("     1048576 ", " -1 "))
    rows, [reason] = read_measured(path, load_machine("polaris"))
    assert [row.size_bytes for row in rows] == [2**30]
    assert reason.startswith("line 6: size -1 or time 176.0 is no plausible")


@pytest.mark.parametrize("count", [0, 1, 12])
def test_refused_rows_are_named_and_counted_and_end_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    bad = "  1048576        262144     float     sum      -1    nan    5.96   10.43      0\n"
    path = tmp_path / "all_reduce.txt"
    path.write_text(OUTPUT + bad * count)
    with pytest.raises(SystemExit) as stop:
        main(["collectives", "polaris", "-n", "2", "--against", str(path)])
    assert stop.value.code == (3 if count else 0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused")]
    assert len(lines) == min(count, 11)
    assert (lines[-1:] == ["refused: 2 further rows"]) == (count == 12)


def test_rows_of_a_table_are_refused_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        "collective,nodes,size_bytes,time_us\nAllGather,2,1024,30\nbarrier,2,1024,30\n"
        "allreduce,2,big,30\nallreduce,2,1024,0\n"
    )
    rows, refused = read_measured(path, load_machine("polaris"))
    assert [row.operation for row in rows] == ["all_gather"]
    assert [reason.split(":")[0] for reason in refused] == ["line 3", "line 4", "line 5"]
    path.write_text("nothing of the kind")
    with pytest.raises(CatalogueError, match="holds no measured collective"):
        read_measured(path, load_machine("polaris"))


SEVERAL = """\
# Collective test starting: broadcast_perf
#  Rank  0 Group  0 Pid  1 on  n1 device  0 [0x07] NVIDIA H200
#  Rank  1 Group  0 Pid  2 on  n1 device  1 [0x07] NVIDIA H200
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
     1048576        262144     float    none       0    30.00   34.95   34.95      0    31.00
# Collective test concluded: broadcast_perf
# Collective test starting: reduce_perf
#  Rank  0 Group  0 Pid  1 on  n1 device  0 [0x07] NVIDIA H200
#  Rank  1 Group  0 Pid  2 on  n1 device  1 [0x07] NVIDIA H200
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
     2097152        524288     float     sum       0    40.00   52.43   52.43      0    41.00
# Collective test starting: gather_perf
#       size         count      type   root     time   algbw   busbw  error     time   algbw
     4194304        524288     float      0       70   59.92   29.96  0e+00       71   59.10
# Collective test starting: all_gather_perf
#       size         count      type     time   algbw   busbw  error     time   algbw   busbw
     8388608       1048576     float    12345    0.68    0.34  0e+00    12346    0.68    0.34
"""


def test_several_tests_of_any_operation_and_age_stand_in_one_file(tmp_path: Path) -> None:
    """Two devices of a node of eight; older tests print no root, or no operation."""
    path = tmp_path / "all.txt"
    path.write_text(SEVERAL)
    h200 = load_machine("dgx-h200")
    rows, refused = read_measured(path, h200)
    assert refused == []
    assert [(row.operation, row.size_bytes, row.time_s, row.ranks) for row in rows] == [
        ("broadcast", 2**20, pytest.approx(30e-6), 2),
        ("reduce", 2**21, pytest.approx(40e-6), 2),
        ("gather", 2**22, pytest.approx(70e-6), 2),
        ("all_gather", 2**23, pytest.approx(12345e-6), 2),
    ]
    two = group_of(h200, 2)
    for row in rows:
        assert row.estimated_s == float(OPERATIONS[row.operation](two, row.size_bytes))


def test_a_table_may_say_how_many_devices_took_part(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        "collective,nodes,ranks,size_bytes,time_us\nscatter,1,4,1e6,30\nscatter,1,,1e6,30\n"
        "reduce,2,16,1e6,30\nreduce,2,3,1e6,30\nreduce,1,9,1e6,30\nreduce,1,1,1e6,30\n"
    )
    rows, refused = read_measured(path, load_machine("dgx-h200"))
    assert [(row.nodes, row.ranks) for row in rows] == [(1, 4), (1, None), (2, None)]
    assert rows[0].estimated_s < rows[1].estimated_s
    assert len(refused) == 3
    assert all(
        any(word in reason for reason in refused) for word in ("above 0", "3 ranks", "9 ranks")
    )


def test_published_times_belong_to_machine_and_ranks() -> None:
    found = published_for("polaris", "all-reduce", 32, 4)
    assert found is not None
    assert (found.nodes, found.times_s[-1]) == (8, pytest.approx(0.057697))
    assert len(found.times_s) == len(found.sizes_bytes)
    assert published_for("polaris", "all-gather", 32, 4) is None
    # 32 ranks on nodes of 8 are not 8 nodes
    assert published_for("polaris", "all-reduce", 32, 8) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("collective;nodes;size_bytes;time_us\nall_reduce;2;1024;0\n", "must be above 0"),
        ("collective,nodes,size_bytes,time_us_\nall_reduce,2,1024,9\n", "no column time_us"),
        ("nodes,size_bytes,time_us\n2,1024,9\n", "no column collective"),
        ("collective,nodes,size_bytes,time_us\nall_reduce,2,1024,nan\n", "must be above 0"),
        ("collective,nodes,size_bytes,time_us\nall_reduce,2,1e300,9\n", "must be above 0"),
        ("collective,nodes,size_bytes,time_us\nall_reduce,2,1024\n", "not a number"),
        ('collective,nodes,size_bytes,time_us\n"' + "x" * 200_000 + '",2,1024,9\n', "limit"),
        (OUTPUT.replace("52079", "1.2.3").replace("176.0", "."), "holds no measured"),
        ("", "holds no measured"),
    ],
)
def test_odd_tables_are_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    """Numbers such as 1.2.3, missing columns and cells of a novel's length were tracebacks."""
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(CatalogueError, match=words):
        read_measured(path, load_machine("polaris"))


def test_semicolons_part_cells_too(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("collective;nodes;size_bytes;time_us\nall_reduce;2;1048576;176\n")
    [row], refused = read_measured(path, load_machine("polaris"))
    assert (row.size_bytes, refused) == (2**20, [])
    with pytest.raises(CatalogueError, match="nodes = 0"):
        read_measured(path, load_machine("polaris"), 0)


def test_rows_that_name_no_nodes_are_refused_where_nobody_names_them(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("collective,size_bytes,time_us\nall_reduce,1048576,176\n")
    with pytest.raises(CatalogueError, match="nodes, size and time must be above 0"):
        read_measured(path, load_machine("polaris"))
    [row], refused = read_measured(path, load_machine("polaris"), nodes=2)
    assert (row.nodes, refused) == (2, [])
