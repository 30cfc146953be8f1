"""Shell scripts are followed as bash runs them: the same commands with the same words."""

from __future__ import annotations

import ast
import shutil
import subprocess

import pytest

from planner.describe.configurations.shell import (
    evaluate_integer,
    follow_script,
    options_of,
    parsed,
    settings_of,
)

_FUNCTION = r"""run() { printf '%s\t' "$@"; printf '\n'; }
"""
_SCRIPTS = (
    # words, quotes, comments, lines that go on
    "run a b  c",
    "run 'a b' # run d",
    "# run a\nrun b#c",
    'A="1 2"\nrun x$A',
    "run \\\n  a \\\n  b",
    "run a; run b\nrun c",
    "run 'it; is' && run b",
    "run a#b '#c' \"#d\"",
    # variables, defaults, appended words, arrays
    "A=3; B=${A}4; run $A $B ${C:-5} ${C-6}",
    "A=3\nrun '$A'\"$A\"$A",
    "A=a\nA+=b\nrun x",
    "export A=3 B=4\nrun $A $B",
    'A=(--x 1 --y 2)\nrun "${A[@]}" z',
    "A=1 \nA=2\nrun $A",
    "local_rank=2\nrun ${local_rank}x",
    "D=8\nrun ${X:-$D} ${Y:-x$D}",
    # arithmetic
    "N=4\nrun $((N * 8)) $(( (N + 2) / 4 )) $((7 - $N)) $((${N} + 1))",
    "N=10\nrun $((N / 3)) $((N - 3 - 3)) $((2 * 3 + 4))",
    # tests and branches
    "A=3\nif [ $A -gt 2 ]; then run more; else run less; fi\nrun end",
    "A=2\nif [ $A -gt 2 ]; then run more; else run less; fi\nrun end",
    "A=2\nif [ $A -ge 2 ]\nthen\n run more\nfi",
    "A=2\nif [ $A -lt 2 ]; then run a; elif [ $A -le 2 ]; then run b; else run c; fi",
    "A=1\nif [ $A -lt 2 ]; then run a; elif [ $A -le 2 ]; then run b; else run c; fi",
    "A=5\nif [ $A -lt 2 ]; then run a; elif [ $A -le 2 ]; then run b; else run c; fi",
    'A=x\nif [ "$A" = x ]; then run same; fi\nif [ "$A" != x ]; then run other; fi',
    'if [[ "$A" == "" ]]; then run none; fi',
    'if [ -z "$A" ]; then run none; fi\nif [ -n "$A" ]; then run some; fi',
    'A=1\nif [ -z "$A" ]; then run none; fi\nif [ -n "$A" ]; then run some; fi',
    "A=2\nif [ $A -ne 2 ]; then run a; fi\nif [ $A -eq 2 ]; then run b; fi",
    "A=1\nif [ $A -eq 1 ]; then if [ $A -eq 2 ]; then run a; else run b; fi; run c; fi\nrun d",
    "A=2\nif [ $A -eq 1 ]; then if [ $A -eq 2 ]; then run a; else run b; fi; run c; fi\nrun d",
    "A=1\n[ $A -eq 1 ] && run a\n[ $A -eq 2 ] && run b\nrun c",
    "A=1\n[ $A -eq 1 ] || run a\n[ $A -eq 2 ] || run b\nrun c",
    "A=1\ntest $A -eq 1 && A=7\nrun $A",
    # texts for files are no commands
    "cat > /dev/null <<EOF\nrun a\nEOF\nrun b",
    "cat > /dev/null <<'END'\nrun a\nEND\nrun b",
    "cat <<- EOF > /dev/null\nrun a\nEOF\nrun b",
    # what is quoted or grouped
    "run '(' a ')'",
    'run "a && b" c',
    "run a > /dev/stdout",
    "{ run a; run b; }",
)


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_commands_are_those_that_bash_runs() -> None:
    separator = "printf '%s\\n' ----\n"
    script = _FUNCTION + separator.join(f"(\n{text}\n)\n" for text in _SCRIPTS)
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env={}, timeout=60
    )
    assert done.stderr == ""
    answers = done.stdout.split("----\n")
    assert len(answers) == len(_SCRIPTS)
    for text, answer in zip(_SCRIPTS, answers, strict=True):
        expected = [line.split() for line in answer.splitlines()]
        commands = [list(words[1:]) for words in follow_script(text).commands if words[0] == "run"]
        followed = [words[: words.index(">")] if ">" in words else words for words in commands]
        assert followed == expected, text


def test_files_are_filled_with_variables() -> None:
    text = "N=4\ncat > hosts_$N.txt <<EOF\nslots=$N\nof $((N * 2))\nEOF\necho end"
    assert follow_script(text).files == {"hosts_4.txt": "slots=4\nof 8"}


def test_what_the_script_alone_does_not_decide_runs_neither_branch_nor_stops_the_rest() -> None:
    text = "if [ -f x ]; then run a; fi\n[ -d y ] && run b\n[ -d y ] || run c\nrun d"
    commands = follow_script(text).commands
    assert [words for words in commands if words[0] == "run"] == [("run", "c"), ("run", "d")]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("7 // 2", 3),
        ("7 / 2", 3),
        ("2 - 5", -3),
        ("1 // 0", None),
        ("1 / 0", None),
        ("2 ** 9", None),
        ("True", None),
        ("1.5", None),
        ("'a'", None),
        ("10 ** 15", None),
        (f"{10**15}", 10**15),
        (f"{10**15 + 1}", None),
        (f"{10**15} + 1", None),
        (f"0 - {10**15}", -(10**15)),
        ("x + 1", None),
        ("1 + x", None),
    ],
)
def test_integers(text: str, number: int | None) -> None:
    tree = parsed(text, "eval")
    assert isinstance(tree, ast.Expression)
    assert evaluate_integer(tree.body) == number


def test_options_have_their_values() -> None:
    text = (
        "torchrun --nproc-per-node 4 train.py --tensor_parallel=8 --bf16 --name 'a b' \\\n"
        "  --split 949 50 1 --data=x > log.txt"
    )
    assert options_of(text) == {
        "nproc-per-node": "4",
        "tensor-parallel": "8",
        "bf16": True,
        "name": "a b",
        "split": "949 50 1",
        "data": "x",
    }


def test_an_argument_file_has_an_option_or_more_values_in_a_line() -> None:
    text = "# of Megatron-LM\n--a 1\n--b\n--c\n2\n3\n\n--d x y\n"
    assert options_of(text) == {"a": "1", "b": True, "c": "2 3", "d": "x y"}


def test_options_of_variables_count_where_no_command_has_any() -> None:
    assert options_of('N=2\nARGS="--x $N --y"') == {"x": "2", "y": True}


def test_settings_are_nested_tables() -> None:
    text = "python train.py model.tp=2 model.data.path=/x trainer.nodes=$((1 + 1))"
    assert settings_of(text) == {
        "model": {"tp": "2", "data": {"path": "/x"}},
        "trainer": {"nodes": "2"},
    }
