"""The meaning of each combinator, written as the loop that users would write.

`by_hand(pipe, x, key)` walks any pipeline, one drawn by `eqx_pipe.testing` too, and
reads its parameters, so that both programs can be differentiated by them.
"""

import functools as ft
import inspect
import operator
import zlib

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np


def child_key(key, segment):
    """Return a child's key as documented, computed without the library."""
    if key is None:
        return None
    if isinstance(segment, str):
        segment = np.uint32(zlib.crc32(segment.encode()))
    return jr.fold_in(key, segment)


def by_hand(stage, x, key=None):
    """Compute the output of a pipeline without the library."""
    rule = _RULES.get(type(stage).__name__)
    return _several(stage, [x], {}, key) if rule is None else rule(stage, x, key)


def _child(stage, segment, x, key):
    return by_hand(stage, x, child_key(key, segment))


def _each(stage, x, key):
    return [_child(child, segment, x, key) for segment, child in stage.items()]


def leafwise(fn):
    """Return a function of a list of arrays as one of pytrees."""
    return lambda trees: jtu.tree_map(lambda *leaves: fn(leaves), *trees)


FOLDS = {
    "sum": leafwise(lambda leaves: ft.reduce(operator.add, leaves)),
    "mean": leafwise(lambda leaves: ft.reduce(operator.add, leaves) / len(leaves)),
    "prod": leafwise(lambda leaves: ft.reduce(operator.mul, leaves)),
    "max": leafwise(lambda leaves: ft.reduce(jnp.maximum, leaves)),
    "min": leafwise(lambda leaves: ft.reduce(jnp.minimum, leaves)),
}


def _merged(stage, ys, key):
    merge = stage.merge
    if merge.name is None:
        return _child(merge.stage, "merge", tuple(ys), key)
    joins = {
        "tuple": tuple,
        "dict": lambda ys: dict(zip(stage.names, ys, strict=True)),
        "stack": leafwise(lambda leaves: jnp.stack(leaves, merge.axis)),
        "concat": leafwise(lambda leaves: jnp.concatenate(leaves, merge.axis)),
    }
    return (FOLDS | joins)[merge.name](ys)


def _carried(stage, x):
    """Return the entry that is not broadcast, and the input with another one."""
    if not stage.broadcast:
        return x, lambda y: y
    (name,) = set(x) - set(stage.broadcast)
    return x[name], lambda y: {**x, name: y}


def _chain(stage, x, key):
    y, inputs = _carried(stage, x)
    for segment, child in zip(stage.keys(), stage.stages, strict=True):
        given = inputs(y)
        y = _child(child, segment, given, key)
    return y


def _parallel(stage, x, key):
    return _merged(stage, _each(stage, x, key), key)


def _weighted(stage, x, key):
    weights = stage.weights
    if stage.computed:
        weights = _child(weights, "weights", x, key)
    weights = {
        "none": lambda w: w,
        "sum": lambda w: w / w.sum(),
        "softmax": jax.nn.softmax,
    }[stage.normalize](weights)
    total = None
    for i, y in enumerate(_each(stage, x, key)):
        term = jtu.tree_map(lambda v, w=weights[i]: w.astype(v.dtype) * v, y)
        total = term if total is None else jtu.tree_map(operator.add, total, term)
    return total


def _gated(stage, x, key):
    name, gates = stage.merge.name, child_key(key, "gates")
    children = list(zip(stage.keys(), stage.stages, stage.gates, strict=True))
    opens = [_child(gate, segment, x, gates) for segment, _, gate in children]
    absent = {"prod": 1.0, "max": -jnp.inf, "min": jnp.inf}.get(name, 0.0)

    def output(is_open, segment, child):
        run = ft.partial(_child, child, segment, key=key)

        def instead(x):
            shapes = jax.eval_shape(run, x)
            return jtu.tree_map(lambda v: jnp.full(v.shape, absent, v.dtype), shapes)

        return jax.lax.cond(is_open, run, instead, x)

    ys = [
        output(is_open, segment, child)
        for is_open, (segment, child, _) in zip(opens, children, strict=True)
    ]
    count = sum(jnp.asarray(o, jnp.int32) for o in opens)
    if name == "mean":
        n = jnp.maximum(count, 1)
        return jtu.tree_map(lambda v: v / n.astype(v.dtype), FOLDS["sum"](ys))
    whole = _merged(stage, ys, key)
    if name not in ("max", "min", "prod"):
        return whole
    return jtu.tree_map(lambda v: jnp.where(count == 0, jnp.zeros_like(v), v), whole)


def _cond(stage, x, key):
    branches = [
        ft.partial(_child, getattr(stage, name), name, key=key)
        for name in ("then", "otherwise")
    ]
    return jax.lax.cond(_child(stage.pred, "pred", x, key), *branches, x)


def _switch(stage, x, key):
    index = _child(stage.selector, "selector", x, key)
    branches = [ft.partial(_child, child, i, key=key) for i, child in stage.items()]
    return jax.lax.switch(index, branches, x)


def _at(stage, x, key):
    def where(x):
        return ft.reduce(operator.getitem, stage.where, x)

    return eqx.tree_at(where, x, _child(stage.stage, "stage", where(x), key))


def _repeat(stage, x, key):
    arrays, rest = eqx.partition(stage.stages, eqx.is_array)
    begin, inputs = _carried(stage, x)

    def body(y, slices):
        arrays, i = slices
        return _child(eqx.combine(arrays, rest), i, inputs(y), key), None

    if not stage.size:
        return begin
    return jax.lax.scan(body, begin, (arrays, jnp.arange(stage.size)))[0]


