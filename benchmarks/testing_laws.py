"""What does each law of `check_function` take, in seconds and compiled programs?

Each law alone, for a function of two vectors, for attention and for an MLP, with
nothing compiled before; the last row of a case is all laws together, which share
programs. Times are processor time, since most of it is compilation.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe.testing as ept

DEVICES = 1
ROUNDS = 1
compiled = []


def note(event, duration_secs, **kwargs):
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(event)


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
    before, begin = len(compiled), time.process_time()
    ept.check_function(fn, *args, skip=skip)
    return time.process_time() - begin, len(compiled) - before


def main(run):
    jax.monitoring.register_event_duration_secs_listener(note)
    for case in run.chosen(CASES):
        fn, args = CASES[case]
        laws = [*ept.check_function(fn, *args)]
        sides = {"a plain call": {*laws}}
        sides |= {law: {*laws} - {law} for law in laws} if not run.quick else {}
        for law, skip in (sides | {"all": ()}).items():
            seconds, programs = cost(fn, args, skip)
            run.row(case=case, law=law, time=seconds, programs=programs)
