"""How long does the page take to open 10^4 curves or 10^6 points, and to poll a store?

A page condenses a store for a browser. "First" opens a store, reads the metric that is
shown, and makes the data of the page; "nothing new" is a poll of a browser that has
them. The bars are 1 s of processor time and 5 ms. "kB" is the size of the data.
"""

import json
import tempfile
import time

import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

from ._timing import Spread, spread

DEVICES = 1
ROUNDS = 5
QUICK = {"trainings": 20, "steps": 20, "side": 20}
FIRST, POLL = 1.0, 5e-3


def init(p, key):
    return 4.0 + jr.normal(key)


def step(p, w, key):
    w = w - p["rate"] * 2 * w + 0.02 * jr.normal(key)
    return w, {"loss": w**2 + 1e-3}


def formula(p, key):
    s, noise = jnp.log10(p["rate"]), 0.3 * jr.normal(key)
    return {"loss": (s + 2) ** 2 * (1 + p["decay"]) + noise, "steps": 100 / p["rate"]}


def main(run, *, trainings=1000, steps=1000, side=1000):
    rate, key = ep.Geomspace(1e-4, 0.5, trainings), jr.key(0)
    grid = {"rate": ep.Geomspace(1e-4, 1, side), "decay": ep.Linspace(0, 1, side)}
    with tempfile.TemporaryDirectory() as folder:
        stores = {f"{10 * trainings:,} curves x {steps:,}": f"{folder}/train"}
        stores[f"{side**2:,} points"] = f"{folder}/sweep"
        train, sweep = stores.values()
        space = {"rate": rate, "seed": ep.Seeds(10)}
        options = {"every": steps, "log_every": 1, "key": key}
        ep.train(ep.Training(init, step), space, steps, store=train, **options)
        ep.sweep(formula, grid, key=key, store=sweep)
        for case in run.chosen(stores):
            measured(run, case, stores[case])


def measured(run, case, store):
    """Time the parts of a page over one store, in processor time."""
    times = {"first": [], "nothing new": []}
    for _ in range(run.rounds):
        start = time.process_time()
        page = ep.show(store)
        size = len(json.dumps(page.data(), separators=(",", ":")))
        times["first"].append(time.process_time() - start)
        start = time.process_time()
        page.tag({})
        times["nothing new"].append(time.process_time() - start)
    for part, bar in {"first": FIRST, "nothing new": POLL}.items():
        found: Spread = spread(times[part])
        run.row(case=case, side=part, time=found.median, kB=size / 1e3)
        run.bar(f"seconds of {case}, {part},", found, bar)