def _repeat_shared(stage, x, key):
    def body(y, i):
        return _child(stage.stage, i, y, key), None

    return jax.lax.scan(body, x, jnp.arange(stage.n))[0]


def _ensemble(stage, x, key):
    arrays, rest = eqx.partition(stage.stages, eqx.is_array)
    over = {"mean": jnp.mean, "max": jnp.max, "stack": lambda ys, axis: ys}
    ys = jax.vmap(lambda a, i: _child(eqx.combine(a, rest), i, x, key))(
        arrays, jnp.arange(stage.size)
    )
    return jtu.tree_map(lambda v: over[stage.merge](v, axis=0), ys)


def _residual(stage, x, key):
    before, _ = _carried(stage, x)
    return jtu.tree_map(operator.add, before, _chain(stage, x, key))


def _scan(stage, x, key):
    shared = {name: x[name] for name in stage.broadcast}
    xs = {name: v for name, v in x.items() if name not in shared} if shared else x

    def step(carry, slices):
        part, i = slices
        part = {**part, **shared} if shared else part
        if isinstance(stage.cell, eqx.nn.GRUCell):
            y = stage.cell(part, carry)
            return y, y
        if type(stage.cell).__name__ in _RULES:
            return _child(stage.cell, i, {"carry": carry, "x": part}, key)
        own = None if key is None else jr.fold_in(key, i)
        return _several(stage.cell, [carry, part], {}, own)

    carry = _child(stage.init, "init", x, key) if callable(stage.init) else stage.init
    if carry is None:
        carry = jnp.zeros(stage.cell.hidden_size)
    index = jnp.arange(jtu.tree_leaves(xs)[0].shape[0])
    alone = stage.returns == "carry"
    carry, ys = jax.lax.scan(
        lambda c, s: (step(c, s)[0], None) if alone else step(c, s),
        carry,
        (xs, index),
        reverse=stage.reverse,
    )
    return carry if alone else ys


def _batched(stage, x, key):
    index = jnp.arange(jtu.tree_leaves(x)[0].shape[0])
    axes = (0, None if key is None else 0)  # nothing else is batched without a key
    return jax.vmap(
        lambda v, i: _child(stage.stage, i, v, key), axes, axis_name=stage.axis_name
    )(x, index)


def _several(child, args, named, key):
    if type(child).__name__ in _RULES:
        return by_hand(child, args[0] if args else named, key)
    fn = getattr(child, "fn", child)  # a function, where one was lifted
    takes_key = "key" in inspect.signature(fn).parameters
    return fn(*args, **named, **({"key": key} if takes_key else {}))


def _feed(stage, x, key):
    args = [x[name] for name in stage.inputs]
    named = {keyword: x[name] for keyword, name in stage.keywords}
    return _several(stage.stage, args, named, child_key(key, "stage"))


def _graph(stage, x, key):
    values = {"input": x} | {name: x[name] for name in stage.inputs or ()}
    for name, child, before, keywords in zip(
        stage.names, stage.stages, stage.predecessors, stage.keywords, strict=True
    ):
        given = [values[name] for name in before]
        named = dict(zip(keywords, given, strict=True)) if keywords else {}
        args = [] if keywords else given
        values[name] = _several(child, args, named, child_key(key, name))
    if isinstance(stage.sink, str):
        return values[stage.sink]
    found = tuple(values[name] for name in stage.sink)
    keys = stage.sink_keys
    return found if keys is None else dict(zip(keys, found, strict=True))


def _cast(tree, dtype):
    return jtu.tree_map(
        lambda v: v.astype(dtype) if eqx.is_inexact_array(v) else v, tree
    )


def _precision(stage, x, key):
    y, key = _cast(x, stage.compute), child_key(key, "stage")
    if not stage.keep:
        y = by_hand(_cast(stage.stage, stage.compute), y, key)
    else:  # layers of a chain, by their names
        for name, child in stage.stage.items():
            own = "float32" if name in stage.keep else stage.compute
            y = _child(_cast(child, own), name, _cast(y, own), key)
            y = _cast(y, stage.compute)
    return y if stage.output is None else _cast(y, stage.output)


def _outputs(stage, x, key):
    """Return the outputs of a chain, and of some stages right below it."""
    values, y = {}, x
    for name, child in stage.stage.items():
        y = values[str(name)] = _child(child, name, y, key)
    return y, {path: values[path] for path in stage.patterns}


def _frozen(stage, x, key):
    arrays, rest = eqx.partition(stage.stage, eqx.is_array)
    return by_hand(eqx.combine(jax.lax.stop_gradient(arrays), rest), x, key)


_RULES = {
    "Chain": _chain,
    "Parallel": _parallel,
    "Weighted": _weighted,
    "Gated": _gated,
    "Cond": _cond,
    "Switch": _switch,
    "At": _at,
    "Repeat": _repeat,
    "SharedRepeat": _repeat_shared,
    "Batched": _batched,
    "Ensemble": _ensemble,
    "Residual": _residual,
    "Scan": _scan,
    "Feed": _feed,
    "Tied": lambda stage, x, key: by_hand(stage.pipe, x, key),
    "Graph": _graph,
    "Precision": _precision,
    "Outputs": _outputs,
    "Frozen": _frozen,
}
