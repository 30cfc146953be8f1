"""Arrays: structs of arrays of one shape, and their unique rows."""

import functools
import math
import operator
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Mask = NDArray[np.bool_]

_BATCH_ROWS = 24_576
# rows per batch: larger batches take more memory and are slower, because numpy returns arrays
# of more than a few MiB to the system after every operation
_NUM_THREADS = min(os.cpu_count() or 1, 8)
_MAX_COUNTING_RATIO = 16
# up to this many possible key values per row, counting is faster than sorting


@dataclass(frozen=True, slots=True)
class Arrays:
    """Struct of arrays of one shape; a field may also be a nested struct or a dict of arrays, and
    any other field holds for all rows."""

    def map(self, change: Callable[[Any], Any]) -> Self:
        """Apply `change` to every array."""
        kind: Any = type(self)
        return kind(
            *[
                change(values) if type(values) is np.ndarray else _mapped(values, change)
                for values in _values(kind)(self)
            ]
        )

    def take(self, index: Any) -> Self:
        """Select rows by numpy indexing."""
        # most fields are arrays: index them here, without a function call for each
        kind: Any = type(self)
        return kind(
            *[
                values[index] if type(values) is np.ndarray else _take_field(values, index)
                for values in _values(kind)(self)
            ]
        )

    def spread(self, index: Int) -> Self:
        """Select rows like `take`, but reduce an array of equal values to a scalar."""
        return self.map(lambda values: _spread(values, index))

    def of_each(self, index: Int, count: int) -> Self:
        """Select rows by flat index among `count` positions, where each row stands for several
        consecutive positions."""
        if count <= 1:
            return self.map(_FLAT)
        return self.map(lambda values: values.ravel()[index // (count // values.size)])

    @classmethod
    def joined(cls, structs: Sequence[Self]) -> Self:
        """Concatenate structs of one class."""
        kind: Any = cls
        return kind(*map(_joined, zip(*map(_values(kind), structs), strict=True)))


_FLAT = operator.methodcaller("reshape", -1)


@functools.cache
def _values(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter for the values of all fields of a struct class."""
    names = [field.name for field in fields(kind)]
    getter = operator.attrgetter(*names)
    return getter if len(names) > 1 else lambda struct: (getter(struct),)


def _take_field(value: Any, index: Any) -> Any:
    return value.take(index) if isinstance(value, Arrays) else _mapped(value, lambda v: v[index])


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Arrays):
        return type(first).joined(values)
    if isinstance(first, dict):
        return {name: _joined([value[name] for value in values]) for name in first}
    return np.concatenate(values) if isinstance(first, np.ndarray) else first


def _spread(values: Any, index: Int) -> Any:
    first_value = values.ravel()[:1]
    is_constant = values.size and (values == first_value).all()
    return first_value.reshape(()) if is_constant else values.take(index, 0)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, Arrays):
        return value.map(change)
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    return change(value) if isinstance(value, np.generic) else value


_Rows = TypeVar("_Rows", bound=Arrays)
_Result = TypeVar("_Result", bound=Arrays)


def map_in_batches(work: Callable[[_Rows], _Result], rows: _Rows, count: int) -> _Result:
    """Apply `work` to `count` rows; many rows run in batches on several threads."""
    if count <= _BATCH_ROWS:
        return work(rows)
    piece_size = -(-count // -(-count // _BATCH_ROWS))
    pieces = [rows.take(slice(start, start + piece_size)) for start in range(0, count, piece_size)]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        results = list(threads.map(work, pieces))
    return type(results[0]).joined(results)


def broadcast_to(values: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast values to a shape; arrays of that shape are returned as they are."""
    return values if getattr(values, "shape", None) == shape else np.broadcast_to(values, shape)


def where_any(condition: Mask, compute: Callable[[], Float]) -> Float:
    """Values where a condition holds, 0 elsewhere; `compute` runs only if a row needs it [1].

    Counted: values of rows that the condition selects. Left out: the others. Definition.
    """
    return np.where(condition, compute(), 0.0) if condition.any() else np.zeros(condition.shape)


def is_in(column: Int, values: Collection[int]) -> Mask:
    """True where a column equals one of `values`."""
    if not values:
        return np.zeros(np.shape(column), dtype=np.bool_)
    masks = [column == number for number in values]
    return functools.reduce(operator.or_, masks)


def distinct(*columns: Int | Mask) -> tuple[Int, Int]:
    """First index of each distinct row, and for every row the position of its distinct row [1].

    Columns are integers or booleans that broadcast; the second result has their shape. Counted:
    every column. Left out: nothing; distinct rows keep their order. Definition.
    """
    shapes = [column.shape for column in columns]
    shape = shapes[0] if len(set(shapes)) == 1 else np.broadcast_shapes(*set(shapes))
    size = math.prod(shape)
    if size <= 1:
        single_row = np.zeros(size, dtype=np.int64)
        return single_row, single_row.reshape(shape)
    same_shape = [column for column in columns if column.shape == shapes[0]]
    if len(same_shape) < len(columns) and np.size(same_shape[0]) < size:
        # number the distinct rows of the smaller columns first: one column replaces them
        wider_columns = [column for column in columns if column.shape != shapes[0]]
        columns = (distinct(*same_shape)[1], *wider_columns)
    key, values = np.zeros(size, dtype=np.int64), 1
    for column in columns:
        least, most = int(np.minimum.reduce(column, None)), int(np.maximum.reduce(column, None))
        if least == most:
            continue
        full = column if column.shape == shape else np.broadcast_to(column, shape)
        digits: Int = full.ravel().astype(np.int64, copy=False) - least
        width = most - least + 1
        if values * width > _MAX_COUNTING_RATIO * size:
            # renumber the keys that occur, so that their products stay small
            first, key = _numbered(key, values)
            values = len(first)
        key, values = key * width + digits, values * width
    first, index = _numbered(key, values)
    return first, index.reshape(shape)


def _numbered(key: Int, values: int) -> tuple[Int, Int]:
    """First index of each distinct key below `values`, and every key's number in that order [1]."""
    order = np.arange(len(key))
    if values > _MAX_COUNTING_RATIO * len(key):
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        earliest = first[inverse]
    else:
        # only entries written here are read; in reverse order the first occurrence writes last
        place = np.empty(values, dtype=np.int64)
        place[key[::-1]] = order[::-1]
        earliest = place[key]
    is_first = earliest == order
    number: Int = np.cumsum(is_first) - 1
    return np.flatnonzero(is_first), number[earliest]
