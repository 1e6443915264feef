"""What does a call of `compiled` cost beside `jax.jit` with parameters closed over?

Chains of 8, 32 and 64 small layers, and `equinox.filter_jit` beside them, which
flattens the chain at each call. A round is 400 calls or so of each.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

ROUNDS = 41
QUICK = {"layers": (8,), "block": 0.001}


def main(run, *, layers=(8, 32, 64), block=0.005):
    x = jnp.ones(16)
    names = {f"{num} layers": num for num in layers}
    for case in run.chosen(names):
        num = names[case]
        linear = [eqx.nn.Linear(16, 16, key=jr.key(i)) for i in range(num)]
        pipe = ep.chain(*[stage for layer in linear for stage in (layer, jnp.tanh)])
        calls = {
            "jit": jax.jit(lambda x, pipe=pipe: pipe(x)),
            "compiled": ep.compiled(pipe, x),
            "filter_jit": eqx.filter_jit(pipe),
        }
        sides = {name: lambda call=call: call(x) for name, call in calls.items()}
        run.compare(case, sides, to="jit", least=block)
