"""Searches, and the methods that propose their points."""

import numpy as np

import eqx_pipe as ep
import eqx_pipe.testing as ept

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


EXPLORE = [
    ("no method", lambda: explore(method="tpe"), TypeError, "init"),
    (
        "class of a method",
        lambda: explore(method=ep.search.Design),
        TypeError,
        "Adaptive",
    ),
    ("no rounds", lambda: explore(rounds=0), ValueError, "at least 1"),
    ("num as a float", lambda: explore(num=2.5), TypeError, "integer"),
    ("mode", lambda: explore(mode="low"), ValueError, "min"),
    ("by", lambda: explore(by="los"), ValueError, "Known names: `value`"),
    ("stop is a number", lambda: explore(stop=100), TypeError, "SearchResult"),
    ("progress is a text", lambda: explore(progress="x"), TypeError, "True or False"),
    ("no key", lambda: explore(noisy), ep.MissingKeyError, "key="),
    ("a URL", lambda: explore(store="s3://bucket/run"), ValueError, "path on a disk"),
    ("executor alone", lambda: explore(executor=object()), ValueError, "store="),
    ("no points", lambda: method("Design", np.zeros((0, 2))), ValueError, "be empty"),
    ("one column", lambda: method("Design", [[0.0]]), ValueError, "a column"),
]

HALVING = [
    ("a function", lambda: halving(loss), TypeError, "Training"),
    ("static", lambda: halving(space=SPACE), ValueError, "each of its values"),
    ("rungs that shrink", lambda: halving(rungs=(4, 2)), ValueError, "steps in all"),
    ("a rung of 0", lambda: halving(rungs=(0, 2)), ValueError, "at least 1"),
    ("eta 1", lambda: halving(eta=1), ValueError, "at least 2"),
    ("batches of 0", lambda: halving(batch_size=0), ValueError, "at least 1"),
    ("a whole model", lambda: halving(MODEL), TypeError, "eqx.combine"),
    ("best", lambda: halving(mode="best"), ValueError, "max"),
    ("no points", lambda: halving(space=LINE[:0]), ValueError, "one"),
]

METHODS = [
    ("Adaptive of categories", lambda: method("Adaptive"), ValueError, "Uniform"),
    ("Evosax without a key", lambda: method("Evosax", print), ValueError, "key="),
    ("no strategy", lambda: ep.search.Evosax("CMA_ES"), TypeError, "CMA_ES"),
    ("Optuna without a key", lambda: method("Optuna", print), ValueError, "key="),
    ("no sampler", lambda: ep.search.Optuna("tpe"), TypeError, "TPESampler"),
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
