"""Searches that tests kill, and that their processes run."""

import functools
import hashlib
import os
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from support.stores import SECONDS, one_device

import eqx_pipe as ep

SPACE = {"x": ep.Uniform(-1.0, 1.0), "y": ep.Uniform(0.0, 3.0)}


GIVEN = {"key": jr.key(5), "batch_size": 2}


def _wait(x):
    time.sleep(float(os.environ.get(SECONDS, "0")))
    return x


def valley(p, key):
    x = jax.pure_callback(_wait, p["x"], p["x"], vmap_method="expand_dims")
    noise = jr.normal(key) if "seed" in p else 0.0
    return (x - 0.3) ** 2 + jnp.abs(p["y"] - x) + noise


class Wandering:
    """Draws around the best of the last round."""

    def init(self, space, key):
        return {"space": space, "key": key, "centre": np.full(2, 0.5), "u": None}

    def ask(self, state, num):
        here, then = jr.split(state["key"])
        u = state["centre"] + np.asarray(jr.uniform(here, (num, 2)) - 0.5) / 3
        u = np.clip(u, 0, 1)
        return state["space"].from_unit(u), {**state, "key": then, "u": u}

    def tell(self, state, losses, result):
        return {**state, "centre": state["u"][np.argmin(losses)]}


class Logged:
    """Another method, of which each proposal is written to a file."""

    def __init__(self, method, file):
        self.method, self.file = method, file

    def init(self, space, key):
        return self.method.init(space, key), 0

    def ask(self, state, num):
        points, inner = self.method.ask(state[0], num)
        bits = np.asarray(points.to_pandas()).tobytes()
        with open(self.file, "a") as log:
            log.write(f"{state[1]} {hashlib.sha1(bits).hexdigest()}\n")
        return points, (inner, state[1] + 1)

    def tell(self, state, losses, result):
        return self.method.tell(state[0], losses, result), state[1]


def method(kind):
    if kind == "refine":
        return ep.search.Adaptive()
    if kind == "evolution":
        from evosax.algorithms import CMA_ES

        return ep.search.Evosax(CMA_ES)
    if kind == "optuna":
        from optuna.samplers import TPESampler

        return ep.search.Optuna(functools.partial(TPESampler, n_startup_trials=8))
    return Wandering()


def run(kind, folder):
    """Run a search, and return its results as arrays."""
    given = {**GIVEN, "store": folder, "mesh": one_device()}
    logged = Logged(method(kind), f"{folder}.asked")
    space = {"seed": ep.Seeds(3), **SPACE} if kind == "seeds" else SPACE
    # Both are strict in tests, and evosax is not.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = ep.search.explore(valley, space, logged, rounds=6, num=12, **given)
    return found.rounds, found.to_pandas().to_numpy(float)
