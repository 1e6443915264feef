"""Programs compiled for nothing but number changed: said once, with the cure."""

import itertools as it
import os
import warnings

import equinox as eqx
import jax.numpy as jnp
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

X = {"x": ep.Linspace(0, 1, 3)}
_numbers = it.count(1)
RATE = 0.0


def fresh(count=3):
    """Numbers that no other test has compiled for."""
    return [1.0 + next(_numbers) / 8 for _ in range(count)]


def said(sweeps):
    """Return the warnings of some sweeps."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for sweep in sweeps:
            sweep()
    return [str(w.message) for w in seen]


class Plain:
    def __init__(self, rate):
        self.rate = rate

    def run(self, p):
        return p["x"] - self.rate


def scaled(p, rate):
    return p["x"] / rate


def by_global(p):
    return RATE - p["x"]


def of_global(rate):
    global RATE
    RATE = rate
    return by_global


HOLDERS = [
    ("`rate` in the function (", lambda rate: lambda p: jnp.sin(p["x"] * rate)),
    ("`RATE` in the function (", of_global),
    ("somewhere", lambda rate: eqx.Partial(scaled, rate=rate)),
    ("somewhere", lambda rate: Plain(rate).run),
]


@pytest.mark.parametrize(("name", "make"), HOLDERS)
def test_the_number_in_a_function_is_named(name, make):
    (found,) = said(lambda rate=rate: ep.sweep(make(rate), X) for rate in fresh())
    assert f"number changed: {name}" in found
    assert "if no shape and no `if` depends on it" in found


def damped(p):
    return jnp.exp(-p["x"] * p["rates"]["slow"])


def space_of(rate):
    return X | {"rates": {"slow": rate, "fast": 1.0}, "name": "a"}


def test_the_number_in_a_space_is_named_with_its_values():
    rates = fresh(5)
    found = said(lambda rate=rate: ep.sweep(damped, space_of(rate)) for rate in rates)
    values = ", ".join(map(str, rates[:3]))
    assert len(found) == 1
    assert found[0] == (
        "`eqx_pipe.sweep`: `damped` compiles for the third time, only because a Python "
        f"number changed: `rates.slow` in the space ({values}). Python and NumPy "
        "numbers are part of the program, arrays are data: give "
        f"`jnp.asarray({rates[2]})` if no shape and no `if` depends on it. (This "
        "warning appears once.)"
    )


def test_the_cure_compiles_nothing():
    asked = [space_of(jnp.asarray(rate)) for rate in fresh()]
    assert said(lambda s=s: ep.sweep(lambda p: damped(p) + 1, s) for s in asked) == []
    with ept.assert_compiles(0):
        ep.sweep(lambda p: damped(p) + 1, space_of(jnp.asarray(0.5)))


@pytest.mark.skipif(
    "EQX_PIPE_CHECK_ANNOTATIONS" in os.environ, reason="the checks add frames"
)
def test_the_warning_points_to_the_call():
    with pytest.warns(UserWarning, match="third time") as seen:
        for rate in fresh():
            ep.sweep(lambda p, rate=rate: p["x"] // rate, X)
    assert seen[0].filename == __file__


def test_the_same_numbers_again_are_no_news():
    rates = fresh(2)
    assert not said(
        lambda rate=rate: ep.sweep(lambda p: rate / (1 + p["x"]), X)
        for rate in 3 * rates
    )


OTHERS = iter([lambda x: x * 1.03125, lambda x: x * 2.03125, lambda x: x * 3.03125])


def long(value):
    return {"x": ep.Linspace(0, 1, int(8 * value))}


def swept_with(fn):
    return ep.sweep(lambda p: fn(p["x"]), X)


SILENT = {
    "static": lambda value: ep.sweep(
        lambda p: p["x"] * p["s"], X | {"s": ep.Static(fresh(2))}
    ),
    "lengths": lambda value: ep.sweep(
        lambda p: p["x"] * value, long(value), batch_size=1
    ),
    "functions": lambda value: swept_with(next(OTHERS)),
}


@pytest.mark.parametrize("name", SILENT)
def test_other_programs_are_compiled_in_silence(name):
    assert said(lambda value=value: SILENT[name](value) for value in fresh()) == []
