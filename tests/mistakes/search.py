"""Searches, and the methods that propose their points."""

import numpy as np

import eqx_pipe as ep
import eqx_pipe.search as eps

SPACE = {"x": ep.Linspace(0.0, 1.0, 3), "act": ep.Static(["relu", "tanh"])}


def loss(p):
    return p["x"]


def explore(**changes):
    settings = {"method": eps.design([[0.0, 0.0]]), "rounds": 1, "n": 1} | changes
    return ep.explore(loss, SPACE, **settings)


EXPLORE = [
    ("no method", lambda: explore(method="tpe"), TypeError, "init"),
    ("class of a method", lambda: explore(method=3), TypeError, "refine"),
    ("no rounds", lambda: explore(rounds=0), ValueError, "at least 1"),
    ("n as a float", lambda: explore(n=2.5), TypeError, "integer"),
    ("trials", lambda: explore(n_trials=10), TypeError, "rounds="),
    ("stop is a number", lambda: explore(stop=100), TypeError, "Explored"),
    ("executor alone", lambda: explore(executor=object()), ValueError, "store="),
    (
        "no points",
        lambda: explore(method=eps.design(np.zeros((0, 2)))),
        ValueError,
        "A design may be empty",
    ),
    ("one column", lambda: explore(method=eps.design([[0.0]])), ValueError, "a column"),
]

METHODS = [
    (
        "refine of categories",
        lambda: explore(method=eps.refine()),
        ValueError,
        "Linspace",
    ),
    (
        "evolution without a key",
        lambda: explore(method=eps.evolution(print)),
        ValueError,
        "key=",
    ),
    ("no strategy", lambda: eps.evolution("CMA_ES"), TypeError, "CMA_ES"),
    (
        "optuna without a key",
        lambda: explore(method=eps.optuna(print)),
        ValueError,
        "key=",
    ),
    ("no sampler", lambda: eps.optuna("tpe"), TypeError, "TPESampler"),
    ("mode of optuna", lambda: eps.optuna(print, mode="low"), ValueError, "min"),
    ("stalled never", lambda: eps.stalled(0), ValueError, "at least 1"),
]
