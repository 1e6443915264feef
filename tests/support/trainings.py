"""A population of trainings with decisions, and a run that kills its process."""

import os
import signal
import threading

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep
from eqx_pipe._sweep.compute import watch
from eqx_pipe._sweep.store import Folder
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


GIVEN = {"every": 4, "log_every": 2, "key": jr.key(2), "scheduler": pbt}
KINDS = {
    "pbt": {},
    "halving": {"every": (4, 12, 24), "scheduler": ep.search.Halving("loss", 2)},
    "stopping": {
        "scheduler": lambda population, key: population.next(
            active=population.metrics["loss"] > 0.1
        )
    },
}


def run(steps=24, kind="pbt", **given):
    return ep.train(TRAINING, SPACE, steps, **{**GIVEN, **KINDS[kind], **given})


def run_until_killed(folder, number, seconds=0.0, kind="pbt", steps=24):
    """Run with a save after each call, killed at the given point of the saves.

    The kill comes some `seconds` later.
    """
    watch.COMMIT_EVERY, watch._SAVE_PAUSE = 0.0, 0
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
