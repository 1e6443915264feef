"""Pipelines edited and chosen from by path."""

from equinox import nn
from jax.numpy import cos, sin

import eqx_pipe as ep

from .common import key, linear, stack


def pipe():
    return ep.chain(
        body=ep.chain(sin, cos), blocks=stack(2, linear), head=linear(key())
    )


EDIT = {
    ValueError: {
        "mean `head`": lambda: pipe().replace(haed=sin),
        r"no stage `2` in `body`.*`body\.1`": lambda: pipe().replace({"body.2": sin}),
        "use `equinox.tree_at`": lambda: pipe().replace({"head.weight": 3}),
        "tie its parts again": lambda: ep.tied(
            pipe(), lambda p: p["head"].weight, lambda p: p["blocks"].stages.weight[0]
        ).replace(head=linear(key())),
        "no slices. Build a new one": lambda: ep.parallel(sin, cos)[1:],
        "It needs at least 1": lambda: ep.ensemble([linear(key())])[1:],
    },
    TypeError: {
        "A stage is a callable": lambda: pipe().replace(head=3),
        "Give a mapping from pa": lambda: pipe().replace(sin),
        "input": lambda: ep.feed(sin, "x").replace(stage=lambda x, y: x),
        "Change `edges`": lambda: ep.graph({"a": sin}, {"a": []}, "a").replace(
            a=lambda x, y: x
        ),
    },
    ep.StructureError: {
        r"weight`: float32\[3,3\] against float32\[4,3\].*`eqx_pipe.chain`": lambda: (
            pipe().replace({"blocks.1": nn.Linear(3, 4, key=key())})
        )
    },
}

CHOOSE = {
    ValueError: {
        "mean `head": lambda: ep.trainable(pipe(), "heads"),
        "Known names": lambda: ep.trainable(pipe(), "body"),
        "all stages of `blocks` or none": lambda: ep.trainable(pipe(), "blocks.0"),
        "Choose all of its stages or none": lambda: ep.trainable(
            ep.ensemble([linear(key()), linear(key(1))]), "0"
        ),
    }
}

PRECISION = {
    TypeError: {'such as `"bfloat16"`': lambda: ep.precision(sin, "int8")},
    ValueError: {
        "mean `head`": lambda: ep.precision(pipe(), keep="haed"),
        "Choose all stages of `blocks`": lambda: ep.precision(pipe(), keep="blocks.0"),
    },
}
