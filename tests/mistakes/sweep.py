"""`sweep`, `vmap_space`, `use_cpu_devices`."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.numpy import sin

import eqx_pipe as ep

from .common import ones
from .spaces import frame

DEFAULT = object()


@dataclasses.dataclass
class Fit:
    loss: object


STATIC = r"make it `ep.Static\(\[...\]\)`"
POINTS = {"n": ep.Values([2, 3]), "a": {"x": ep.Linspace(0, 1, 3)}, "k": jnp.int32(2)}


def sweep(fn=sin, space=DEFAULT, **settings):
    return ep.sweep(fn, ep.Linspace(0, 1, 3) if space is DEFAULT else space, **settings)


def vmap_space(fn=sin, space=DEFAULT, **settings):
    space = ep.Linspace(0, 1, 3) if space is DEFAULT else space
    return ep.vmap_space(fn, space, **settings)


def curve(output_coords):
    def fn(p):
        return {"u": p["x"] * ones(3), "w": p["x"] * ones(2, 3)}

    return sweep(fn, {"x": ep.Linspace(0, 1, 3)}, output_coords=output_coords)


def by_hand_steps():
    with jax.disable_jit():
        sweep(count_steps=True)


def again(*args, fn=lambda p: sin(p["x"]), **settings):
    """A call of a sweeper."""
    return ep.sweeper(fn, {"x": ep.Linspace(0, 1, 3)})(*args, **settings)


OTHER = {"y": ep.Linspace(0, 1, 3)}


SWEEPER = [
    ("no axis", lambda: again({"x": 1.0}), ValueError, "Put a `Linspace`"),
    ("key 3", lambda: again(OTHER, key=3), TypeError, "jax.random.key"),
    ("no output", lambda: again(fn=lambda p: None), TypeError, "`return` missing"),
    (
        "under jit",
        lambda: jax.jit(lambda x: again({"x": ep.Values(x)}).values)(ones(2)),
        TypeError,
        "Use `eqx_pipe.vmap_space`",
    ),
    (
        "tune",
        lambda: ep.sweeper(sin, OTHER["y"], batch_size="tune"),
        ValueError,
        "`auto`",
    ),
]


def plan(fn=sin, **settings):
    return ep.plan(fn, ep.Linspace(0, 1, 3), **settings)


SWEEP = [
    ("plan: a part", lambda: plan(shard=(0, 2)), ValueError, "same path, `store="),
    ("plan: no output", lambda: plan(lambda x: None), TypeError, "`return` missing"),
    ("fn 3", lambda: sweep(3), TypeError, "first argument is the function"),
    ("no axis", lambda: sweep(space={"a": 1}), ValueError, "Put a `Linspace`"),
    (
        "a data frame",
        lambda: sweep(space=frame()),
        ValueError,
        "`space` is .*`ep.Space.from_table` a space of a table",
    ),
    ("key 3", lambda: sweep(key=3), TypeError, "jax.random.key"),
    ("rbg", lambda: sweep(key=jr.key(0, impl="rbg")), ValueError, "threefry2x32"),
    ("batch 0", lambda: sweep(batch_size=0), ValueError, "at least 1"),
    ("batch atuo", lambda: sweep(batch_size="atuo"), ValueError, "`auto`"),
    ("batch None", lambda: sweep(batch_size=None), TypeError, "integer of at least 1"),
    ("mesh 4", lambda: sweep(mesh=4), TypeError, "jax.make_mesh"),
    ("progress", lambda: sweep(progress=3), TypeError, "True, False, or None"),
    ("progress yes", lambda: sweep(progress="yes"), ValueError, "Known names: `value`"),
    (
        "progress of none",
        lambda: sweep(progress="yes", reduce=ep.reduce.Mean()),
        ValueError,
        "Pass `progress=True`",
    ),
    *(
        (f"output_coords {given}", lambda given=given: curve(given), kind, says)
        for given, kind, says in [
            (3, TypeError, '`{"curve": {"step": steps}}`'),
            ({"u": ["step"]}, TypeError, "a dict from outputs to dicts"),
            ({"u": {"step": 4}}, TypeError, "or None for a name alone"),
            ({"v": {"step": None}}, ValueError, "names 'v'. Known names: `u`, `w`"),
            ({"w": {"step": [1, 2]}}, ValueError, r"\(2, 3\). Name all in order"),
            ({"u": {"step": [1, 2]}}, ValueError, "3 long. Give a value for each"),
            ({"u": {"x": None}}, ValueError, "the space has this name too"),
            ({"w": {"a": None, "b": None}, "u": {"a": None}}, ValueError, "dim 'a' of"),
            (
                {"u": {"a": "xyz"}, "w": {"b": None, "a": [1, 2, 3]}},
                TypeError,
                "an array with a number or text",
            ),
            (
                {"u": {"a": [1, 2, 4]}, "w": {"b": None, "a": [1, 2, 3]}},
                ValueError,
                "share its coordinates: rename",
            ),
        ]
    ),
    (
        "named dims of a reduction",
        lambda: sweep(reduce=ep.reduce.Mean(), output_coords={"value": {"q": None}}),
        ValueError,
        r'name the reduced dims: `ep.reduce.Mean\(over="seed"\)`',
    ),
    ("on_error", lambda: sweep(on_error="rais"), ValueError, "Did you mean `raise`"),
    ("no key", lambda: sweep(lambda x, key: x), ep.MissingKeyError, "random.key"),
    (
        "a hidden need of a key",
        lambda: sweep(lambda x, key=None: jr.normal(key)),
        ep.MissingKeyError,
        "random.key",
    ),
    ("text", lambda: sweep(lambda x: {"a": "no"}), TypeError, "`.a`. .*leave other"),
    ("forgotten return", lambda: sweep(lambda x: None), TypeError, "`return` missing"),
    ("an empty dict", lambda: sweep(lambda x: {}), TypeError, "`return` missing"),
    ("Nones", lambda: sweep(lambda x: (None, [])), TypeError, "`return` missing"),
    (
        "forgotten return, with a key",
        lambda: sweep(lambda x, key=None: None),
        TypeError,
        "`return` missing",
    ),
    (
        "forgotten return in a reduction",
        lambda: sweep(lambda x: None, reduce=ep.reduce.Mean()),
        TypeError,
        "`return` missing",
    ),
    ("count_steps", lambda: sweep(count_steps=1), TypeError, "True or False"),
    (
        "steps of a reduction",
        lambda: sweep(count_steps=True, reduce=ep.reduce.Mean()),
        ValueError,
        r"together with `reduce`. .*part of the space, `ep.sweep\(fn, space\[:1000\]",
    ),
    (
        "steps one by one",
        by_hand_steps,
        ValueError,
        "plain loop, for debugging: leave it out",
    ),
    (
        "order_by of nothing",
        lambda: sweep(order_by=lambda x: None),
        TypeError,
        "`return` missing",
    ),
    ("functions", lambda: sweep(lambda x: [sin]), TypeError, "return a number that"),
    (
        "inside jit",
        lambda: jax.eval_shape(lambda w: sweep(lambda x: w * x).values, ones()),
        TypeError,
        "Use `eqx_pipe.vmap_space`",
    ),
    (
        "two arguments",
        lambda: sweep(lambda rate, time: rate),
        TypeError,
        r"takes 2 arguments .*`lambda p: fn\(p\[\"rate\"\], p\[\"time\"\]\)`",
    ),
    (
        "a point, a key and more",
        lambda: sweep(lambda p, n, key: p, key=jr.key(0)),
        TypeError,
        r"`lambda p, key: fn\(p, p\[\"n\"\], key=key\)`.*functools.partial",
    ),
    ("arctan2", lambda: sweep(jnp.arctan2), TypeError, "takes 2 arguments"),
    ("keywords", lambda: sweep(lambda **p: p["x"]), TypeError, r"fn\(\*\*p\)"),
    ("vmap two", lambda: vmap_space(lambda a, b: a), TypeError, "takes 2 arguments"),
    (
        "a dataclass comes out",
        lambda: sweep(lambda x: Fit(x)),
        TypeError,
        r"`jax.tree_util.register_dataclass\(Fit\)`",
    ),
    (
        "10^12 points",
        lambda: sweep(lambda p: p[0], [ep.Linspace(0, 1, 10**6)] * 2),
        ValueError,
        r"3,725 GiB, .*`reduce=`, or values on disk by `store=",
    ),
    (
        "10^18 points",
        lambda: sweep(lambda p: p[0], [ep.Linspace(0, 1, 10**9)] * 2),
        ValueError,
        "`reduce=`, or values on disk by `store=",
    ),
    (
        "one static value",
        lambda: sweep(
            lambda p: jnp.ones(6).reshape(p["n"], -1).sum(), {"n": ep.Static([2, 4])}
        ),
        TypeError,
        "While `fn` was traced for `n = 4`",
    ),
    (
        "vmap one static value",
        lambda: vmap_space(
            lambda p: jnp.ones(6).reshape(p["n"], -1).sum(), {"n": ep.Static([2, 4])}
        ),
        TypeError,
        "While `fn` was traced for `n = 4`",
    ),
    ("part alone", lambda: sweep(shard=(0, 2)), ValueError, "store='runs.zarr'"),
    ("part of 3", lambda: sweep(shard=3), TypeError, "with 0 <= index < count"),
    ("resume alone", lambda: sweep(resume="force"), ValueError, "path of the store"),
    (
        "resume reduced",
        lambda: sweep(resume="failed", store="x", reduce=ep.reduce.Mean()),
        ValueError,
        "keep the values and reduce them",
    ),
    ("resume", lambda: sweep(resume="forc"), ValueError, "Did you mean `force`"),
    ("order_by", lambda: sweep(order_by=[1.0]), ValueError, "one number for each po"),
    (
        "batch 2^31",
        lambda: sweep(space=ep.Linspace(0, 1, 2**31 - 1), batch_size=2**31 - 1),
        ValueError,
        "give at most",
    ),
    (
        "Static values that disagree",
        lambda: sweep(lambda p: jnp.zeros(p), ep.Static([1, 2])),
        ep.StructureError,
        "Return the same structure, shapes and dtypes for all of them",
    ),
    ("vmap fn 1", lambda: vmap_space(1), TypeError, "first argument is the function"),
    ("vmap no axis", lambda: vmap_space(space=1), ValueError, "Put a `Linspace`"),
    (
        "vmap key",
        lambda: vmap_space(lambda x, key: x),
        ep.MissingKeyError,
        "random.key",
    ),
    ("vmap rbg", lambda: vmap_space(key=jr.key(0, impl="rbg")), ValueError, "threefry"),
    ("vmap batch 0", lambda: vmap_space(batch_size=0), ValueError, "at least 1"),
    ("vmap mesh", lambda: vmap_space(mesh="x"), TypeError, "jax.make_mesh"),
    ("vmap None", lambda: vmap_space(lambda x: None), TypeError, "`return` missing"),
    ("vmap text", lambda: vmap_space(lambda x: "a"), TypeError, "pytrees of arrays"),
    (
        "vmap too large",
        lambda: vmap_space(space=[ep.Linspace(0, 1, 2**31 - 1), ep.Values([1, 2])]),
        ValueError,
        r"take a slice, `space\[a:b\]`",
    ),
    ("cores 0", lambda: ep.use_cpu_devices(0), ValueError, "integer of at least 1"),
    ("cores 'all'", lambda: ep.use_cpu_devices("all"), TypeError, "Give an integer"),
]
