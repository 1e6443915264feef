"""What does a call of a small pipeline cost, jitted in two ways and outside `jit`?

Chains of 8, 32 and 64 small layers. `jax.jit` of a function that closes over the chain
is the base; `equinox.filter_jit` flattens the chain at each call. Outside `jit` the
chain runs beside `equinox.nn.Sequential` of the same layers. A round is about 400 calls
of each jitted side, and a few of the others.

Chains of one and four sines are compared with `equinox.nn.Sequential` of
`equinox.nn.Lambda` outside `jit` alone, where they should take at most 3 times as long.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

ROUNDS = 41
QUICK = {"layers": (8,), "sines": (1,), "block": 0.001}


def main(run, *, layers=(8, 32, 64), sines=(1, 4), block=0.005):
    x = jnp.ones(16)
    outside = {f"{num} sines outside jit": num for num in sines}
    names = {f"{num} layers": num for num in layers}
    for case in run.chosen({**outside, **names}):
        if case in outside:
            pipe = ep.chain(*[jnp.sin] * outside[case])
            sequential = eqx.nn.Sequential([eqx.nn.Lambda(jnp.sin)] * outside[case])
            calls = {"Sequential": sequential, "pipeline": pipe}
            sides = {name: lambda call=call: call(x) for name, call in calls.items()}
            run.compare(case, sides, to="Sequential", least=block)
            continue
        num = names[case]
        linear = [eqx.nn.Linear(16, 16, key=jr.key(i)) for i in range(num)]
        pipe = ep.chain(*[stage for layer in linear for stage in (layer, jnp.tanh)])
        tanh = eqx.nn.Lambda(jnp.tanh)
        sequential = eqx.nn.Sequential([s for layer in linear for s in (layer, tanh)])
        calls = {
            "jit": jax.jit(lambda x, pipe=pipe: pipe(x)),
            "filter_jit": eqx.filter_jit(pipe),
            "pipeline": pipe,
            "Sequential": sequential,
        }
        sides = {name: lambda call=call: call(x) for name, call in calls.items()}
        run.compare(case, sides, to="jit", least=block)
