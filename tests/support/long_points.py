"""Sweeps of loops in processes that are killed: trainings, chains and solves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep
from eqx_pipe._run import pace, programs
from eqx_pipe._sweep.trace import trace
from eqx_pipe._sweep.work import flight


def training(p, key):
    x = jnp.sin(jnp.arange(320.0)).reshape(40, 8)
    y, lr = x[:, 0] ** 2, 0.1 * p["rate"]

    def loss(w, b, batch):
        return jnp.mean((jnp.tanh(x[batch] @ w).sum(1) - y[batch] + b) ** 2)

    def step(carry, k):
        w, b = carry
        batch = jr.randint(k, (10,), 0, 40)
        value, (gw, gb) = jax.value_and_grad(loss, (0, 1))(w, b, batch)
        return (w - lr * gw, b - lr * gb), value

    start = jr.normal(key, (8, 16)) * 0.3, jnp.zeros(())
    (w, _), losses = jax.lax.scan(step, start, jr.split(key, 300))
    return {"loss": losses[-1], "last": w.sum()}


def mcmc(p, key):
    def step(carry, _):
        x, key, taken = carry
        key, a, b = jr.split(key, 3)
        new = x + p["rate"] * jr.normal(a, (4,))
        ok = jnp.log(jr.uniform(b)) < (x**2 - new**2).sum()
        return (jnp.where(ok, new, x), key, taken + ok), x[0]

    (_, _, taken), draws = jax.lax.scan(step, (jnp.ones(4), key, 0), None, 400)
    return {"loss": draws.mean(), "taken": taken}


def nested(p, key):
    """Two loops over epochs, of which each is a loop over steps."""

    def epoch(w, k):
        def step(w, x):
            return jnp.tanh(p["rate"] * w @ jnp.full((9, 9), 0.3) + x), w.sum()

        return jax.lax.scan(step, w, jr.normal(k, (7, 9)))

    w, sums = jax.lax.scan(epoch, jnp.ones(9), jr.split(key, 200))
    w, _ = jax.lax.scan(epoch, w, jr.split(key, 150))
    return {"loss": w.sum(), "sums": sums.sum()}


def solve(p, key):
    import diffrax

    def slope(t, y, rate):
        return jnp.array([y[1], -rate * jnp.sin(y[0])])

    start = jnp.array([1.0, 0.0]) + 0.1 * jr.normal(key, (2,))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        diffrax.Tsit5(),
        0,
        60,
        0.01,
        start,
        p["rate"],
        stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
    )
    return {"loss": solution.ys[0, 0], "steps": solution.stats["num_steps"]}


FUNCTIONS = {fn.__name__: fn for fn in (training, mcmc, nested, solve)}


def _size(store):
    """Return the number of points of a store, 0 if it does not exist."""
    try:
        return len(ep.SweepResult.load(store))
    except FileNotFoundError:
        return 0


def entered(monkeypatch):
    """Return a list that gets the steps for which a split program is called."""
    found, enter = [], flight.Begun._enter

    def counted(begun, budget, *args, **options):
        found.append(budget)
        return enter(begun, budget, *args, **options)

    monkeypatch.setattr(flight.Begun, "_enter", counted)
    return found


def forget_programs(monkeypatch):
    """Let sweeps compile their programs again, as in a new process."""
    monkeypatch.setattr(programs, "PROGRAMS", type(programs.PROGRAMS)(8))


def run(store, name, kind, devices):
    """Sweep over a function, forty steps at a time, which are noted, with saves."""
    trace.LONG, pace.COMMIT_EVERY, pace._SAVE_PAUSE = 0, 0.0, 0
    ep.use_cpu_devices(devices)

    def record(pace, steps, *_):
        with open(f"{store}.steps", "ab", buffering=0) as log:
            log.write(f"{steps} ".encode())
        pace.steps = 40

    pace.Pace.record = record
    fn = FUNCTIONS[name]
    space = {"rate": ep.Linspace(0.1, 1.5, 12), "seed": ep.Seeds(2)}
    options = {"key": jr.key(0), "progress": False, "store": store, "batch_size": 4}
    spaces, shares = [space], [None]
    if kind == "reduced":
        options["reduce"] = {
            "mean": ep.reduce.Mean(by="loss"),
            "best": ep.reduce.TopK(3, by="loss"),
            "half": ep.reduce.Quantile(0.5, by="loss"),
        }
    elif kind == "cells":
        options["reduce"] = ep.reduce.Mean(by="loss", over="seed")
    elif kind == "marked":
        options["on_error"] = "mark"

        def fn(p, key, whole=fn):
            out = whole(p, key)
            return out | {"loss": eqx.error_if(out["loss"], p["rate"] > 1.4, "no")}

    elif kind == "sharded":
        shares = [(0, 2), (1, 2)]
    elif kind == "grown":
        spaces = [space | {"seed": ep.Seeds(1)}, space]
    if kind == "grown" and _size(store) == 24:
        spaces = [space]  # a smaller space is refused now
    for each in spaces:
        for shard in shares:
            found = ep.sweep(fn, each, shard=shard, **options)
    if kind == "reduced":  # its store has states
        jnp.savez(f"{store}.npz", *jax.tree.leaves(found.values))
