"""Small stores of each kind that a page shows."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

NOISE = 0.05
HOSTILE = "<img src=x onerror=document.title=1>"


def loss(p, key):
    s = jnp.log10(p["rate"])
    value = (s + 2) ** 2 + (p["decay"] - 0.4) ** 2 + NOISE * jr.normal(key)
    value = eqx.error_if(value, (p["rate"] > 0.3) & (p["decay"] < 0.3), "no number")
    return {"loss": value, "accuracy": jax.nn.sigmoid(2 - value)}


def later(p, key):
    found = loss({**p, "rate": jnp.minimum(p["rate"] * 2, 0.2)}, key)
    return {**found, "other": found["loss"]}


def walk(p, key):
    def step(w, k):
        return w - p["rate"] * 2 * (w - 3.0) + 0.05 * jr.normal(k), (w - 3.0) ** 2

    w, losses = jax.lax.scan(step, jr.normal(key), jr.split(key, 30))
    return {"w": w, "loss": losses}


def noisy(p, key):
    return jnp.sin(p["x"]) + NOISE * jr.normal(key)


def named(p):
    return {"score": p["a"] * 2 - p["b"] ** 2, HOSTILE: p["a"]}


def init(p, key):
    return 4.0 + jr.normal(key)


def step(p, w, key):
    w = eqx.error_if(w, w > 1e3, "exploded") if p.get("checked") else w
    return w - p["rate"] * 2 * w + 0.02 * jr.normal(key), {"loss": w**2}


def evaluate(p, w):
    return {"test": w**2 + 1e-3}


TRAINING = ep.Training(init, step, evaluate)
GRID = {"rate": ep.Geomspace(1e-3, 1, 12), "decay": ep.Linspace(0, 1, 8, label="decay")}
RATES = ep.Geomspace(1e-3, 0.4, 6)
SEEDS = ep.Seeds(8)


def sweep(store, fn=loss, **options):
    options = {"key": jr.key(0), "on_error": "mark", **options}
    return ep.sweep(fn, GRID, store=store, **options)


def part(store):
    sweep(store, shard=(0, 3), batch_size=8)
    return sweep(store, shard=(2, 3), batch_size=8)


def curves(store):
    coords = {"loss": {"step": range(1, 31)}}
    space = {"rate": RATES, "seed": SEEDS}
    return ep.sweep(walk, space, key=jr.key(0), store=store, output_coords=coords)


def line(store):
    space = {"x": ep.Linspace(0, 10, 41, unit="m"), "seed": SEEDS}
    return ep.sweep(noisy, space, key=jr.key(0), store=store)


def table(store):
    space = ep.sobol({"a": ep.Uniform(0, 1), "b": ep.LogUniform(1e-3, 1)}, 64)
    return ep.sweep(named, space, store=store)


def kinds(store):
    space = {"kind": ep.Static(["plain", "twice"]), "x": ep.Linspace(0, 1, 5)}
    return ep.sweep(
        lambda p: p["x"] * (2 if p["kind"] == "twice" else 1), space, store=store
    )


def reduced(store):
    space = {"x": ep.Linspace(0, 10, 41)}
    return ep.sweep(lambda p: p["x"], space, store=store, reduce=ep.reduce.Mean())


def search(store):
    points = ep.search.Design(jr.uniform(jr.key(0), (24, 2)).tolist())
    space = {"a": ep.Uniform(0, 1), "b": ep.LogUniform(1e-3, 1)}
    options = {"rounds": 6, "num": 4, "by": "score", "mode": "max"}
    return ep.search.explore(named, space, points, store=store, **options)


def train(store, steps=40, space=None, **options):
    space = {"rate": RATES, "seed": SEEDS} if space is None else space
    options = {"every": 10, "log_every": 2, "key": jr.key(1), **options}
    return ep.train(TRAINING, space, steps, store=store, **options)


def pbt(store):
    scheduler = ep.search.PBT("test", vary=["rate"])
    space = {"rate": ep.Geomspace(1e-5, 0.5, 16)}
    return train(store, 100, space, scheduler=scheduler)


def halving(store):
    space = {"rate": ep.Values([1e-3, 0.01, 0.1, 9.0]), "seed": SEEDS, "checked": True}
    options = {"scheduler": ep.search.Halving("test"), "on_error": "mark"}
    return train(store, 40, space, **options)


def grid_of_trainings(store):
    space = {"rate": RATES, "other": ep.Linspace(0, 1, 3), "seed": ep.Seeds(2)}
    return train(store, 20, space)


STORES = {
    "part": part,
    "curves": curves,
    "line": line,
    "table": table,
    "kinds": kinds,
    "reduced": reduced,
    "search": search,
    "train": train,
    "pbt": pbt,
    "halving": halving,
    "grid_of_trainings": grid_of_trainings,
}


@functools.cache
def saved(folder):
    """Return the paths of all stores, made once in a folder of the tests' session."""
    paths = {name: folder / name for name in STORES}
    for name, make in STORES.items():
        make(paths[name])
    return paths
