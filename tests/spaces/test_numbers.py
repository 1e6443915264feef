"""A third compilation for another Python number logs a hint, once."""

import itertools as it

import equinox as eqx
import jax.numpy as jnp
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

X = {"x": ep.Linspace(0, 1, 3)}
_numbers = it.count(1)
RATE = 0.0


def fresh(count=3):
    """Return numbers that no other test has compiled for."""
    return [1.0 + next(_numbers) / 8 for _ in range(count)]


def logged(caplog, sweep, values):
    """Return what is logged when `sweep` is called with each of some values."""
    with caplog.at_level("WARNING", "eqx_pipe"):
        for value in values:
            sweep(value)
    return [text for text in caplog.messages if "third time" in text]


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
    lambda rate: lambda p: jnp.sin(p["x"] * rate),
    of_global,
    lambda rate: eqx.Partial(scaled, rate=rate),
    lambda rate: Plain(rate).run,
]


@pytest.mark.parametrize("make", HOLDERS)
def test_a_number_in_a_function_is_logged_once(make, caplog):
    (found,) = logged(caplog, lambda rate: ep.sweep(make(rate), X), fresh(5))
    assert "compiles for the third time, only because a Python or NumPy number" in found
    assert "if no shape and no `if` depends on it" in found


def damped(p):
    return jnp.exp(-p["x"] * p["rates"]["slow"])


def space_of(rate):
    return X | {"rates": {"slow": rate, "fast": 1.0}, "name": "a"}


def test_a_number_in_a_space_is_logged(caplog):
    (found,) = logged(caplog, lambda rate: ep.sweep(damped, space_of(rate)), fresh())
    assert "`damped` compiles for the third time" in found


def test_the_cure_compiles_nothing(caplog):
    def sweep(rate):
        return ep.sweep(lambda p: damped(p) + 1, space_of(jnp.asarray(rate)))

    assert logged(caplog, sweep, fresh()) == []
    with ept.assert_compiles(0):
        sweep(0.5)


def test_a_reduction_logs_too(caplog):
    def sweep(rate):
        return ep.sweep(lambda p: rate + p["x"], X, reduce=ep.reduce.Mean())

    assert len(logged(caplog, sweep, fresh())) == 1


def test_the_same_numbers_log_nothing(caplog):
    sweep = lambda rate: ep.sweep(lambda p: rate / (1 + p["x"]), X)  # noqa: E731
    assert not logged(caplog, sweep, 3 * fresh(2))


def long(value):
    return {"x": ep.Linspace(0, 1, int(8 * value))}


SILENT = {
    "static": lambda value: ep.sweep(
        lambda p: p["x"] * p["s"], X | {"s": ep.Static(fresh(2))}
    ),
    "lengths": lambda value: ep.sweep(
        lambda p: p["x"] * value, long(value), batch_size=1
    ),
    "structures": lambda value: ep.sweep(
        lambda p: sum((p["x"] for _ in range(int(8 * value))), 0.0), X
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_other_programs_log_nothing(name, caplog):
    assert logged(caplog, SILENT[name], fresh()) == []
