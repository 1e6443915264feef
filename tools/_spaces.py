"""Fifty spaces, drawn by a seed: their keys and the coordinates of their points.

The library's own strategy draws spaces too, but is rewritten itself. Names of axes and
numbers are drawn here alone, so that a space means the same whatever makes it.
"""

import hashlib
import random

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

import eqx_pipe as ep

COUNT, MOST = 50, 24
SPACE_KEY, SWEEP_KEY = jr.key(11), jr.key(12)


def record():
    """Return an entry for each space."""
    found = {}
    for i in range(COUNT):
        kind = KINDS[i % len(KINDS)]
        found[f"{i:02} {kind.__name__}"] = lambda i=i, kind=kind: _entry(
            *_drawn(i, kind)
        )
    return found


def _drawn(seed, kind):
    draw = random.Random(seed)
    space = kind(draw)
    chosen = _part(draw, space)
    while chosen.size > MOST:
        chosen = chosen[: chosen.size // 2]
    return chosen, kind is design


def _entry(space, is_design):
    """Keys of points, coordinates, and the same as a sweep sees them."""
    indices = range(space.size)
    points = [space[i] for i in indices]
    keys = [jr.key_data(space.point_key(i, key=SWEEP_KEY)) for i in indices]
    return {
        "dims": list(map(list, space.dims.items())),
        "axes": list(space.axes()),
        "keys": _digest(np.stack(keys)),
        "first key": np.asarray(keys[0]).tolist(),
        "coordinates": _coordinates(points),
        "design": is_design,
        **_as_swept(space),
    }


def _coordinates(points):
    """Return the numbers of all points by path: those that change, as a list."""
    rows = [jtu.tree_flatten_with_path(point)[0] for point in points]
    found = {}
    for i, (path, _) in enumerate(rows[0]):
        column = [row[i][1] for row in rows]
        found[jtu.keystr(path)] = _shown(column)
    return found


def _shown(column):
    if isinstance(column[0], str | bool | None) or callable(column[0]):
        return [getattr(x, "__name__", x) for x in column]
    if isinstance(column[0], jax.Array) and jnp.issubdtype(
        column[0].dtype, jax.dtypes.prng_key
    ):
        return _digest(np.stack(list(map(jr.key_data, column))))
    numbers = np.stack(list(map(np.asarray, column)))
    return {str(numbers.dtype): numbers.tolist()}


def _as_swept(space):
    """Return a digest of the keys and whole numbers that a function reads."""

    def seen(point, key):
        numbers = eqx.filter(point, eqx.is_array)
        whole = jtu.tree_leaves(eqx.filter(numbers, eqx.is_inexact_array, inverse=True))
        whole = [x for x in whole if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
        floats = jtu.tree_leaves(eqx.filter(numbers, eqx.is_inexact_array))
        return {"keys": jr.key_data(key), "whole": whole, "floats": floats}

    values = ep.sweep(seen, space, key=SWEEP_KEY).values
    return {
        "swept keys": _digest(values["keys"]),
        "swept whole": [_digest(x) for x in values["whole"]],
        "swept floats": [float(np.sum(x, dtype=np.float64)) for x in values["floats"]],
    }


def _digest(numbers):
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()[:16]


# Axes.


def _length(draw):
    return draw.randrange(2, 5)


def _ends(draw):
    first = round(draw.uniform(-2, 2), 2)
    return first, round(first + draw.uniform(0.5, 3), 2)


def linspace(draw, n, **given):
    return ep.Linspace(*_ends(draw), n, **given)


def geomspace(draw, n, **given):
    first = 10.0 ** draw.randrange(-4, 2)
    return ep.Geomspace(first, first * draw.choice([3, 100, 0.01]), n, **given)


def between_arrays(draw, n, **given):
    return ep.Linspace(jnp.zeros(3), jnp.array([1.0, 2.0, -3.0]), n, **given)


def values(draw, n, **given):
    whole = draw.sample(range(100), n)
    return ep.Values(draw.choice([whole, [x / 7 for x in whole]]), **given)


def flags(draw, n, **given):
    return ep.Values([draw.random() < 0.5 for _ in range(n)], **given)


def arrays(draw, n, **given):
    rows = [[draw.uniform(-1, 1) for _ in range(3)] for _ in range(n)]
    return ep.Values(jnp.array(rows), **given)


def keys(draw, n, **given):
    return ep.Values(jr.split(jr.key(draw.randrange(100)), n), **given)


def normal(draw, n, **given):
    return ep.Random(jr.normal, n, **given)


def whole(draw, n, **given):
    def sampler(key, shape):
        return jr.randint(key, shape, 0, 1000)

    return ep.Random(sampler, n, **given)


def replicates(draw, n, **given):
    return ep.Seeds(n, draws="common", **given)


def own_replicates(draw, n, **given):
    return ep.Seeds(n, draws="independent", **given)


def static(draw, n, **given):
    names = ["relu", "tanh", "gelu", "silu", "elu"]
    return ep.Static(draw.sample(names, n), **given)


def mapped(draw, n, **given):
    inner = draw.choice([values, linspace, normal])(draw, n, **given)
    return ep.Mapped(lambda x: {"twice": 2 * x, "square": x * x}, inner)


AXES = (
    *(linspace, geomspace, between_arrays, values, flags, arrays, keys, normal, whole),
    *(replicates, own_replicates, static, mapped),
)


def _axis(draw, n=None, **given):
    return draw.choice(AXES)(draw, n or _length(draw), **given)


# Kinds of spaces.


def _space(tree, **given):
    return ep.Space(tree, key=SPACE_KEY, **given)


def product(draw):
    names = draw.sample("abcdefg", draw.randrange(1, 4))
    return _space({name: _axis(draw) for name in names})


def zipped(draw):
    n = draw.randrange(3, 7)
    names = draw.sample("abcdefg", draw.randrange(2, 5))
    some = [axis for axis in AXES if axis is not static]
    return _space({name: draw.choice(some)(draw, n) for name in names}, mode="zip")


def nested(draw):
    return _space(
        {
            "model": {"rate": geomspace(draw, 3), "layers": [_axis(draw, 2), 0.5]},
            "data": (values(draw, 2), "fixed", None),
            "constant": jnp.arange(3.0),
        }
    )


def shared_dim(draw):
    n = _length(draw)
    tree = {name: _axis(draw, n, dim="together") for name in draw.sample("abcde", 2)}
    return _space({**tree, "other": _axis(draw)})


def bare_axis(draw):
    return _space(draw.choice([linspace, values, normal, replicates])(draw, 7))


def in_module(draw):
    layer = eqx.nn.Linear(2, 2, key=jr.key(0))
    axis = arrays(draw, 3)
    axis = ep.Mapped(lambda row: jnp.stack([row[:2], row[1:]]), axis)
    return _space(eqx.tree_at(lambda m: m.weight, layer, axis))


def seeds(draw):
    make = draw.choice([replicates, own_replicates])
    return _space({"x": linspace(draw, 3), "seed": make(draw, 4), "y": normal(draw, 2)})


def statics(draw):
    tree = {"act": static(draw, 2), "x": _axis(draw, 3), "init": static(draw, 2)}
    return _space(tree)


def rows_of_table(draw):
    n = draw.randrange(3, 8)
    columns = {
        "rate": [round(draw.uniform(0, 1), 3) for _ in range(n)],
        "width": draw.sample(range(64), n),
        "act": [draw.choice(["relu", "tanh"]) for _ in range(n)],
    }
    return ep.Space.from_table(columns)


def design(draw):
    make = draw.choice([ep.sobol, ep.latin_hypercube])
    box = {"x": ep.Linspace(*_ends(draw), 2), "rate": ep.Geomspace(1e-4, 1e-1, 2)}
    box["width"] = values(draw, 4)
    n, seed = draw.choice([8, 16]), draw.randrange(10)
    axes = make(box, n, seed=seed, dim=make.__name__).tree
    extra = {"seed": replicates(draw, 2)} if draw.random() < 0.3 else {}
    return _space({"design": axes, **extra})


def unit_cube(draw):
    tree = {"x": linspace(draw, 3), "rate": geomspace(draw, 3), "n": values(draw, 4)}
    cube = [[draw.random() for _ in tree] for _ in range(6)]
    return _space(tree).from_unit(np.array(cube))


KINDS = (
    *(product, zipped, nested, shared_dim, bare_axis, in_module, seeds, statics),
    *(rows_of_table, design, unit_cube),
)


def _part(draw, space):
    """Return the whole space, or some of its points: by a slice, a list or a mask."""
    n = space.size
    kind = draw.choice(["whole", "whole", "slice", "backwards", "list", "mask"])
    if kind == "slice":
        return space[draw.randrange(n // 2) :]
    if kind == "backwards":
        return space[::-2]
    if kind == "list":
        return space[[draw.randrange(n) for _ in range(min(n, 6))]]
    if kind == "mask":
        mask = np.array([draw.random() < 0.6 for _ in range(n)])
        mask[0] = True
        return space[mask]
    return space
