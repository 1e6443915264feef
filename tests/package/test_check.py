"""Checks of arguments that are on for every user, and what they let through."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqx_pipe._check import check_callable, check_choice, check_int, check_name
from eqx_pipe._keys import check_draws, check_key

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    "function, value, error",
    [
        ("chain", eqx.nn.Linear, r"is the class `Linear`, not .*`Linear\(\.\.\.\)`\.$"),
        ("chain", [jnp.sin], r"is a list of 1 things, .*: `chain\(\*stages\)`\.$"),
        ("chain", (jnp.sin,) * 2, r"is a tuple of 2 things, .*`chain\(\*stages\)`\.$"),
        (
            "chain",
            {"a": 1},
            r"is a dict with the keys \['a'\].*`chain\(\*\*stages\)`\.$",
        ),
        ("weighted", {"a": 1}, r"is a dict .*`weighted\(\*stages\.values\(\)\)`\.$"),
        ("chain", 3, r"is 3 \(int\), which cannot be called. A stage is"),
    ],
)
def test_what_is_no_stage_is_refused(function, value, error):
    with pytest.raises(TypeError, match=rf"`eqx_pipe.{function}`: `x` {error}"):
        check_callable(function, "x", value)


def test_what_can_be_called_is_a_stage():
    for value in (jnp.sin, eqx.nn.Identity(), lambda x: x):
        check_callable("chain", "x", value)


@pytest.mark.parametrize("name", ["", "a.b", ".", 3, None])
def test_a_bad_name_is_refused(name):
    with pytest.raises(ValueError, match="A name is a non-empty string without a dot"):
        check_name("chain", "x", name)


def test_any_other_string_is_a_name():
    for name in ("a", "a b", "0", "é"):
        check_name("chain", "x", name)


@pytest.mark.parametrize("value", [True, 2.0, "3", None, np.ones(2), jnp.ones(())])
def test_what_is_no_integer_is_a_type_error(value):
    with pytest.raises(TypeError, match="Give an integer of at least 2"):
        check_int("repeat", "n", value, 2)


@pytest.mark.parametrize("value", [1, 0, -5, np.int8(1)])
def test_an_integer_below_the_least_is_refused(value):
    with pytest.raises(ValueError, match=f"`n` is {value}. Give an integer of .* 2"):
        check_int("repeat", "n", value, 2)


def test_an_integer_of_the_least_or_more_is_accepted():
    for value in (2, 3, np.int32(2)):
        check_int("repeat", "n", value, 2)


@pytest.mark.parametrize(
    "value, cure",
    [
        ("meen", "Did you mean `mean`?"),
        (3, "Known names: `sum`, `mean`"),
        ([], "`sum`"),
    ],
)
def test_what_is_not_among_the_choices_is_refused(value, cure):
    with pytest.raises(ValueError, match=cure):
        check_choice("parallel", "merge", value, iter(["sum", "mean"]))
    check_choice("parallel", "merge", "mean", iter(["sum", "mean"]))


@pytest.mark.parametrize(
    "key",
    [
        3,
        jnp.ones(2),
        jnp.uint32(0),
        jr.split(jr.key(0)),
        jr.split(jr.key(0), (1, 1)),
        jr.split(jr.PRNGKey(0)),
        jnp.zeros(2, "int32"),
    ],
    ids=str,
)
def test_what_is_not_one_key_is_refused(key):
    with pytest.raises(TypeError, match="which is not a single PRNG key. Give one"):
        check_key("chain", key)


def test_keys_of_both_styles_are_keys():
    for key in (None, jr.key(0), jr.PRNGKey(0), jr.key(0, impl="rbg")):
        check_key("chain", key)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
@pytest.mark.parametrize("make", [jr.key, jr.PRNGKey])
def test_keys_whose_draws_differ_under_vmap_are_refused(make, impl):
    keys = jnp.stack([make(0, impl=impl)])
    kind = impl if make is jr.key else "rbg"  # raw keys show their size alone
    with pytest.raises(ValueError, match=f"`k` has keys of the kind `{kind}`"):
        check_draws("sweep", "`k` has keys", keys)


def test_other_keys_are_accepted_alone_and_in_fours():
    for key in (jr.key(0), jr.PRNGKey(0)):
        check_draws("sweep", "`k` has keys", key)
        check_draws("sweep", "`k` has keys", jr.split(key, 4))
