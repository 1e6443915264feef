"""How messages are put together: names, values and paths."""

import jax.numpy as jnp
import pytest

import eqx_pipe as ep
from eqx_pipe._errors import describe_value, locate, message, nearest


def test_a_message_is_the_function_what_was_wrong_and_the_cure():
    text = message("chain", "`x` is 3.", "Give 4.")
    assert text == "`eqx_pipe.chain`: `x` is 3. Give 4."


@pytest.mark.parametrize(
    "name, known, text",
    [
        ("lenght", ["width", "length"], "Did you mean `length`? "),
        ("zzz", ["width", "length"], ""),
        (7, [], ""),
    ],
)
def test_the_nearest_name_is_proposed_and_all_are_listed(name, known, text):
    listed = ", ".join(f"`{k}`" for k in known) or "none"
    assert nearest(name, known) == f"{text}Known names: {listed}."


@pytest.mark.parametrize(
    "value, text",
    [
        (3, "3 (int)"),
        ("a", "'a' (str)"),
        (jnp.zeros((2, 3)), "an array float32[2,3]"),
        (jnp.int8(1), "an array int8[]"),
        ("x" * 78, repr("x" * 78) + " (str)"),  # 80 characters with the quotes
        ("x" * 79, "'" + "x" * 76 + "... (str)"),
    ],
)
def test_a_value_is_shown_with_its_type_in_80_characters(value, text):
    assert describe_value(value) == text


class OnlyShape:
    shape = (2,)

    def __repr__(self):
        return "only a shape"


def test_what_has_a_shape_alone_is_no_array():
    assert describe_value(OnlyShape()) == "only a shape (OnlyShape)"


def test_a_path_grows_outwards_and_other_notes_stay():
    error = ValueError("no")
    error.add_note("a note of somebody else")
    for segment in ("c", "b", "a"):
        locate(error, segment)
    assert error.__notes__ == [
        "a note of somebody else",
        "In eqx_pipe stage `a.b.c`",
    ]


def test_the_path_of_a_missing_key_grows_outwards():
    error = ep.MissingKeyError("")
    assert error.path == ""
    locate(error, "b")
    locate(error, "a")
    assert error.path == "a.b"
    assert "stage `a.b` needs a PRNG key" in str(error)
    assert isinstance(error, ValueError)


def test_a_sweep_error_holds_the_points_that_failed():
    assert ep.SweepError("no").indices == ()
    error = ep.SweepError("no", iter([3, 5]))
    assert error.indices == (3, 5)
    assert str(error) == "no"
