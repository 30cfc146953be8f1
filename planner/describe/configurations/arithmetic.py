"""Arithmetic: sums and products of whole numbers, which scripts and Python files write out."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

__all__ = ["arithmetic", "whole"]

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
_LARGEST = 10**15


def arithmetic(text: str) -> int | None:
    """The value [1] of a sum or a product of whole numbers; None where it is another thing.

    Counted: + - * and division, rounded down as a shell does. Left out: powers, names, reals.
    Definition.

    >>> arithmetic("8 * 40"), arithmetic("2 ** 999"), arithmetic("1 / 0")
    (320, None, None)
    """
    try:
        return whole(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def whole(node: ast.expr) -> int | None:
    """The value [1] of an expression, as `arithmetic`.

    Counted, left out: as there. Definition.

    >>> whole(ast.parse("5 * 8", mode="eval").body)
    40
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value if abs(node.value) <= _LARGEST else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        return None
    left, right = whole(node.left), whole(node.right)
    if left is None or right is None:
        return None
    if right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv):
        return None
    number = _OPERATIONS[type(node.op)](left, right)
    return number if abs(number) <= _LARGEST else None
