"""Pipelines edited and chosen from by path."""

from equinox import nn
from jax.numpy import add, cos, sin

import eqx_pipe as ep

from .common import key, linear, ones, stack, stateful


def pipe():
    return ep.chain(
        body=ep.chain(sin, cos), blocks=stack(2, linear), head=linear(key())
    )


def line():
    return ep.graph(
        {"a": sin, "b": cos, "sum": add},
        {"a": "x", "b": "a", "sum": ["x", "b"]},
        "sum",
        inputs=("x",),
    )


def norm():
    return nn.BatchNorm(3, "batch", mode="ema")


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
        "before and after",
        lambda: pipe().insert({"a": sin}, before="head", after="body"),
        ValueError,
        "Give one of them",
    ),
    (
        "a taken name",
        lambda: pipe().insert({"head": sin}),
        ValueError,
        "by `replace`",
    ),
    ("no name", lambda: pipe().insert(sin), ValueError, "Insert a mapping"),
    (
        "a name among positions",
        lambda: pipe().insert({"a": sin}, after="body.0"),
        ValueError,
        "a stage by itself",
    ),
    (
        "into a cond",
        lambda: ep.cond(sin, cos).insert(sin),
        ValueError,
        "in their place by `replace`",
    ),
    (
        "before a stage of a switch",
        lambda: ep.switch(sin, cos).insert(sin, before=0),
        ValueError,
        "`0` would move from position 0 to 1.*`selector=stage`",
    ),
    (
        "a slice of a switch from its middle",
        lambda: ep.switch(sin, cos, sin)[1:],
        ValueError,
        "knows the new positions",
    ),
    (
        "a stage without a weight",
        lambda: ep.weighted(sin, cos).insert(sin),
        ValueError,
        r"Give one number for each of these, `weights=\[0.1\]`",
    ),
    (
        "out of what a gate weighs",
        lambda: ep.weighted(sin, cos, weights=sin).remove(0),
        ValueError,
        "computed for 2 stages, and now it has 1.*`weights=gate`",
    ),
    (
        "a stage without a gate",
        lambda: ep.gated({"a": sin}, gates={"a": cos}).insert({"b": sin}),
        ValueError,
        "Give one gate for each",
    ),
    (
        "gates for a chain",
        lambda: pipe().insert({"a": sin}, gates=[cos]),
        TypeError,
        "Leave it out",
    ),
    (
        "a gate for a switch",
        lambda: ep.switch(sin, cos).remove(0, gates=[cos]),
        TypeError,
        "It has `selector`",
    ),
    (
        "a merge removed",
        lambda: ep.parallel({"a": sin}, merge=sum).remove("merge"),
        ValueError,
        "always has.*by `replace`.*`a`",
    ),
    (
        "all of an ensemble",
        lambda: ep.ensemble([linear(key())])[1:],
        ValueError,
        "It needs 1 at least",
    ),
    (
        "into an empty repeat",
        lambda: stack(0, linear).insert(linear(key())),
        ValueError,
        r"Write `repeat\(\[stage\]\)`",
    ),
    (
        "another size into a repeat",
        lambda: stack(2, linear).insert(nn.Linear(3, 4, key=key())),
        ep.StructureError,
        "Only the values of arrays may differ",
    ),
    (
        "into a repeat whose state is elsewhere",
        lambda: nn.make_with_state(lambda: ep.repeat([norm(), norm()]))()[0].insert(
            norm()
        ),
        ValueError,
        "give that to `equinox.nn.make_with_state`",
    ),
    ("at no end of a graph", lambda: line().insert({"c": sin}), ValueError, "after="),
    ("no name for a node", lambda: line().insert(sin, after="a"), ValueError, "names"),
    (
        "between which nodes",
        lambda: line().insert({"c": sin}, before="sum"),
        ValueError,
        "`sum` reads `x`, `b`.*Insert `after` one of these",
    ),
    (
        "a node of two inputs removed",
        lambda: line().remove("sum"),
        ValueError,
        "read instead.*by `replace`",
    ),
    (
        "a taken name of a node",
        lambda: line().rename(a="b"),
        ValueError,
        "another n",
    ),
    ("a slice of a graph", lambda: line()[1:], TypeError, "nodes by name"),
    (
        "out of a layer",
        lambda: pipe().remove("head.weight"),
        ValueError,
        "in combinators of several",
    ),
    ("what is not there", lambda: pipe().remove("tail"), ValueError, "Known paths"),
    (
        "a position renamed",
        lambda: pipe().rename({"body.0": "a"}),
        ValueError,
        "Give the stages names",
    ),
    ("renamed to another", lambda: pipe().rename(head="body"), ValueError, "another n"),
    ("a dot", lambda: pipe().rename(head="a.b"), ValueError, "without a dot"),
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
        "Keep all stages of `blocks` or none",
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
