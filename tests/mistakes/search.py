"""Searches, and the methods that propose their points."""

import numpy as np

import eqx_pipe as ep
import eqx_pipe.testing as ept

SPACE = {"x": ep.Linspace(0.0, 1.0, 3), "act": ep.Static(["relu", "tanh"])}


def loss(p):
    return p["x"]


def explore(**changes):
    settings = {"method": ep.search.design([[0.0, 0.0]]), "rounds": 1, "n": 1} | changes
    return ep.search.explore(loss, SPACE, **settings)


EXPLORE = [
    ("no method", lambda: explore(method="tpe"), TypeError, "init"),
    ("class of a method", lambda: explore(method=3), TypeError, "refine"),
    ("no rounds", lambda: explore(rounds=0), ValueError, "at least 1"),
    ("n as a float", lambda: explore(n=2.5), TypeError, "integer"),
    ("stop is a number", lambda: explore(stop=100), TypeError, "SearchResult"),
    ("progress is a number", lambda: explore(progress=1.5), TypeError, "best so far"),
    (
        "no key",
        lambda: ep.search.explore(
            lambda p, key: p["x"], SPACE, ep.search.design([[0.0, 0.0]]), rounds=1, n=1
        ),
        ep.MissingKeyError,
        "key=",
    ),
    ("a URL", lambda: explore(store="s3://bucket/run"), ValueError, "path on a disk"),
    ("executor alone", lambda: explore(executor=object()), ValueError, "store="),
    (
        "no points",
        lambda: explore(method=ep.search.design(np.zeros((0, 2)))),
        ValueError,
        "A design may be empty",
    ),
    (
        "one column",
        lambda: explore(method=ep.search.design([[0.0]])),
        ValueError,
        "a column",
    ),
]

TRAINING = ep.search.Training(lambda p: 0.0, lambda p, x: x, lambda p, x: x)


def halving(**changes):
    settings = {"train": TRAINING, "space": {"x": SPACE["x"]}, "rungs": (1, 2)}
    return ep.search.halving(**{**settings, **changes})


HALVING = [
    ("a function", lambda: halving(train=loss), TypeError, "Training"),
    ("static", lambda: halving(space=SPACE), ValueError, "each of its values"),
    ("rungs that shrink", lambda: halving(rungs=(4, 2)), ValueError, "steps in all"),
    ("no rungs", lambda: halving(rungs=()), ValueError, "steps in all"),
    ("a rung of 0", lambda: halving(rungs=(0, 2)), ValueError, "at least 1"),
    ("eta 1", lambda: halving(eta=1), ValueError, "at least 2"),
    ("batches of 0", lambda: halving(batch_size=0), ValueError, "at least 1"),
    (
        "a whole model",
        lambda: halving(
            train=ep.search.Training(
                lambda p: {"act": max}, TRAINING.step, TRAINING.score
            )
        ),
        TypeError,
        "eqx.combine",
    ),
    ("best", lambda: halving(mode="best"), ValueError, "max"),
    (
        "no points",
        lambda: halving(space=ep.Space({"x": SPACE["x"]})[:0]),
        ValueError,
        "one",
    ),
]

METHODS = [
    (
        "refine of categories",
        lambda: explore(method=ep.search.refine()),
        ValueError,
        "Linspace",
    ),
    (
        "evolution without a key",
        lambda: explore(method=ep.search.evolution(print)),
        ValueError,
        "key=",
    ),
    ("no strategy", lambda: ep.search.evolution("CMA_ES"), TypeError, "CMA_ES"),
    (
        "optuna without a key",
        lambda: explore(method=ep.search.optuna(print)),
        ValueError,
        "key=",
    ),
    ("no sampler", lambda: ep.search.optuna("tpe"), TypeError, "TPESampler"),
    ("mode of optuna", lambda: ep.search.optuna(print, mode="low"), ValueError, "min"),
    (
        "law of no method",
        lambda: ept.check_method("tpe", loss, SPACE),
        TypeError,
        "ask",
    ),
    (
        "no search",
        lambda: ep.search.SearchResult.load("runs"),
        FileNotFoundError,
        "SweepResult.load",
    ),
]
