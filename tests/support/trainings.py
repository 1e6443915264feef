"""A population of trainings with decisions, and a run that kills its process."""

import contextlib
import multiprocessing
import os
import signal
import threading
from unittest import mock

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep
from eqx_pipe._run import pace
from eqx_pipe._store import Folder
from eqx_pipe._train import checkpoint as checkpoints

SPACE = {"rate": ep.Geomspace(1e-3, 1.0, 6), "width": ep.Static([2, 3])}
TRAINING = ep.Training(
    lambda p, key: {"x": jr.normal(key, (p["width"],)), "k": key, "h": jnp.bfloat16(1)},
    lambda p, c, key: (
        {**c, "x": c["x"] * (1 - p["rate"]) + 0.1 * jr.normal(key, c["x"].shape)},
        {"loss": jnp.sum(c["x"] ** 2), "h": c["h"]},
    ),
    lambda p, c: {"score": jnp.max(c["x"])},
)


def pbt(population, key):
    """Continue the worst from the best of the same width, and stop one training."""
    parents, active = np.arange(12), np.arange(12) != 11 - population.step % 3
    half = population.ranked("loss")
    for static in (0, 1):
        order = [i for i in half if i % 2 == static]
        parents[order[-1]] = order[0]
    factor = np.asarray(jr.choice(key, jnp.array([0.8, 1.2]), (12,)))
    rates = population.points["rate"][parents] * factor
    return population.next(parents=parents, points={"rate": rates}, active=active)


def fail(p, c):
    """Fail in step 3, 7 or 22, the larger the rate the later; the others never."""
    bad = (c["n"] == jnp.ceil(21 * p["rate"])) & (p["rate"] > 0.05)
    x = eqx.error_if(c["x"] * (1 - p["rate"]), bad, "too large")
    return {"x": x, "n": c["n"] + 1}, {"loss": jnp.sum(x**2)}


FAILING = ep.Training(lambda p: {"x": jnp.ones(p["width"]), "n": 0.0}, fail)

GIVEN = {"every": 4, "log_every": 2, "key": jr.key(2), "scheduler": pbt}
KINDS = {
    "pbt": {},
    "halving": {"every": (4, 12, 24), "scheduler": ep.search.Halving("loss", 2)},
    "stopping": {
        "scheduler": lambda population, key: population.next(
            active=population.metrics["loss"] > 0.1
        )
    },
    "failing": {"training": FAILING, "scheduler": None, "on_error": "mark"},
    "ended": {"scheduler": None, "callback": lambda result: result.step == 12},
}


def run(steps=24, kind="pbt", **given):
    asked = {"training": TRAINING, **GIVEN, **KINDS[kind], **given}
    return ep.train(asked.pop("training"), SPACE, steps, **asked)


@contextlib.contextmanager
def paced(steps):
    """Train some steps in a call, however fast the machine is."""

    def record(pace, *_):
        pace.steps = steps

    with mock.patch.object(pace.Pace, "record", record):
        yield


def assert_prefix(result, whole):
    """Raise unless the curves are bitwise the first records of the whole ones."""
    assert result.curves.values.keys() == whole.curves.values.keys()
    for name, a in whole.curves.values.items():
        b = np.asarray(result.curves.values[name])
        assert a.dtype == b.dtype, name
        assert a[:, : b.shape[1]].tobytes() == b.tobytes(), name
    assert result.errors.items() <= whole.errors.items()


def assert_bits(result, whole):
    """Raise unless a result is bitwise the whole one."""
    assert_prefix(result, whole)
    assert result.step == whole.step and result.errors == whole.errors
    assert (result.trained == whole.trained).all()
    assert (result.active == whole.active).all()


def killed(*given):
    """Run in a process that may be killed; return whether it was."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eqx_pipe.search", "xarray", "zarr"])
    child = context.Process(target=run_until_killed, args=given)
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def kills(least, folder, kind, rng):
    """Kill trainings of a kind at random, at `least` so often; compare what comes out.

    Returns the number of kills.
    """
    whole, done, rounds = run(kind=kind), 0, 0
    while done < least:
        # A new store, since one that is finished is not written to again.
        store, rounds = folder / f"{kind}-{rounds}", rounds + 1
        for steps in (12, 24):  # the second extends the first
            at = rng.randint(1, 40), rng.choice([0, 1e-3, 1e-2, 0.1])
            while killed(store, *at, kind, steps):
                done += 1
                at = rng.randint(1, 40), rng.choice([0, 1e-3, 1e-2, 0.1])
        assert_bits(ep.TrainResult.load(store), whole)
        assert_bits(run(kind=kind, store=store), whole)
    return done


def run_until_killed(folder, number, seconds=0.0, kind="pbt", steps=24):
    """Run with a save after each call, killed at the given point of the saves.

    The kill comes some `seconds` later.
    """
    pace.COMMIT_EVERY, pace._SAVE_PAUSE = 0.0, 0
    left, end = [number], (os.getpid(), signal.SIGKILL)

    def kill():
        left[0] -= 1
        if not left[0] and not seconds:
            os.kill(*end)
        elif not left[0]:
            timer = threading.Timer(seconds, os.kill, end)
            timer.daemon = True
            timer.start()

    def killing(usual):
        def called(*arguments):
            kill()
            result = usual(*arguments)
            kill()
            return result

        return called

    for owner, name in ((Folder, "put"), (Folder, "copy"), (checkpoints, "tidy")):
        setattr(owner, name, killing(getattr(owner, name)))
    run(steps, kind, store=folder)
