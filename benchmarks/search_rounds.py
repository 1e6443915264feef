"""What does a round of a search cost beyond its computation?

Rounds of 256 points of a design. "By hand" is the computation as one compiled program
that is called for each round, "proposals" the method alone. "Beyond" is the time that a
round of `explore` takes more than both together in the same run. The bar is 2 ms.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep

from ._timing import beyond

DEVICES = 1
ROUNDS = 25
QUICK = {"search_rounds": 2, "n": 8}
BAR = 2e-3


def valley(p):
    return (p["x"] - 1) ** 2 + jnp.sin(p["y"]) * p["z"]


def proposals(method, space, found, n, key):
    """Asks for the rounds of a search once more, and tells what they gave."""
    state = method.init(space, key)
    for sweep in found.sweeps:
        _, state = method.ask(state, n)
        losses = np.asarray(sweep.values, np.float64)
        state = method.tell(state, losses, sweep)


def main(run, *, search_rounds=25, n=256):
    rng, key = np.random.default_rng(0), jr.key(0)
    method = ep.search.Design(rng.uniform(size=(search_rounds * n, 3)))
    axes = {"x": ep.Uniform(-2.0, 2.0), "y": ep.LogUniform(1e-3, 3.0)}
    space = ep.Space(axes | {"z": ep.Values([1.0, 2.0, 3.0])})
    program = jax.jit(jax.vmap(valley))

    def search():
        options = {"rounds": search_rounds, "num": n, "key": key}
        return ep.search.explore(valley, space, method, **options)

    found = search()
    points = [{k: x.values for k, x in s.space.axes().items()} for s in found.sweeps]
    sides = {
        "by hand": lambda: [jax.device_get(program(p)) for p in points],
        "proposals": lambda: proposals(method, space, found, n, key),
        "explore": lambda: search().result.ok,
    }

    def more(side, times):
        parts = ("by hand", "proposals")
        return {"beyond": beyond(times, side, *parts) if side not in parts else None}

    per, case = dict.fromkeys(sides, search_rounds), f"design, {search_rounds} rounds"
    times = run.compare(case, sides, "explore", per=per, columns=more)
    found = beyond(times, "explore", "by hand", "proposals")
    run.bar("seconds of a round beyond its computation", found, BAR)
