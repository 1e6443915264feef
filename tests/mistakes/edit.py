"""Pipelines edited and chosen from by path."""

from equinox import nn
from jax.numpy import cos, sin

import eqx_pipe as ep

from .common import key, linear, ones, stack, stateful


def pipe():
    return ep.chain(
        body=ep.chain(sin, cos), blocks=stack(2, linear), head=linear(key())
    )


EDIT = [
    ("no such name", lambda: pipe().replace(haed=sin), ValueError, "mean `head`"),
    (
        "no such path",
        lambda: pipe().replace({"body.2": sin}),
        ValueError,
        r"no `2` in `body`.*`body\.1`",
    ),
    (
        "no such field",
        lambda: pipe().replace({"head.wieght": 3}),
        ValueError,
        r"mean `head\.weight`",
    ),
    ("a number", lambda: pipe().replace(head=3), TypeError, "A stage is a callable"),
    ("a stage alone", lambda: pipe().replace(sin), TypeError, "Give a mapping from pa"),
    (
        "another size in a repeat",
        lambda: pipe().replace({"blocks.1": nn.Linear(3, 4, key=key())}),
        ep.StructureError,
        r"at `\.weight`: float32\[3,3\] against float32\[4,3\].*`eqx_pipe.chain`",
    ),
    (
        "a node of two inputs",
        lambda: ep.graph({"a": sin}, {"a": []}, "a").replace(a=lambda x, y: x),
        ValueError,
        "Change `edges`",
    ),
    (
        "a stage of two inputs fed one",
        lambda: ep.feed(sin, "x").replace(stage=lambda x, y: x),
        TypeError,
        "input",
    ),
    (
        "what is tied",
        lambda: ep.tied(
            pipe(), lambda p: p["head"].weight, lambda p: p["blocks"].stages.weight[0]
        ).replace(head=linear(key())),
        ValueError,
        "tie its parts again",
    ),
    (
        "a slice of a switch",
        lambda: ep.switch(sin, cos, sin)[1:],
        ValueError,
        "a selector of their positions",
    ),
    (
        "a slice of what a stage weighs",
        lambda: ep.weighted(sin, cos, weights=sin)[1:],
        ValueError,
        "a stage that computes their weights",
    ),
    (
        "all of an ensemble",
        lambda: ep.ensemble([linear(key())])[1:],
        ValueError,
        "It needs at least 1",
    ),
    (
        "a slice of a graph",
        lambda: ep.graph({"a": sin}, {"a": []}, "a")[:1],
        TypeError,
        "nodes by name",
    ),
]

CHOOSE = [
    ("no string", lambda: ep.trainable(pipe(), 3), TypeError, "Give patterns of paths"),
    ("no match", lambda: ep.trainable(pipe(), "heads"), ValueError, "mean `head"),
    ("no parameter", lambda: ep.trainable(pipe(), "body"), ValueError, "Known paths"),
    (
        "one of a repeat",
        lambda: ep.trainable(pipe(), "blocks.0"),
        ValueError,
        "Choose all stages of `blocks` or none",
    ),
    (
        "one of an ensemble",
        lambda: ep.trainable(ep.ensemble([linear(key()), linear(key(1))]), "0"),
        ValueError,
        "Choose all of its stages or none",
    ),
]

PRECISION = [
    ("integers", lambda: ep.precision(sin, "int8"), TypeError, 'such as `"bfloat16"`'),
    ("no dtype", lambda: ep.precision(sin, 3), TypeError, "no floating-point dtype"),
    (
        "nothing kept",
        lambda: ep.precision(pipe(), keep="haed"),
        ValueError,
        "mean `head`",
    ),
    (
        "one kept of a repeat",
        lambda: ep.precision(pipe(), keep="blocks.0"),
        ValueError,
        "Choose all stages of `blocks` or none",
    ),
]

SUMMARY = [
    ("a number", lambda: ep.summary(3, ones(3)), TypeError, "A stage is a callable"),
    (
        "no state",
        lambda: ep.summary(stateful()[0], ones(3)),
        ValueError,
        r"Call `summary\(pipe, x, state=state\)`",
    ),
]
