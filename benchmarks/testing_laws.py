"""What does each law of `check_function` take, in seconds and compiled programs?

Of a function of two vectors, of attention (three matrices) and of an MLP. Each law
alone, with nothing compiled before; the last row of a case is all of them together,
which share programs. Times are of the processor, since most of it is compilation.
The last case is `check_function` in a property test on arrays of `"*b n"`.
"""

import time

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

import eqx_pipe.testing as ept

DEVICES = 1
ROUNDS = 1

_compiled = []


def _note(event, duration_secs, **kwargs):
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(event)


def attend(query, key, value):
    return jax.nn.softmax(query @ key.T) @ value


def normal(i, *shape):
    return jr.normal(jr.key(i), shape)


CASES = {
    "hypot": (jnp.hypot, (normal(0, 3), normal(1, 3))),
    "attention": (attend, (normal(0, 2, 3), normal(1, 4, 3), normal(2, 4, 2))),
    "MLP": (eqx.nn.MLP(3, 2, 4, 2, key=jr.key(0)), (normal(0, 3),)),
}


def cost(fn, args, skip):
    jax.clear_caches()
    before, begin = len(_compiled), time.process_time()
    ept.check_function(fn, *args, skip=skip)
    return time.process_time() - begin, len(_compiled) - before


def smooth(x, *, key=None):
    return jnp.tanh(x) * 2


def cost_of_examples(most, examples):
    """Seconds and programs of a property test, with so many forms at most."""
    arrays = ept.from_jaxtyping(Float[Array, "*b n"], max_shapes=most)

    @hypothesis.settings(max_examples=examples, deadline=None, database=None)
    @hypothesis.seed(0)
    @hypothesis.given(arrays)
    def test(x):
        ept.check_function(smooth, x)

    jax.clear_caches()
    before, begin = len(_compiled), time.process_time()
    test()
    return time.process_time() - begin, len(_compiled) - before


def main(run, *, examples=100):
    jax.monitoring.register_event_duration_secs_listener(_note)
    for case in run.chosen(CASES):
        fn, args = CASES[case]
        laws = [*ept.check_function(fn, *args)]
        sides = {"a plain call": {*laws}}
        sides |= {law: {*laws} - {law} for law in laws} if not run.quick else {}
        sides |= {"all": ()}
        for side, skip in sides.items():
            seconds, programs = cost(fn, args, skip)
            run.row(case=case, law=side, time=seconds, programs=programs)
    for case in run.chosen(["drawn"]):
        for most in (2, 3, 4, None):
            seconds, programs = cost_of_examples(most, 3 if run.quick else examples)
            side = f"at most {most} forms" if most else "any form"
            run.row(case=case, law=side, time=seconds, programs=programs)
