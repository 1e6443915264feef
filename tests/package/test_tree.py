"""Comparing pytrees and naming their leaves."""

import dataclasses
import datetime

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqx_pipe._tree import (
    as_arrays,
    differences,
    is_key_array,
    join_path,
    leaf_text,
    leaves_with_names,
    tree_text,
)


@dataclasses.dataclass(frozen=True)
class Shaped:
    """A leaf with a shape and no dtype, which is no array."""

    shape: int


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_names_are_joined_by_dots():
    tree = {"a": [1, {"b": 2}], "c": eqx.nn.Identity()}
    assert leaves_with_names(tree) == [("a.0", 1), ("a.1.b", 2)]
    assert leaves_with_names(3) == [("", 3)]
    assert join_path("", 0) == "0"
    assert join_path("a.b", 0) == "a.b.0"


def test_key_arrays_are_those_of_the_new_style():
    assert is_key_array(jr.key(0))
    assert is_key_array(jr.split(jr.key(0)))
    assert not is_key_array(jr.PRNGKey(0))
    assert not is_key_array(jnp.ones(2))
    assert not is_key_array("key")


def test_numbers_become_arrays_and_the_rest_stays():
    text, day = np.array(["a"]), np.datetime64("2020-01-01")
    when = datetime.date(2020, 1, 1)
    tree = [1, 2.0, True, np.ones(2, "float32"), text, day, when, "a", None]
    one, two, true, ones, *rest = as_arrays(tree)
    assert all(isinstance(x, jax.Array) for x in (one, two, true, ones))
    assert (one.dtype, two.dtype, true.dtype) == ("int32", "float32", "bool")
    assert rest[0] is text
    assert rest[1:] == [day, when, "a", None]


def test_the_text_of_a_tree_shows_eight_leaves():
    assert tree_text(None) == "None"
    assert tree_text(jnp.ones((3, 4))) == "float32[3,4]"
    assert tree_text([struct(3)]) == "{0: float32[3]}"
    assert tree_text({"a": struct(), "b": "x"}) == "{a: float32[], b: 'x' (str)}"
    shown = ", ".join(f"{i}: {i} (int)" for i in range(8))
    assert tree_text(list(range(8))) == f"{{{shown}}}"
    assert tree_text(list(range(10))) == f"{{{shown}, ... 2 more}}"
    assert leaf_text(struct(2, dtype="int8")) == "int8[2]"


@pytest.mark.parametrize(
    "left, right, free_axis, lines",
    [
        (struct(2, 3), struct(2, 3), None, []),
        ({"a": 1}, {"a": 1}, None, []),
        ({"a": struct(2)}, {"a": struct(3)}, None, ["at `.a`: float32[2] against"]),
        (struct(2), struct(3), None, ["float32[2] against float32[3]"]),
        (struct(2), struct(2, dtype="int8"), None, ["float32[2] against int8[2]"]),
        ([1, 2], [1, 3], None, ["at `.1`: 2 (int) against 3 (int)"]),
        ([1], [struct()], None, ["at `.0`: 1 (int) against float32[]"]),
        # Equal, but one is an array: they do not make the same program.
        ([1], [np.float32(1)], None, ["at `.0`: 1 (int) against float32[]"]),
        ([np.float32(1)], [1], None, ["at `.0`: float32[] against 1 (int)"]),
        ([Shaped(2)], [Shaped(2)], None, []),
        ([Shaped(2)], [Shaped(3)], None, ["at `.0`: Shaped(shape=2) (Shaped) against"]),
        ([Shaped(2)], [struct(2)], None, ["at `.0`: Shaped(shape=2) (Shaped) against"]),
        ({"a": 1}, {"b": 1}, None, ["`.a` is only in the first", "`.b` is only in"]),
        ([1, 2], [1], None, ["`.1` is only in the first"]),
        (struct(2), [], None, ["float32[2] is only in the first"]),
        ((1,), [1], None, ["structure PyTreeDef((*,)) against PyTreeDef([*])"]),
        (struct(2, 3), struct(2, 4), 1, []),
        (struct(2, 3), struct(2, 4), -1, []),
        (struct(2, 3), struct(2, 4), 0, ["float32[2,3] against float32[2,4]"]),
        (struct(2, 3), struct(2), 1, ["float32[2,3] against float32[2]"]),
        (struct(3), struct(2), 0, []),
    ],
)
def test_differences(left, right, free_axis, lines):
    found = differences(left, right, free_axis)
    assert len(found) == len(lines)
    for line, start in zip(found, lines, strict=True):
        assert line.startswith(start)


def test_values_of_arrays_are_not_looked_at():
    assert differences(jnp.zeros(2), jnp.ones(2)) == []
