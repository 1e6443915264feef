"""Searches, and the methods that propose their points."""

import numpy as np

import eqx_pipe as ep

SPACE = {"x": ep.Uniform(0.0, 1.0), "act": ep.Static(["relu", "tanh"])}
POINT = ep.search.Design([[0.0, 0.0]])


def loss(p):
    return p["x"]


def explore(fn=loss, **changes):
    settings = {"method": POINT, "rounds": 1, "num": 1} | changes
    return ep.search.explore(fn, SPACE, **settings)


def noisy(p, key):
    return p["x"]


TRAINING = ep.search.Training(lambda p: 0.0, lambda p, x: x, lambda p, x: x)
MODEL = ep.search.Training(lambda p: {"act": max}, TRAINING.step, TRAINING.score)
LINE = ep.Space({"x": ep.Linspace(0, 1, 3)})


def halving(train=TRAINING, space=LINE, rungs=(1, 2), **changes):
    return ep.search.halving(train, space, rungs=rungs, **changes)


def method(name, *arguments):
    return explore(method=getattr(ep.search, name)(*arguments))


EXPLORE = {
    TypeError: {"Adaptive": lambda: explore(method=ep.search.Design)},
    ValueError: {
        "Known names: `value`": lambda: explore(by="los"),
        "path on a disk": lambda: explore(store="s3://bucket/run"),
        "design has points": lambda: method("Design", np.zeros((0, 2))),
        "a column": lambda: method("Design", [[0.0]]),
    },
    ep.MissingKeyError: {"key=": lambda: explore(noisy)},
}

HALVING = {
    ValueError: {
        "each value of this axis": lambda: halving(space=SPACE),
        "one": lambda: halving(space=LINE[:0]),
        "real scalar": lambda: halving(
            ep.search.Training(TRAINING.init, TRAINING.step, lambda p, x: x[None])
        ),
    },
    TypeError: {"eqx.combine": lambda: halving(MODEL)},
}

METHODS = {
    ValueError: {
        "Uniform": lambda: method("Adaptive"),
    },
    ep.MissingKeyError: {
        "Evosax.*key=": lambda: method("Evosax", print),
        "Optuna.*key=": lambda: method("Optuna", print),
    },
    FileNotFoundError: {
        "SweepResult.load": lambda: ep.search.SearchResult.load("runs")
    },
}
