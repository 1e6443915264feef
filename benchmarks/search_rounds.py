"""What does a round of a search cost beyond its computation?

Rounds of 256 points, of a method that only draws, and of Optuna's sampler. "By hand" is
the computation as one compiled program that is called for each round, "proposals" the
method alone, with the results that it was told. "Beyond" is what a round of `explore`
takes more than both together in the same run: the table of the points, the sweep, all
rounds joined in the end. The bar is 2 ms. Where a method thinks for long its own time
is nearly all there is.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep

from ._timing import beyond, ratio

DEVICES = 1
ROUNDS = 25
QUICK = {"search_rounds": 2, "optuna_rounds": 1, "n": 8}
BAR = 2e-3


def valley(p):
    return (p["x"] - 1) ** 2 + jnp.sin(p["y"]) * p["z"]


class Draws:
    """Numbers from a generator, another one for each round."""

    def init(self, space, key):
        return space, 0

    def ask(self, state, num):
        space, number = state
        u = np.random.default_rng(number).uniform(size=(num, 3))
        return space.from_unit(u), (space, number + 1)

    def tell(self, state, losses, result):
        return state


def proposals(method, space, found, n, key):
    """Asks for the rounds of a search once more, and tells what they gave."""
    state = method.init(space, key)
    for sweep in found.sweeps:
        _, state = method.ask(state, n)
        losses = np.asarray(sweep.values, np.float64)
        state = method.tell(state, losses, sweep)


def main(run, *, search_rounds=25, optuna_rounds=2, n=256):
    space = ep.Space(
        {
            "x": ep.Uniform(-2.0, 2.0),
            "y": ep.LogUniform(1e-3, 3.0),
            "z": ep.Values([1.0, 2.0, 3.0]),
        }
    )
    program = jax.jit(jax.vmap(valley))
    key = jr.key(0)
    cases = {"draws": (Draws(), search_rounds)}
    if run.has("optuna"):
        from optuna.samplers import TPESampler

        cases["optuna, TPE"] = (ep.search.Optuna(TPESampler), optuna_rounds)
    for name, (method, rounds) in cases.items():
        for case in run.chosen([f"{name}, {rounds} rounds"]):

            def search(method=method, rounds=rounds):
                return ep.search.explore(
                    valley, space, method, rounds=rounds, num=n, key=key
                )

            found = search()
            spaces = [sweep.space for sweep in found.sweeps]
            points = [{k: x.values for k, x in s.axes().items()} for s in spaces]
            sides = {
                "by hand": lambda p=points, f=program: [
                    jax.device_get(f(x)) for x in p
                ],
                "proposals": lambda m=method, f=found: proposals(m, space, f, n, key),
                "explore": lambda s=search: s().result.ok,
            }
            parts = ("by hand", "proposals")

            def more(side, times, parts=parts):
                if side in parts:
                    return {"beyond": None}
                return {"beyond": beyond(times, side, *parts)}

            per = dict.fromkeys(sides, rounds)
            times = run.compare(
                case,
                sides,
                "explore",
                rounds=None if name == "draws" else 3,
                per=per,
                columns=more,
            )
            if name == "draws":
                what = "seconds of a round beyond its computation"
                run.bar(what, beyond(times, "explore", *parts), BAR)
            else:
                share = ratio(times, "proposals", "explore").median
                run.note(f"{name}: {share:.1%} of `explore` are proposals")
