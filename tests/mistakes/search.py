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


def method(name, *arguments):
    return explore(method=getattr(ep.search, name)(*arguments))


class Stubborn:
    """Proposes seeds, too."""

    def init(self, space, key):
        return ep.Space(SPACE | {"seed": ep.Values([0, 1])})

    def ask(self, state, num):
        return state.from_unit(np.full((num, 3), 0.5)), state

    def tell(self, state, losses, result):
        return state


def seeded(space):
    return ep.search.explore(loss, space, Stubborn(), rounds=1, num=1)


EXPLORE = {
    TypeError: {"Adaptive": lambda: explore(method=ep.search.Design)},
    ValueError: {
        "Known names: `value`": lambda: explore(by="los"),
        "path on a disk": lambda: explore(store="ftp://host/run"),
        "design has points": lambda: method("Design", np.zeros((0, 2))),
        "a column": lambda: method("Design", [[0.0]]),
        "an axis such as `LogUniform": lambda: seeded({"seed": ep.Seeds(2)}),
        "the space that `init` got": lambda: seeded(SPACE | {"seed": ep.Seeds(2)}),
    },
    ep.MissingKeyError: {"key=": lambda: explore(noisy)},
}

METHODS = {
    ValueError: {
        "Uniform": lambda: method("Adaptive"),
    },
    ep.MissingKeyError: {
        "`method` needs a PRNG key.*key=": lambda: method("Evosax", print),
        "`method` needs a PRNG.*key=": lambda: method("Optuna", print),
    },
    FileNotFoundError: {
        "SweepResult.load": lambda: ep.search.SearchResult.load("runs")
    },
}
