"""A row of these tables, and the laws that report it."""

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import eqx_pipe.testing as ept


class Row(NamedTuple):
    """Something broken, its sound twin, and a function that checks either.

    The arguments are such that the bug shows at them. `reference` is True if the check
    is given the right result, and `missed` is the reason why no law reports the bug.
    """

    name: str
    bug: Any
    sound: Any
    check: Callable[..., object]
    reference: bool = False
    missed: str = ""


def of_function(name, bug, sound, *args, key=None, reference=None, missed=""):
    """Return a row for a function of the arguments."""

    def check(fn, only=None):
        return ept.check_function(fn, *args, key=key, reference=reference, only=only)

    return Row(name, bug, sound, check, reference is not None, missed)


def broken_laws(row: Row, of: Any, **options: Any) -> set[str]:
    """Return the laws that are reported as broken."""
    try:
        row.check(of, **options)
    except AssertionError as error:
        text = str(error)
        if "`eqx_pipe.testing.check_" not in text:
            raise
        of_many = re.findall(r"^  - `(\w+)`", text, re.M)
        return set(of_many or re.findall(r"the law `(\w+)`", text))
    return set()


X, Y = jnp.array([0.7, -1.3, 2.1]), jnp.array([0.5, 1.6, -0.8])
MATRIX = jnp.array([[2.0, 0.3, -0.5], [0.1, 1.5, 0.4], [0.7, -0.2, 1.8]])


def with_jvp(fn, rule):
    made = jax.custom_jvp(fn)
    made.defjvp(rule)
    return made


def with_vjp(fn, backward, forward=None):
    made = jax.custom_vjp(fn)
    made.defvjp(forward or (lambda *args: (fn(*args), args)), backward)
    return made


def with_vmap(fn, rule):
    made = jax.custom_batching.custom_vmap(fn)
    made.def_vmap(rule)
    return made


def unary(fn, slope):
    """Return a function of one array with a rule for its derivative."""
    return with_jvp(fn, lambda x, t: (fn(x[0]), slope(x[0]) * t[0]))


def quiet(make, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Equinox warns about some of these bugs
        return make(*args)
