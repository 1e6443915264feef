"""The programs of sweeps, lowered for CUDA on a machine without it.

On a CPU no test fails if a kernel uses a callback to Python or a routine of LAPACK.
`jax.export` lowers for a platform that is not present.
"""

import re

import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

LOWERED: list[str] = []


class ForCuda:
    """A jitted function that is also lowered for CUDA whenever it is lowered."""

    def __init__(self, fn):
        self.fn = fn

    def lower(self, *args):
        exported = jax.export.export(self.fn, platforms=["cuda"])(*args)
        assert exported.platforms == ("cuda",)
        LOWERED.append(exported.mlir_module())
        return self.fn.lower(*args)

    def __call__(self, *args):
        self.lower(*args)
        return self.fn(*args)


@pytest.fixture(autouse=True)
def lowered_for_cuda(monkeypatch):
    LOWERED.clear()
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda *args, **named: ForCuda(jit(*args, **named)))


# Numbers that occur in no other test, whose programs would not be lowered again.
SPACE = {"a": ep.Linspace(0, 1, 5), "b": ep.Values([1.0, 2.0, 3.0, 4.0])}


def formula(p):
    return {"y": jnp.sin(p["a"] * 1.7183) * p["b"], "n": jnp.int8(3)}


def waiting(p):
    return jax.lax.while_loop(lambda x: x < p["b"], lambda x: 2.7183 * x + 1, p["a"])


@ep.refill
def refilled(p):
    return jax.lax.while_loop(lambda x: x < p["b"], lambda x: 3.7183 * x + 1, p["a"])


def drawn(p, key):
    return jr.normal(key, (3,)) * p["a"], jr.fold_in(key, 7183)


def static(p):
    return p["f"](p["a"] * 1.7183)


CHOICES = {"f": ep.Static([jnp.sin, jnp.cos]), "a": ep.Linspace(0, 1, 9)}
KINDS = {
    "waiting": lambda: ep.sweep(waiting, SPACE),
    "refilled": lambda: ep.sweep(refilled, SPACE),
    "drawn": lambda: ep.sweep(drawn, SPACE, key=jr.key(0)),
    "ordered": lambda: ep.sweep(waiting, SPACE, order_by=lambda p: p["a"]),
    "reduced": lambda: ep.sweep(
        formula, SPACE, reduce=ep.reduce.Histogram(np.linspace(0, 5, 72), "y")
    ),
    "reduced static": lambda: ep.sweep(static, CHOICES, reduce=ep.reduce.Mean()),
    "sweeper": lambda: ep.sweeper(formula, SPACE)(SPACE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_operation_needs_a_cpu(kind):
    KINDS[kind]()
    assert LOWERED
    for text in LOWERED:
        calls = set(re.findall(r"custom_call @(\w+)", text))
        assert calls <= {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
        assert not re.search("callback|lapack|all_reduce|all_gather|permute", text)


def test_a_callback_is_detected():
    with pytest.raises(ValueError, match="lowering platform cuda"):
        ep.sweep(lambda x: jax.debug.print("{}", x) or x, ep.Linspace(0, 1, 3))
