"""What does each law of `check_function` take, in seconds and compiled programs?

Each law alone, for a function of two vectors, for attention, for an MLP and for an
adaptive solve, with nothing compiled before; then all laws together, which share
programs, and all laws again for other inputs. `jit and grad` is the same call without
any law. Times are processor time, since most of it is compilation.
"""

import functools as ft
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe.testing as ept

DEVICES = 1
ROUNDS = 1
QUICK = {"only": ("hypot",)}
compiled = []


def note(event, duration_secs, **kwargs):
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(event)


def attend(query, key, value):
    return jax.nn.softmax(query @ key.T) @ value


def normal(i, *shape):
    return jr.normal(jr.key(i), shape)


def solve(y0):
    import diffrax

    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -0.5 * y * y),
        diffrax.Tsit5(),
        0.0,
        1.0,
        0.1,
        y0,
        stepsize_controller=diffrax.PIDController(1e-4, 1e-6),
        max_steps=64,
    ).ys[0]


CASES = {
    "hypot": (jnp.hypot, (normal(0, 3), normal(1, 3))),
    "attention": (attend, (normal(0, 2, 3), normal(1, 4, 3), normal(2, 4, 2))),
    "MLP": (eqx.nn.MLP(3, 2, 4, 2, key=jr.key(0)), (normal(0, 3),)),
    "Tsit5": (solve, (jnp.linspace(0.5, 1, 4),)),
}


def cost(run):
    before, begin = len(compiled), time.process_time()
    run()
    return time.process_time() - begin, len(compiled) - before


def jit_and_grad(fn, args):
    arrays, static = eqx.partition(fn, eqx.is_array)

    def value(arrays, *args):
        return eqx.combine(arrays, static)(*args)

    def gradient(*inputs):
        return jax.grad(lambda inputs: value(*inputs).sum())(inputs)

    for run in (value, gradient):
        jax.block_until_ready(jax.jit(run)(arrays, *args))


def main(run):
    jax.monitoring.register_event_duration_secs_listener(note)
    for case in run.chosen(CASES):
        fn, args = CASES[case]
        others = tuple(np.asarray(x) * np.float32(0.9) for x in args)
        laws = [*ept.check_function(fn, *args)]
        sides = {"a plain call": {*laws}}
        sides |= {law: {*laws} - {law} for law in laws} if not run.quick else {}
        runs = {"jit and grad": lambda fn=fn, args=args: jit_and_grad(fn, args)}
        for law, skip in (sides | {"all": ()}).items():
            check = ft.partial(ept.check_function, fn, skip=skip)
            runs[law] = lambda check=check, args=args: check(*args)
        for law, one in runs.items():
            jax.clear_caches()
            seconds, programs = cost(one)
            run.row(case=case, law=law, time=seconds, programs=programs)
        seconds, programs = cost(
            lambda fn=fn, args=others: ept.check_function(fn, *args)
        )
        run.row(case=case, law="all, again", time=seconds, programs=programs)
