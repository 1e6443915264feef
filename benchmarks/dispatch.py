"""What does a call of a small pipeline outside `jit` cost beside `nn.Sequential`?

Chains of sines, which should take at most 3 times as long as an
`equinox.nn.Sequential` of `equinox.nn.Lambda`s.
"""

import equinox as eqx
import jax.numpy as jnp

import eqx_pipe as ep

ROUNDS = 41
QUICK = {"sines": (1,), "block": 0.001}


def main(run, *, sines=(1, 4), block=0.005):
    x = jnp.ones(16)
    cases = {f"{num} sines": num for num in sines}
    for case in run.chosen(cases):
        num = cases[case]
        pipe = ep.chain(*[jnp.sin] * num)
        plain = eqx.nn.Sequential([eqx.nn.Lambda(jnp.sin)] * num)
        sides = {
            "Sequential": lambda plain=plain: plain(x),
            "pipeline": lambda pipe=pipe: pipe(x),
        }
        run.compare(case, sides, to="Sequential", least=block)
