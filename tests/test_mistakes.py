"""Users' mistakes, one a row: what is done wrong, the error, and words of its cure.

Each is found when something is built or traced, so nothing here is compiled. A row
belongs to the room that answers. Those answers that depend on much else (files, other
processes, failures while a sweep runs) are tested where that is built.
"""

import dataclasses
import functools as ft
import re

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis.errors import InvalidArgument
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

import eqx_pipe as ep
import eqx_pipe.testing as ept

sin, cos, nn = jnp.sin, jnp.cos, eqx.nn
Struct = jax.ShapeDtypeStruct
DEFAULT = object()


@pytest.fixture(autouse=True)
def _our_own_checks_answer(unchecked):
    pass


# What the rows are made of.


def ones(*shape, dtype="float32"):
    return jnp.ones(shape, dtype)


def key(seed=0):
    return jr.key(seed)


def linear(key):
    return nn.Linear(3, 3, key=key)


def give(*values):
    """One stage for each value, which gives it whatever comes in."""
    return tuple(ft.partial(lambda value, x: value, value) for value in values)


def stateful():
    return nn.make_with_state(nn.BatchNorm)(3, axis_name="batch", mode="batch")


class Counter(nn.StatefulLayer):
    """Counts what it sees in its state, for each example differently."""

    index: nn.StateIndex

    def __init__(self):
        self.index = nn.StateIndex(jnp.zeros(()))

    def __call__(self, x, state, *, key=None):
        return x, state.set(self.index, state.get(self.index) + jnp.sum(x))


class Forgetful(Counter):
    """A stateful stage that does not return its state."""

    def __call__(self, x, state, *, key=None):
        return x


class Raw(eqx.Module):
    """Has state, and does not say so by its type."""

    index: nn.StateIndex

    def __init__(self):
        self.index = nn.StateIndex(jnp.zeros(()))

    def __call__(self, x, state, *, key=None):
        return x, state


class Gamma:
    def sample(self, key, shape):
        return jr.gamma(key, 1.0, shape)


class Endless:
    def __getitem__(self, i):
        return i


class Noise(ep.Axis):
    """An axis that draws its values, and does not say so by `needs_key`."""

    dim: str | None = None

    def __len__(self):
        return 2

    def value(self, i, key):
        return jr.normal(jr.fold_in(key, i))


class Empty(ep.Axis):
    dim: None = None

    def __len__(self):
        return 0

    def value(self, i, key):
        return i


def mesh(data=4, model=2):
    types = (AxisType.Auto,) * 2
    return jax.make_mesh((data, model), ("data", "model"), axis_types=types)


def row(n):
    return jax.make_mesh((n,), ("stages",), axis_types=(AxisType.Auto,))


def block(key):
    return nn.Lambda(sin)


def stack(n, make=block):
    return ep.repeat(make, n, key=key())


def parallelize(**changes):
    settings = {"init_params": linear, "initial_batch": ones(8, 3)} | changes
    return ep.parallelize(settings.pop("fun", lambda m, x: 0.0), **settings)


def constrain(x, *names):
    with ep.axis_rules({"a": "data", "b": "model", "c": "nope"}, mesh()):
        ep.constrain(x, *names)


def rules(given):
    with ep.axis_rules(given, mesh()):
        pass


def source(n=5):
    return ep.ArraySource(jnp.arange(n))


def load(data=None, **settings):
    data = source() if data is None else data
    return ep.Loader(data, **({"batch_size": 2, "shuffle": False} | settings))


def first_batch(*args, **settings):
    loader = load(*args, **settings)
    return loader.next(loader.init(key()))


def scan(step, carry=0.0, length=1, loader=None):
    loader = load() if loader is None else loader
    return loader.scan(step, carry, loader.init(key()), length)


def ask_traced(ask):
    cursor = jax.tree.map(jnp.asarray, load().init(key()))
    return eqx.filter_jit(ask)(cursor)


def spent():
    iterator = load().epoch(load().init(key()))
    list(iterator)
    return iterator.cursor


def reduced(reduce, fn=lambda x: x):
    return ep.sweep(fn, ep.Linspace(0, 1, 3), reduce=reduce)


def record(x):
    return {"loss": x, "at": jnp.stack([x, x])}


def reducer(**changes):
    return ep.Reducer(
        **{
            "init": lambda struct: jnp.zeros(1),
            "update": lambda state, x: state,
            "merge": lambda a, b: a,
            "finish": lambda state: state,
        }
        | changes
    )


def swept(fn=record):
    """The result of a sweep, by the plain loop, which compiles nothing."""
    with jax.disable_jit():
        return ep.sweep(lambda p: fn(p["x"]), {"x": ep.Linspace(0, 1, 3)})


def sweep(fn=sin, space=DEFAULT, **settings):
    return ep.sweep(fn, ep.Linspace(0, 1, 3) if space is DEFAULT else space, **settings)


def vmap_space(fn=sin, space=DEFAULT, **settings):
    space = ep.Linspace(0, 1, 3) if space is DEFAULT else space
    return ep.vmap_space(fn, space, **settings)


def steps(**changes):
    given = {
        "init": lambda x: x,
        "cond": lambda x, c: c < 3,
        "body": lambda x, c: c + 1,
        "out": lambda x, c: c,
    } | changes
    return ep.refill(*given.values())


def example(strategy):
    @hp.settings(max_examples=1, database=None)
    @hp.given(strategy)
    def run(value):
        pass

    run()


def unannotated(x):
    return x


def annotated(x: Float[Array, " n"]) -> Float[Array, " n"]:
    return x


def positional(x: Float[Array, " n"], /):
    return x


def unsatisfiable(x: Float[Array, " n"], y: Float[Array, " n-9"]):
    return x


# The rows.

CHAIN = [
    ("a number", lambda: ep.chain(3), TypeError, "A stage is a callable"),
    ("a class", lambda: ep.chain(nn.Linear), TypeError, r"first: `Linear\(\.\.\.\)`"),
    ("a list", lambda: ep.chain([sin, cos]), TypeError, r"unpack .*chain\(\*stages\)"),
    ("a dict", lambda: ep.chain({"a": sin}), TypeError, r"`chain\(\*\*stages\)`"),
    ("both", lambda: ep.chain(sin, a=cos), TypeError, "or all by name"),
    ("a dot", lambda: ep.chain(**{"a.b": cos}), ValueError, "without a dot.*Rename"),
    ("no name", lambda: ep.chain(**{"": cos}), ValueError, "non-empty string"),
    ("key 3", lambda: ep.chain(sin)(ones(1), key=3), TypeError, r"jax.random.key\(s"),
    (
        "keys",
        lambda: ep.chain(sin)(ones(1), key=jr.split(key())),
        TypeError,
        "for a batch of keys use `jax.vmap`",
    ),
    (
        "no key",
        lambda: ep.chain(a=nn.Dropout(0.5))(ones(3)),
        ep.MissingKeyError,
        r"`a` .*`key=jax.random.key\(0\)`.*inference_mode",
    ),
    (
        "a second input",
        lambda: ep.chain(sin)(ones(1), ones(1)),
        TypeError,
        "several values go in as one tuple or dict",
    ),
    (
        "no state",
        lambda: ep.chain(norm=stateful()[0])(ones(3)),
        ValueError,
        r"`norm` is stateful.*make_with_state.*y, state = pipe\(x, state\)",
    ),
    (
        "another state",
        lambda: ep.chain(Counter())(ones(3), stateful()[1]),
        ValueError,
        "made together with this pipeline",
    ),
    (
        "a state lost",
        lambda: (lambda p, s: p(ones(3), s))(
            *nn.make_with_state(lambda: ep.chain(Forgetful()))()
        ),
        TypeError,
        r"Return `\(y, state\)`",
    ),
    (
        "no stateful layer",
        lambda: ep.chain(Raw())(ones(3)),
        TypeError,
        "derive it from `equinox.nn.StatefulLayer`",
    ),
    ("hash", lambda: hash(ep.chain(linear(key()))), TypeError, "equinox.filter_jit"),
    ("a wrong name", lambda: ep.chain(abc=sin)["abd"], KeyError, "Did you mean `abc`"),
    ("far away", lambda: ep.chain(sin)[3], IndexError, "an integer from -1 to 0"),
    ("half", lambda: ep.chain(sin)[0.5], TypeError, "an integer, or a name if"),
    ("lift 3", lambda: ep.lift(3), TypeError, "A stage is a callable"),
    ("lift a class", lambda: ep.lift(nn.MLP), TypeError, "Make an instance of it"),
]

PARALLEL = [
    ("nothing", lambda: ep.parallel(), ValueError, "Give at least one"),
    ("an empty dict", lambda: ep.parallel({}), ValueError, "Give at least one"),
    ("merge concta", lambda: ep.parallel(sin, merge="concta"), ValueError, "`concat`"),
    ("merge 3", lambda: ep.parallel(sin, merge=3), TypeError, "A stage is a callable"),
    ("a class", lambda: ep.parallel(sin, merge=nn.Linear), TypeError, "an instance"),
    ("jnp.add", lambda: ep.parallel(sin, merge=jnp.add), TypeError, "gets one tuple"),
    ("no names", lambda: ep.parallel(sin, merge="dict"), ValueError, "in one mapping"),
    ("a dict and", lambda: ep.parallel({"a": sin}, sin), TypeError, "in one mapping"),
    ("name 1", lambda: ep.parallel({1: sin}), ValueError, "non-empty string"),
    ("stage 3", lambda: ep.parallel({"a": 3}), TypeError, "A stage is a callable"),
    ("a list", lambda: ep.parallel([sin]), TypeError, r"`parallel\(\*stages\)`"),
    ("axis 1.0", lambda: ep.parallel(sin, axis=1.0), TypeError, "Give one integer"),
    ("two axes", lambda: ep.parallel(sin, axis=(0, 1)), TypeError, "Give one integer"),
    ("merge", lambda: ep.parallel({"merge": sin}, merge=sum), ValueError, "Rename the"),
    (
        "outputs that disagree",
        lambda: ep.parallel(*give(ones(2), ones(3)), merge="sum")(1.0),
        ep.StructureError,
        "agree by a stage after one of them",
    ),
    (
        "text",
        lambda: ep.parallel(*give("a", "b"), merge="sum")(1.0),
        TypeError,
        'by `eqx_pipe.at`, or use `merge="tuple"`',
    ),
    (
        "an axis too many",
        lambda: ep.parallel(*give(ones(2), ones(2)), merge="stack", axis=3)(1.0),
        ValueError,
        "Give `axis` from -2 to 1",
    ),
    (
        "scalars",
        lambda: ep.parallel(*give(ones(), ones()), merge="concat")(1.0),
        ValueError,
        'use `merge="stack"`',
    ),
    (
        "two places",
        lambda: ep.parallel(
            *give(*(jax.device_put(ones(2), d) for d in jax.devices()[:2])),
            merge="sum",
        )(1.0),
        ValueError,
        "End each of them on the same submesh",
    ),
]

WEIGHTED = [
    ("nothing", lambda: ep.weighted(), ValueError, "Give at least one"),
    ("stage 3", lambda: ep.weighted(3), TypeError, "A stage is a callable"),
    ("two", lambda: ep.weighted(sin, weights=[1.0, 2.0]), ValueError, r"shape \(1,\)"),
    ("one", lambda: ep.weighted(sin, weights=1.0), ValueError, "number per stage"),
    ("text", lambda: ep.weighted(sin, weights="no"), TypeError, "or a stage that"),
    (
        "a dict",
        lambda: ep.weighted(sin, weights={"a": 1}),
        TypeError,
        "Give one number per",
    ),
    ("complex", lambda: ep.weighted(sin, weights=[1j]), TypeError, "Give real numbers"),
    ("a key", lambda: ep.weighted(sin, weights=key()), TypeError, "one number per"),
    ("softmx", lambda: ep.weighted(sin, normalize="softmx"), ValueError, "`softmax`"),
    ("None", lambda: ep.weighted(sin, normalize=None), ValueError, "Known names"),
    (
        "a gate for each example",
        lambda: ep.weighted(sin, cos, weights=lambda x: ones(3))(ones(3)),
        ep.StructureError,
        r"float32\[2\]. For weights per example wrap the stage in `batched`",
    ),
    (
        "text in, text out",
        lambda: ep.weighted(ep.identity)({"a": "dog"}),
        TypeError,
        "to the other parts only, by `eqx_pipe.at`",
    ),
]

BRANCH = [
    ("cond 3", lambda: ep.cond(3, sin), TypeError, "A stage is a callable"),
    ("a class", lambda: ep.cond(cos, nn.Linear), TypeError, "Make an instance"),
    ("each", lambda: ep.cond(lambda x: x > 0, sin)(ones(3)), ValueError, "`jnp.any`"),
    ("1", lambda: ep.cond(lambda x: 1, sin)(ones(3)), ValueError, "returns bool"),
    (
        "another shape",
        lambda: ep.cond(lambda x: True, jnp.sum)(ones(3)),
        ep.StructureError,
        "same structure",
    ),
    ("no branch", lambda: ep.switch(jnp.argmax), ValueError, "one after the selector"),
    ("eror", lambda: ep.switch(cos, sin, bounds="eror"), ValueError, "mean `error`"),
    ("0.0", lambda: ep.switch(lambda x: 0.0, sin)(ones(3)), ValueError, "jnp.argmax"),
    ("bool", lambda: ep.switch(lambda x: x[0] > 0, sin)(ones(3)), ValueError, "`cond`"),
    (
        "branches that differ",
        lambda: ep.switch(lambda x: 0, sin, jnp.sum)(ones(3)),
        ep.StructureError,
        "same structure",
    ),
    ("no stages", lambda: ep.gated(gates=()), ValueError, "Give at least one"),
    ("no gates", lambda: ep.gated(sin, gates=()), ValueError, "Give at least one"),
    ("one gate", lambda: ep.gated(sin, gates=cos), TypeError, r"`gates=\(gate,\)`"),
    ("two", lambda: ep.gated(sin, gates=[cos] * 2), ValueError, "one gate per stage"),
    ("summ", lambda: ep.gated(sin, gates=[cos], merge="summ"), ValueError, "`sum`"),
    ("zero", lambda: ep.gated(sin, gates=[cos], closed="zero"), ValueError, "`zeros`"),
    ("dict", lambda: ep.gated(sin, gates=[cos], merge="dict"), ValueError, "mapping"),
    (
        "a key out of a branch",
        lambda: ep.gated(lambda x: key(), gates=[jnp.all], merge="mean")(ones(3) > 0),
        TypeError,
        "Keep it out of the stages",
    ),
    ("b", lambda: ep.gated({"a": sin}, gates={"b": sin}), ValueError, "for each name"),
    ("mixed", lambda: ep.gated(sin, gates={"a": sin}), ValueError, "both by position"),
    (
        "gates",
        lambda: ep.gated({"gates": sin}, gates={"gates": sin}),
        ValueError,
        "Rename",
    ),
    (
        "nothing to fall back on",
        lambda: ep.gated(jnp.sum, gates=[lambda x: True], merge="concat")(ones(3)),
        ep.StructureError,
        'closed="zeros"',
    ),
]

GRAPH = [
    ("pairs", lambda: ep.graph([("a", sin)], {}, "a"), TypeError, "Give a dict from"),
    ("nothing", lambda: ep.graph({}, {}, "a"), ValueError, "Give at least one node"),
    ("input", lambda: ep.graph({"input": sin}, {}, "input"), ValueError, "Rename it"),
    ("a dot", lambda: ep.graph({"a.b": sin}, {}, "a.b"), ValueError, "without a dot"),
    ("a class", lambda: ep.graph({"a": nn.MLP}, {"a": []}, "a"), TypeError, "instance"),
    ("edge pairs", lambda: ep.graph({"a": sin}, [], "a"), TypeError, "predecessors"),
    ("no edges", lambda: ep.graph({"a": sin}, {}, "a"), ValueError, '{"a": .*graph.s'),
    (
        "edges of no node",
        lambda: ep.graph({"abc": sin}, {"abc": [], "abd": []}, "abc"),
        ValueError,
        "Did you mean `abc`",
    ),
    (
        "None",
        lambda: ep.graph({"a": sin}, {"a": None}, "a"),
        TypeError,
        "list of names",
    ),
    (
        "from nowhere",
        lambda: ep.graph({"a": sin}, {"a": ["inptu"]}, "a"),
        ValueError,
        "Did you mean `input`",
    ),
    ("sink 3", lambda: ep.graph({"a": sin}, {"a": []}, 3), TypeError, "name of a node"),
    ("no sink", lambda: ep.graph({"a": sin}, {"a": []}, ()), ValueError, "names: `a`"),
    ("sink input", lambda: ep.graph({"a": sin}, {"a": []}, "input"), ValueError, "`a`"),
    ("sink b", lambda: ep.graph({"a": sin}, {"a": []}, "b"), ValueError, "names: `a`"),
    (
        "a cycle",
        lambda: ep.graph({"a": sin, "b": cos}, {"a": ["b"], "b": ["a"]}, "a"),
        ValueError,
        "a -> b -> a. Take one of these arrows away.*`repeat`",
    ),
    (
        "a dead node",
        lambda: ep.graph({"a": sin, "b": cos}, {"a": [], "b": []}, "a"),
        ValueError,
        "connect them, or add them to `sink`",
    ),
    (
        "two for one",
        lambda: ep.graph({"a": sin}, {"a": ["input"] * 2}, "a"),
        ValueError,
        "join several values in a node before it",
    ),
    (
        "a wrong item",
        lambda: ep.graph({"a": sin}, {"a": []}, "a")["b"],
        KeyError,
        "`a`",
    ),
]

FOCUS = [
    ("None", lambda: ep.at(None, sin), TypeError, "lambda x: x.image"),
    ("a list", lambda: ep.at(["a"], sin), TypeError, "a tuple of them read as a path"),
    ("stage 3", lambda: ep.at("a", 3), TypeError, "A stage is a callable"),
    ("imag", lambda: ep.at("imag", sin)({"image": 1}), ep.StructureError, "n `image`"),
    ("2", lambda: ep.at(2, sin)((1, 2)), ep.StructureError, "Known names: `0`, `1`"),
    (
        "a path too long",
        lambda: ep.at(("a", "b"), sin)({"a": ones(2)}),
        ep.StructureError,
        "`.a` of the input.*Known names: none",
    ),
    (
        "a function that fails",
        lambda: ep.at(lambda x: x["c"], sin)({"a": 1}),
        ep.StructureError,
        "return one part of it unchanged",
    ),
    (
        "two parts",
        lambda: ep.at(lambda x: (x["a"], x["b"]), sin)({"a": 1, "b": 2}),
        ep.StructureError,
        "put one `at` after another",
    ),
]

BATCHED = [
    ("stage 3", lambda: ep.batched(3), TypeError, "A stage is a callable"),
    ("text", lambda: ep.batched(sin, in_axes="0"), TypeError, "`None`, or a pytree"),
    ("True", lambda: ep.batched(sin, in_axes=True), TypeError, "Give an integer"),
    ("nothing", lambda: ep.batched(sin, in_axes=None), ValueError, "Give the axis"),
    ("a list", lambda: ep.batched(sin, axis_name=["a"]), TypeError, '="batch"'),
    ("a scalar", lambda: ep.batched(sin)(1.0), ep.StructureError, "same number of exa"),
    (
        "two sizes",
        lambda: ep.batched(sin)({"a": ones(2), "b": ones(3)}),
        ep.StructureError,
        "`None` in `in_axes` for what all examples share",
    ),
    (
        "other axes",
        lambda: ep.batched(sin, in_axes={"a": 0})((ones(2),)),
        ep.StructureError,
        "same containers as the input",
    ),
    (
        "a state for each example",
        lambda: (lambda p, s: p(jnp.arange(3.0), s))(
            *nn.make_with_state(lambda: ep.batched(Counter()))()
        ),
        ValueError,
        "by a collective over `axis_name`",
    ),
]

REPEAT = [
    ("3", lambda: ep.repeat(3, 2, key=key()), TypeError, "makes one stage from a key"),
    (
        "a stage",
        lambda: ep.repeat(linear(key()), 2, key=key()),
        TypeError,
        "lambda key",
    ),
    ("no argument", lambda: ep.repeat(lambda: sin, 2, key=key()), TypeError, "Wrap it"),
    ("a class", lambda: stack(2, lambda key: nn.MLP), TypeError, "Make an instance"),
    ("None made", lambda: stack(2, lambda key: None), TypeError, "A stage is a call"),
    ("2.0", lambda: ep.repeat(block, 2.0, key=key()), TypeError, "integer of at least"),
    ("-1", lambda: ep.repeat(block, -1, key=key()), ValueError, "of at least 0"),
    ("no key", lambda: ep.repeat(block, 2, key=None), TypeError, "key=jax.random.key"),
    ("keys", lambda: ep.repeat(block, 2, key=jr.split(key())), TypeError, "`jax.vmap`"),
    ("by name", lambda: stack(2)["a"], TypeError, "found by position: give an int"),
    ("far away", lambda: stack(2)[5], IndexError, "Give an integer from -2 to 1"),
    (
        "another shape",
        lambda: stack(2, lambda key: lambda x: x[:1])(ones(3)),
        ep.StructureError,
        "for stages that differ use `chain`",
    ),
    (
        "a closure",
        lambda: stack(2, lambda k: ft.partial(jnp.add, jr.normal(k, (3,)))),
        ValueError,
        "Return an `equinox.Module` that has these arrays as fields",
    ),
]

COMPILED = [
    ("stage 3", lambda: ep.compiled(3, ones(3)), TypeError, "A stage is a callable"),
    ("key 3", lambda: ep.compiled(sin, ones(3), key=3), TypeError, "jax.random.key"),
    ("state 3", lambda: ep.compiled(sin, ones(3), 3), TypeError, "equinox.nn.State"),
    (
        "inside jit",
        lambda: jax.eval_shape(lambda x: ep.compiled(sin, x)(x), ones(3)),
        ValueError,
        "Make the compiled stage outside; inside, call the pipeline itself",
    ),
    (
        "another input",
        lambda: ep.compiled(ep.identity, ones(3))(ones(4)),
        ep.StructureError,
        "Make another with `compiled` for this input",
    ),
    (
        "outputs of 3",
        lambda: ep.outputs(3, ones(2)),
        TypeError,
        "A stage is a callable",
    ),
    (
        "outputs without state",
        lambda: ep.outputs(ep.chain(stateful()[0]), ones(3)),
        ValueError,
        "make_with_state",
    ),
    ("init 3", lambda: steps(init=3), TypeError, r"refill\(init, cond, body, out\)"),
    (
        "a carry that changes",
        lambda: steps(body=lambda x, c: ones(2))(jnp.float32(1)),
        ep.StructureError,
        "Let `body` return what `init` starts with",
    ),
    (
        "no boolean",
        lambda: steps(cond=lambda x, c: c)(jnp.float32(1)),
        ValueError,
        "join several by `jnp.any`",
    ),
    (
        "reverse mode",
        lambda: jax.grad(steps())(jnp.float32(1)),
        ValueError,
        "Use forward mode",
    ),
]

SPACE = [
    ("up", lambda: ep.Space(ep.Linspace(0, 1, 9))[2:4:-1], ValueError, "at least one"),
    ("no axis", lambda: ep.Space({"a": 1}), ValueError, "in the place of a leaf"),
    ("a space", lambda: ep.Space(ep.Space(ep.Values([1]))), TypeError, "its `.tree`"),
    ("zap", lambda: ep.Space(ep.Values([1]), "zap"), ValueError, "mean `zip`"),
    ("key 3", lambda: ep.Space(ep.Values([1]), key=3), TypeError, "jax.random.key"),
    ("point", lambda: ep.Space({"point": ep.Values([1])}), ValueError, "Rename it"),
    (
        "lengths",
        lambda: ep.Space({"a": ep.Values([1]), "b": ep.Values([1, 2])}, "zip"),
        ValueError,
        "`a` has 1, `b` has 2. Give",
    ),
    (
        "two of one path",
        lambda: ep.Space({"a.b": ep.Values([1]), "a": {"b": ep.Values([1])}}),
        ValueError,
        "Rename one of the dict keys",
    ),
    (
        "dim point",
        lambda: ep.Space(ep.Values([1], dim="point")),
        ValueError,
        "Rename the dim",
    ),
    (
        "a dim that is a path",
        lambda: ep.Space({"a": ep.Values([1]), "b": ep.Values([1], dim="a")}),
        ValueError,
        "`dim='a'` too if they shall vary together, or rename",
    ),
    (
        "a shared dim",
        lambda: ep.Space(
            {"a": ep.Values([1], dim="g"), "b": ep.Values([1, 2], dim="g")}
        ),
        ValueError,
        "`a` has 1, `b` has 2. Give",
    ),
    ("empty", lambda: ep.Space({"a": Empty()}), ValueError, "Give it at least one"),
    (
        "2 of 2",
        lambda: ep.Space(ep.Values([1, 2]))[2],
        IndexError,
        "of the 2 points, 0",
    ),
    ("-1", lambda: ep.Space(ep.Values([1])).point(-1), IndexError, "Give one of the"),
    ("['a']", lambda: ep.Space(ep.Values([1]))["a"], TypeError, "integer or a slice"),
    ("[True]", lambda: ep.Space(ep.Values([1]))[True], TypeError, "integer or a slice"),
    ("[5:]", lambda: ep.Space(ep.Values([1]))[5:], ValueError, "Choose at least one"),
    (
        "a traced float",
        lambda: jax.eval_shape(ep.Space(ep.Values([1])).point, ones()),
        TypeError,
        "Give a scalar integer; for many points at once use `jax.vmap`",
    ),
    (
        "a traced index",
        lambda: jax.eval_shape(
            ep.Space(ep.Static([1])).point, Struct((), jnp.dtype("int32"))
        ),
        TypeError,
        "Use a plain integer, or `sweep` and `vmap_space`",
    ),
    (
        "no key",
        lambda: ep.Space({"a": ep.Random(jr.normal, 2)}),
        ep.MissingKeyError,
        r"`a` .*Space\(tree, key=jax.random.key\(0\)\)",
    ),
]

AXES = [
    ("nan", lambda: ep.Linspace(0, np.nan, 3), ValueError, "Give finite ends"),
    ("too large", lambda: ep.Linspace(0, 1e60, 3), ValueError, "Give finite ends"),
    ("n 0", lambda: ep.Linspace(0, 1, 0), ValueError, "integer of at least 1"),
    ("n 2.0", lambda: ep.Linspace(0, 1, 2.0), TypeError, "integer of at least 1"),
    ("n 2**31", lambda: ep.Linspace(0, 1, 2**31), ValueError, "a coarse one and a fi"),
    ("text", lambda: ep.Linspace("a", 1, 2), TypeError, "another kind use `Values`"),
    ("complex", lambda: ep.Linspace(0, 1j, 2), TypeError, "Give a real number"),
    ("shapes", lambda: ep.Linspace(np.ones(2), 1, 2), ValueError, "of the same shape"),
    ("dim ''", lambda: ep.Linspace(0, 1, 2, dim=""), ValueError, "non-empty name"),
    ("dim 3", lambda: ep.Linspace(0, 1, 2, dim=3), TypeError, "or leave it out"),
    ("zero", lambda: ep.Geomspace(0, 1, 3), ValueError, "use `Linspace`, or `Values`"),
    ("signs", lambda: ep.Geomspace(-1, 1, 3), ValueError, "two ends of the same sign"),
    ("no values", lambda: ep.Values([]), ValueError, "Give a sequence .*at least one"),
    ("no rows", lambda: ep.Values(np.zeros((0, 3))), ValueError, "at least one"),
    ("one value", lambda: ep.Values(3.0), TypeError, "Give a sequence of numbers"),
    ("a scalar", lambda: ep.Values(ones()), TypeError, "Give a sequence of numbers"),
    ("a text", lambda: ep.Values("abc"), TypeError, "Give a sequence of numbers"),
    ("texts", lambda: ep.Values(["a", "b"]), TypeError, "of numbers, of PRNG keys"),
    ("None in it", lambda: ep.Values([None]), TypeError, "of numbers, of PRNG keys"),
    ("ragged", lambda: ep.Values([[1], [1, 2]]), ValueError, "arrays of one shape"),
    ("2**40", lambda: ep.Values([2**40]), ValueError, "64 bits need `jax_enable_x64`"),
    ("Static of none", lambda: ep.Static([]), ValueError, "Give at least one value"),
    ("Static of text", lambda: ep.Static("relu"), TypeError, "also if there is only"),
    ("Static of 3", lambda: ep.Static(3), TypeError, "Give a list of the values"),
    ("Static dim", lambda: ep.Static([1], dim=""), ValueError, "non-empty name"),
    ("Random of 3", lambda: ep.Random(3, 2), TypeError, "such as `jax.random.normal`"),
    ("Random of a class", lambda: ep.Random(Gamma, 2), TypeError, "or an object with"),
    ("Random 2.0", lambda: ep.Random(jr.normal, 2.0), TypeError, "Give an integer"),
    ("Mapped", lambda: ep.Mapped(ep.Values([1]), sin), TypeError, "function comes fi"),
    ("Mapped to 3", lambda: ep.Mapped(sin, 3), TypeError, "Give a `Linspace`"),
    (
        "an own axis that draws",
        lambda: ep.Space({"a": Noise()})[0],
        ep.MissingKeyError,
        "`a` draws its values.*Make the space with one",
    ),
    (
        "an own axis that draws, in a sweep",
        lambda: ep.sweep(sin, Noise()),
        ep.MissingKeyError,
        "Make the space with one",
    ),
    (
        "Mapped to a function",
        lambda: ep.Space({"a": ep.Mapped(lambda x: {"f": sin}, ep.Values([1]))})[0],
        TypeError,
        "`a` gives .* at `.f`.*use `Static`",
    ),
    (
        "Mapped to text, in a sweep",
        lambda: ep.sweep(lambda p: 1, ep.Mapped(lambda x: "relu", ep.Values([1]))),
        TypeError,
        "use `Static`, or map one",
    ),
    ("sobol of 3", lambda: ep.sobol({"a": 3}, 4), TypeError, "leaves are pairs"),
    ("sobol of nothing", lambda: ep.sobol({}, 4), ValueError, "'rate': \\(0.0, 1.0\\)"),
    ("sobol of inf", lambda: ep.sobol((0, np.inf), 4), ValueError, "Give finite ends"),
    ("sobol 0", lambda: ep.sobol((0, 1), 0), ValueError, "integer of at least 1"),
    (
        "sobol 2**30 + 1",
        lambda: ep.sobol((0, 1), 2**30 + 1),
        ValueError,
        "Give at most",
    ),
    (
        "a key as seed",
        lambda: ep.latin_hypercube((0, 1), 2, seed=key()),
        TypeError,
        "integer of at least 0",
    ),
    (
        "seed -1",
        lambda: ep.latin_hypercube((0, 1), 2, seed=-1),
        ValueError,
        "integer of at least 0",
    ),
    (
        "bounds of two shapes",
        lambda: ep.latin_hypercube({"a": (np.zeros(2), 1)}, 2),
        ValueError,
        "two arrays of the same shape",
    ),
]

SWEEP = [
    ("fn 3", lambda: sweep(3), TypeError, "first argument is the function"),
    ("no axis", lambda: sweep(space={"a": 1}), ValueError, "Put a `Linspace`"),
    ("key 3", lambda: sweep(key=3), TypeError, "jax.random.key"),
    ("rbg", lambda: sweep(key=jr.key(0, impl="rbg")), ValueError, "threefry2x32"),
    ("batch 0", lambda: sweep(batch_size=0), ValueError, "at least 1"),
    ("batch atuo", lambda: sweep(batch_size="atuo"), ValueError, "`auto`"),
    ("batch None", lambda: sweep(batch_size=None), TypeError, "integer of at least 1"),
    ("mesh 4", lambda: sweep(mesh=4), TypeError, "jax.make_mesh"),
    ("progress", lambda: sweep(progress="yes"), TypeError, "True, False, or None"),
    ("on_error", lambda: sweep(on_error="rais"), ValueError, "Did you mean `raise`"),
    ("no key", lambda: sweep(lambda x, key: x), ep.MissingKeyError, "random.key"),
    (
        "a hidden need of a key",
        lambda: sweep(lambda x, key=None: jr.normal(key)),
        ep.MissingKeyError,
        "random.key",
    ),
    ("text", lambda: sweep(lambda x: {"a": "no"}), TypeError, "`.a`. .*leave other"),
    ("functions", lambda: sweep(lambda x: [sin]), TypeError, "return a number that"),
    (
        "inside jit",
        lambda: jax.eval_shape(lambda w: sweep(lambda x: w * x).values, ones()),
        TypeError,
        "Use `eqx_pipe.vmap_space`",
    ),
    ("part alone", lambda: sweep(part=(0, 2)), ValueError, "store='runs.zarr'"),
    ("part of 3", lambda: sweep(part=3), TypeError, "with 0 <= rank < size"),
    ("resume alone", lambda: sweep(resume="force"), ValueError, "path of the store"),
    ("resume", lambda: sweep(resume="forc"), ValueError, "Did you mean `force`"),
    ("order_by", lambda: sweep(order_by=[1.0]), ValueError, "one number for each po"),
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

REDUCE = [
    ("a function", lambda: reduced(jnp.mean), TypeError, "or a pytree of reducers"),
    (
        "a class",
        lambda: reduced(ep.Mean),
        TypeError,
        r"instance of it: `Mean\(\.\.\.\)",
    ),
    ("nothing", lambda: reduced({}), TypeError, "or None to keep all values"),
    ("no output", lambda: reduced(ep.Mean("los"), record), ValueError, "mean `loss`"),
    ("by 3", lambda: reduced(ep.Mean(3), record), TypeError, "function of the output"),
    ("an array", lambda: reduced(ep.ArgMax("at"), record), ValueError, "Give `by=`"),
    ("a record", lambda: reduced(ep.TopK(1), record), ValueError, "Known names: `at`"),
    (
        "no order",
        lambda: reduced(ep.Max(), lambda x: jax.lax.complex(x, x)),
        TypeError,
        r"`lambda out: abs\(out\)`",
    ),
    (
        "no arithmetic",
        lambda: reduced(ep.Mean(), lambda x: key()),
        TypeError,
        "Choose what to reduce by `by=`",
    ),
    ("k 0", lambda: ep.TopK(0), ValueError, "integer of at least 1"),
    ("mode", lambda: ep.TopK(1, mode="top"), ValueError, "Known names: `max`, `min`"),
    ("3 bins", lambda: ep.Histogram(3), ValueError, r"range=\(0, 1\)"),
    ("bins", lambda: ep.Histogram([0, 2, 1]), ValueError, "from the lowest to the hi"),
    ("0 bins", lambda: ep.Histogram(0, range=(0, 1)), ValueError, "at least 1"),
    ("a range of 3", lambda: ep.Histogram(3, range=3), TypeError, r"`range=\(0, 1\)`"),
    ("a text", lambda: ep.Histogram(3, range="ab"), TypeError, r"`range=\(0, 1\)`"),
    ("update 3", lambda: reducer(update=3), TypeError, "Give functions: `Reducer"),
    (
        "a state that grows",
        lambda: reduced(reducer(update=lambda s, x: jnp.zeros(2))),
        ep.StructureError,
        "cast in `update`",
    ),
]

RULES = [
    ("3", lambda: ep.AxisRules(3), TypeError, '"batch", "data"'),
    ("half a pair", lambda: ep.AxisRules([("a",)]), TypeError, "A pair is a logical n"),
    ("twice", lambda: ep.AxisRules({"a": ("x", "x")}), ValueError, "name it once"),
    ("bach", lambda: ep.AxisRules({"batch": "x"}).spec("bach"), ValueError, "`batch`"),
    (
        "taken",
        lambda: ep.AxisRules({"a": "x", "b": "x"}).spec("b", "a"),
        ValueError,
        r"Add the pair `\('b', None\)",
    ),
    (
        "an axis the mesh lacks",
        lambda: ep.AxisRules({"a": "x"}).sharding(mesh(), "a"),
        ValueError,
        "Change the rules, or make a mesh with this axis",
    ),
    (
        "no mesh",
        lambda: ep.AxisRules({"a": "x"}).sharding(3, "a"),
        TypeError,
        "jax.make_mesh",
    ),
    ("no rules", lambda: rules(None), TypeError, "Give `AxisRules`, or a mapping"),
    ("rules 3", lambda: rules(3), TypeError, "Give a mapping from logical names"),
    ("size 7", lambda: constrain(ones(7, 4), "a", "b"), ValueError, "eqx_pipe.pad_to"),
    ("too few", lambda: constrain(ones(8, 4), "a"), ValueError, "one name per axis"),
    ("no rule", lambda: constrain(ones(8, 4), "a", "d"), ValueError, "or add rules"),
    ("no axis", lambda: constrain(ones(8, 4), "c", None), ValueError, "name None, or"),
]

SHARDING = [
    ("mesh 3", lambda: ep.shard(ones(8), 3, None), TypeError, "jax.make_mesh"),
    (
        "text",
        lambda: ep.shard(ones(8), mesh(), "data"),
        TypeError,
        "or None for a copy",
    ),
    ("rules", lambda: ep.shard(ones(8), mesh(), None, 3), TypeError, "Give a mapping"),
    ("7", lambda: ep.shard(ones(7), mesh(), P("data")), ValueError, "4 or 8.*pads arr"),
    ("modl", lambda: ep.shard(ones(8), mesh(), P("modl")), ValueError, "mean `model`"),
    (
        "2 entries",
        lambda: ep.shard(ones(8), mesh(), P(None, "data")),
        ValueError,
        "Change the specs",
    ),
    (
        "other containers",
        lambda: ep.shard({"a": ones(8)}, mesh(), {"b": P("data")}),
        ep.StructureError,
        "Give a spec for every part of the tree",
    ),
    (
        "structs",
        lambda: ep.shard(Struct((8,), jnp.float32), mesh(), None),
        TypeError,
        "Give arrays; `eqx_pipe.init_sharded`",
    ),
    (
        "pad to nope",
        lambda: ep.pad_to(ones(8), mesh(), P("nope")),
        ValueError,
        "Known names: `data`, `model`",
    ),
    (
        "init 3",
        lambda: ep.init_sharded(3, key(), mesh(), None),
        TypeError,
        "lambda key",
    ),
    (
        "None",
        lambda: ep.init_sharded(linear, None, mesh(), None),
        TypeError,
        r"jax.random.key\(seed",
    ),
    (
        "an rbg key",
        lambda: ep.init_sharded(linear, jr.key(0, impl="rbg"), mesh(), None),
        ValueError,
        "threefry2x32",
    ),
    (
        "a size that does not fit",
        lambda: ep.init_sharded(linear, key(), mesh(), P("model")),
        ValueError,
        "Change the specs or the sizes",
    ),
    ("sharded 3", lambda: ep.sharded(3, mesh(), None, None), TypeError, "A stage is a"),
    ("no mesh", lambda: ep.sharded(sin, 3, None, None), TypeError, "jax.make_mesh"),
    ("out", lambda: ep.sharded(sin, mesh(), None, "data"), TypeError, "PartitionSpec"),
    ("dtaa", lambda: ep.sharded(sin, mesh(), None, P("dtaa")), ValueError, "`data`"),
    (
        "an input of 7",
        lambda: ep.sharded(sin, mesh(), P("data"), P("data"))(ones(7)),
        ValueError,
        "4 or 8.*Change the specs or the sizes",
    ),
    ("on 3", lambda: ep.on(3, sin), TypeError, "jax.make_mesh"),
    ("on stage 3", lambda: ep.on(mesh(), 3), TypeError, "A stage is a callable"),
    (
        "on inside jit",
        lambda: jax.jit(lambda x: ep.on(mesh(), sin)(x))(ones(3)),
        ValueError,
        "Call it outside; .*use `eqx_pipe.pipelined`",
    ),
    ("no batch", lambda: parallelize(initial_batch=None), ValueError, "exactly one"),
    (
        "two batches",
        lambda: parallelize(get_input_batch=lambda: ones(8, 3)),
        ValueError,
        "Give exactly one",
    ),
    (
        "a mesh and devices",
        lambda: parallelize(mesh=mesh(), devices=jax.devices()),
        ValueError,
        "Give the mesh alone",
    ),
    ("devices 4", lambda: parallelize(devices=4), TypeError, r"jax.devices\(\)\[:4\]"),
    ("fun 3", lambda: parallelize(fun=3), TypeError, "A stage is a callable"),
    (
        "init before a batch",
        lambda: parallelize(
            fun=lambda m, x: jnp.sum(ep.constrain(x, "batch", None)),
            initial_batch=None,
            get_input_batch=lambda a, b: ones(8, 3),
            mesh=mesh(),
            rules={"batch": "data"},
        )[1](key()),
        ValueError,
        "Call `get_input_batch` once before `init_params`",
    ),
]

MICROBATCH = [
    ("3", lambda: ep.microbatch(3, size=2), TypeError, "A stage is a callable"),
    ("size 0", lambda: ep.microbatch(sin, size=0), ValueError, "integer of at least 1"),
    ("max", lambda: ep.microbatch(sin, size=2, reduce="max"), ValueError, "`sum`, `me"),
    (
        "argnum",
        lambda: ep.microbatch(jnp.sum, size=2, argnum=1)(ones(4)),
        TypeError,
        "Give the batch by position, or another `argnum`",
    ),
    (
        "two sizes",
        lambda: ep.microbatch(lambda t: 0.0, size=2)({"a": ones(3), "b": ones(4)}),
        ValueError,
        "bind what is no batch with a lambda",
    ),
    (
        "no array",
        lambda: ep.microbatch(lambda t: 0.0, size=2)({"s": 3}),
        ValueError,
        "Give arrays of one batch size",
    ),
    (
        "a bool",
        lambda: ep.microbatch(lambda x: x.all(), size=2)(ones(4) > 0),
        ValueError,
        r"Return numbers; count with `\.astype\(int\)`",
    ),
    (
        "one value for each",
        lambda: ep.microbatch(sin, size=2)(ones(5)),
        ep.StructureError,
        "Return a sum or mean over the batch",
    ),
    ("no stack", lambda: ep.pipelined(ep.chain(), row(2), 2), TypeError, "pipe.repeat"),
    ("no mesh", lambda: ep.pipelined(stack(2), 3, 2), TypeError, "jax.make_mesh"),
    ("0", lambda: ep.pipelined(stack(2), row(2), 0), ValueError, "at least 1"),
    (
        "6 on 4",
        lambda: ep.pipelined(stack(6), row(4), 2),
        ValueError,
        "4 or 8;.*3 or 6",
    ),
    (
        "two axes",
        lambda: ep.pipelined(stack(2), mesh(), 2),
        ValueError,
        "axis_name='data'",
    ),
    (
        "no such axis",
        lambda: ep.pipelined(stack(2), mesh(), 2, axis_name="c"),
        ValueError,
        "Known names: `data`, `model`",
    ),
    (
        "a batch of 6",
        lambda: ep.pipelined(stack(2), row(2), 4)(ones(6, 4)),
        ValueError,
        "nearest batch sizes that do: 4 or 8",
    ),
    (
        "no batch",
        lambda: ep.pipelined(stack(2), row(2), 4)(ones()),
        ValueError,
        "the same for all belongs into the stages",
    ),
    (
        "another shape",
        lambda: ep.pipelined(stack(2, lambda k: nn.Lambda(lambda x: x[:1])), row(2), 2)(
            ones(4, 4)
        ),
        ep.StructureError,
        "return the structure, shapes and dtypes",
    ),
    (
        "batch norm",
        lambda: ep.pipelined(
            stack(2, lambda k: nn.BatchNorm(4, "b", mode="batch")), row(2), 2
        ),
        ValueError,
        "`equinox.nn.GroupNorm`",
    ),
]

LOADER = [
    ("batch 0", lambda: load(batch_size=0), ValueError, "integer of at least 1"),
    ("batch 2.5", lambda: load(batch_size=2.5), TypeError, "integer of at least 1"),
    ("batch 6", lambda: load(batch_size=6, drop_remainder=True), ValueError, "most 5"),
    ("shuffle", lambda: load(shuffle="yes"), TypeError, "Give True or False"),
    ("drop", lambda: load(drop_remainder=1), TypeError, "Give True or False"),
    ("empty", lambda: load(np.zeros((0, 3))), ValueError, "Give one with records"),
    ("for batch in loader", lambda: list(load()), TypeError, r"in loader\.epoch\("),
    ("no length", lambda: load(Endless()), TypeError, "anything with `__len__`"),
    ("a stream", lambda: load(iter([1])), TypeError, "read them by number"),
    ("a dict", lambda: load({"a": ones(3)}), TypeError, r"`ArraySource\(tree\)`"),
    ("a tuple", lambda: load((ones(3), ones(3))), TypeError, r"`ArraySource\(tree\)`"),
    ("pipe 3", lambda: load(pipe=3), TypeError, "A stage is a callable"),
    ("stateful", lambda: load(pipe=stateful()[0]), ValueError, "in the training step"),
    ("sharding", lambda: load(sharding="x"), TypeError, "jax.sharding.NamedSharding"),
    (
        "2 by 4",
        lambda: load(batch_size=6, sharding=NamedSharding(mesh(), P("data"))),
        ValueError,
        "divides by 4, such as 4 or 8",
    ),
    (
        "another dtype",
        lambda: first_batch([1, 2.5]),
        ep.StructureError,
        "agree in structure, shapes and dtypes",
    ),
    ("texts", lambda: load(["a", "b"]), TypeError, "encode them as integers"),
    ("a text in it", lambda: load([{"name": "a"}]), TypeError, "`.name`.*Leave text"),
    ("empty records", lambda: load([{}]), TypeError, "pytree of numbers and arrays"),
    (
        "records that differ",
        lambda: first_batch([np.zeros(3), np.zeros(4)]),
        ep.StructureError,
        "Pad or cut them in the source",
    ),
    (
        "another structure",
        lambda: first_batch([{"x": 1}, {"y": 1}]),
        ep.StructureError,
        "agree in structure, shapes and dtypes",
    ),
    (
        "wide integers",
        lambda: first_batch(np.asarray([1, 2**40])),
        ValueError,
        "Switch `jax_enable_x64` on",
    ),
    (
        "a text made",
        lambda: first_batch(pipe=lambda r: {"r": r, "name": "a"}),
        ep.StructureError,
        "`.name`.*Leave the rest out",
    ),
    ("hash", lambda: hash(load()), TypeError, r"equinox.filter_jit\(loader.next\)"),
    ("no key", lambda: load().init(None), TypeError, r"jax.random.key\(0\)"),
    ("key 3", lambda: load().init(3), TypeError, "Give one made by `jax.random.key"),
    ("rbg", lambda: load().init(jr.key(0, impl="rbg")), ValueError, "threefry2x32"),
    ("no cursor", lambda: load().next(3), TypeError, r"`loader.init\(jax.random.key"),
    (
        "another cursor",
        lambda: load(source(6)).next(load().init(key())),
        ValueError,
        r"or begin anew with `loader.init\(key\)`",
    ),
    (
        "position",
        lambda: ask_traced(lambda c: c.position),
        TypeError,
        "outside of `jit`",
    ),
    ("no text", lambda: ep.Cursor.from_json("no"), ValueError, "`to_json` returned"),
    (
        "another key",
        lambda: ep.Cursor.from_json(
            load().init(key()).to_json(), like=load().init(key(1))
        ),
        ValueError,
        "or leave `like` out",
    ),
    (
        "a carry",
        lambda: scan(lambda c, b: (ones(2), None)),
        ep.StructureError,
        "keeps ",
    ),
    ("no pair", lambda: scan(lambda c, b: c), TypeError, r"-> \(carry, output\)"),
    ("length -1", lambda: scan(max, length=-1), ValueError, "integer of at least 0"),
    ("host", lambda: scan(max, loader=load([1, 2])), TypeError, "Iterate over `epoch`"),
]

SOURCES = [
    ("nothing", lambda: ep.ArraySource({}), ep.StructureError, "leading axis counts"),
    ("text", lambda: ep.ArraySource({"a": "b"}), TypeError, "Give arrays only"),
    (
        "a number",
        lambda: ep.ArraySource([2.0]),
        ep.StructureError,
        "Repeat it for each",
    ),
    (
        "a scalar",
        lambda: ep.ArraySource([ones()]),
        ep.StructureError,
        "add it to records",
    ),
    (
        "two sizes",
        lambda: ep.ArraySource({"a": ones(3), "b": ones(4)}),
        ep.StructureError,
        "Cut or transpose those that do not fit",
    ),
    ("record 5", lambda: source()[5], IndexError, "an integer from -5 to 4"),
    ("mixture of 3", lambda: ep.mixture(3), TypeError, "Give a list of sources"),
    ("mixture of none", lambda: ep.mixture([]), TypeError, "Give a list of sources"),
    ("weight 0", lambda: ep.mixture([source()], [0]), ValueError, "leave out a source"),
    ("weights", lambda: ep.mixture([source()], [1, 2]), ValueError, "number for each"),
    ("until", lambda: ep.mixture([source()], until="x"), ValueError, "`first`, `last`"),
    (
        "one empty",
        lambda: ep.mixture([source(), source(0)]),
        ValueError,
        "Leave it out",
    ),
    (
        "two forms",
        lambda: ep.mixture([source(), ep.ArraySource(ones(3))]),
        ep.StructureError,
        "Bring them into one form first",
    ),
    ("window 6", lambda: ep.windows(source(), 6), ValueError, "Give a smaller size"),
    ("window 0", lambda: ep.windows(source(), 0), ValueError, "integer of at least 1"),
    (
        "stride",
        lambda: ep.windows(source(), 2, 0.5),
        TypeError,
        "integer of at least 1",
    ),
    (
        "no loader",
        lambda: ep.reduce_loader(source(), load().init(key()), ep.Mean()),
        TypeError,
        "Give a `Loader",
    ),
    (
        "no reducer",
        lambda: ep.reduce_loader(load(), load().init(key()), jnp.mean),
        TypeError,
        "or a pytree of reducers",
    ),
    (
        "a spent cursor",
        lambda: ep.reduce_loader(load(), spent(), ep.Mean()),
        ValueError,
        r"`cursor.next_epoch\(\)`",
    ),
    (
        "one for all",
        lambda: (lambda x: ep.reduce_loader(x, x.init(key()), ep.Mean()))(
            load(batch_pipe=jnp.sum)
        ),
        ep.StructureError,
        "let it return one entry for each record",
    ),
]

LAWS = [
    ("axis 3", lambda: ept.check_axis(3), TypeError, "Give an `Axis`"),
    (
        "a random axis",
        lambda: ept.check_axis(ep.Random(jr.normal, 2)),
        ValueError,
        "key=jax.random.key",
    ),
    ("space 3", lambda: ept.check_space(3), ValueError, "Put a `Linspace`"),
    ("loader 3", lambda: ept.check_loader(3, key=key()), TypeError, "Give a `Loader"),
    ("one value", lambda: ept.check_reducer(ep.Mean(), ones()), ValueError, "three po"),
    ("reducer 3", lambda: ept.check_reducer(3, ones(5)), TypeError, "or a pytree of"),
    (
        "stage 3",
        lambda: ept.check_stage(3, ones(2)),
        TypeError,
        "A stage is a callable",
    ),
    (
        "skip",
        lambda: ept.check_stage(sin, ones(2), skip="grad"),
        TypeError,
        "a tuple of",
    ),
    (
        "no law",
        lambda: ept.check_stage(sin, ones(2), skip=("gard",)),
        ValueError,
        "grad",
    ),
    ("rtol -1", lambda: ept.check_jit(sin, ones(2), rtol=-1), ValueError, "at least 0"),
    ("rtol", lambda: ept.check_jit(sin, ones(2), rtol="a"), TypeError, "None for what"),
    ("no key", lambda: ept.check_key(sin, ones(2), key=None), ValueError, "random.key"),
    (
        "yes",
        lambda: ept.check_grad(sin, ones(2), numerical=1),
        TypeError,
        "True or Fal",
    ),
    ("mesh", lambda: ept.check_sharding(sin, ones(8), mesh=3), TypeError, "jax.make_m"),
    (
        "fn 3",
        lambda: ept.check_sweep(3, ep.Values([1])),
        TypeError,
        "first argument is",
    ),
]

STRATEGIES = [
    ("arrays", lambda: ept.arrays(3), "a pytree of `jax.ShapeDtypeStruct"),
    ("no array", lambda: ept.arrays({}), "a pytree of `jax.ShapeDtypeStruct"),
    ("elements", lambda: ept.arrays(Struct((), "f4"), elements=1), "strategies.just"),
    (
        "elements that do not fit",
        lambda: ept.arrays(Struct((1,), "int32"), elements=st.just(0.5)),
        "lie in the range of the dtype",
    ),
    ("batches", lambda: ept.batches(Struct((), "f4"), max_size=0), "at least 1"),
    ("stages", lambda: ept.stages(Struct((), "f4"), random=1), "True or False"),
    ("depth", lambda: ept.pipelines(Struct((), "f4"), max_depth=-1), "at least 0"),
    ("leaves", lambda: ept.pipelines(Struct((), "f4"), leaves=sin), "strategies.just"),
    ("graphs", lambda: ept.graphs(Struct((), "f4"), max_nodes=0), "at least 1"),
    ("axes", lambda: ept.axes(max_size=0), "at least 1"),
    ("spaces", lambda: ept.spaces(max_axes="2"), "integer of at least 1"),
    ("meshes", lambda: ept.meshes(max_devices=0), "at least 1"),
    ("fn 3", lambda: ept.arguments(3), "Give a function with annotations"),
    ("bare", lambda: ept.arguments(unannotated), "Annotate it, or give it by a strat"),
    ("z", lambda: ept.arguments(annotated, z=st.none()), "Known names: `x`"),
    ("x 3", lambda: ept.arguments(annotated, x=3), "strategies.just"),
    ("x None", lambda: ept.arguments(annotated, x=None), r"strategies.none\(\)"),
    ("only by position", lambda: ept.arguments(positional), "takes it by name"),
    ("no sizes", lambda: ept.arguments(unsatisfiable), "Change the annotation, or"),
    (
        "a wrong rank",
        lambda: ept.arguments(annotated, x=st.just(np.ones((2, 2), np.float32))),
        "whose values satisfy the annotation",
    ),
    ("n/0", lambda: ept.from_jaxtyping(Float[Array, " n/0"]), "Its names are axes"),
    (
        "halves",
        lambda: ept.from_jaxtyping(Int[Array, " n"], elements=st.just(0.5)),
        "lie in the range of the dtype",
    ),
    ("register 3", lambda: ept.register_stage(3), "Give a function from a struct"),
    ("unregister", lambda: ept.unregister_stage(sin), "was given to `register_stage`"),
]

VIEWS = [
    ("describe 3", lambda: ep.describe(3), TypeError, "A stage is a callable"),
    ("describe a class", lambda: ep.describe(nn.MLP), TypeError, "Make an instance"),
    ("draw 3", lambda: ep.draw(3), TypeError, "A stage is a callable"),
    (
        "draw without state",
        lambda: ep.draw(nn.make_with_state(lambda: ep.chain(Counter()))()[0], ones(2)),
        ValueError,
        r"Call `draw\(pipe, x, state=state\)`",
    ),
    ("point 9", lambda: swept()[9], IndexError, "3 points, 0 to 2"),
    ("point 'a'", lambda: swept()["a"], TypeError, "Give an integer or a slice"),
    ("best of two", lambda: swept().best(), ValueError, "Known names: `at`, `loss`"),
    ("best by los", lambda: swept().best("los"), ValueError, "Did you mean `loss`"),
    ("best array", lambda: swept().best("at"), ValueError, "Compare by a real scalar"),
    (
        "best of nan",
        lambda: swept(lambda x: x * np.float32("nan")).best(),
        ValueError,
        "Look at `result.values` and `result.ok`",
    ),
    ("plot of two", lambda: swept().plot(), ValueError, "Known names: `at`, `loss`"),
    (
        "sel",
        lambda: swept().plot("loss", sel=["x"]),
        TypeError,
        "Give a dict from names",
    ),
    ("sel z", lambda: swept().plot("loss", sel={"z": 1}), ValueError, "names: `x`"),
    (
        "dims",
        lambda: swept().plot("loss", dims=("x", "x")),
        ValueError,
        "different dims",
    ),
    ("ax", lambda: swept().plot("loss", ax=3), TypeError, "plt.subplots"),
    (
        "pkl",
        lambda: swept().save("r.pkl"),
        ValueError,
        r"ends in `\.zarr` or in `\.nc`",
    ),
    ("a path", lambda: swept().save(3), TypeError, "as a text or a `pathlib.Path`"),
]


@dataclasses.dataclass(frozen=True)
class Mistake:
    name: str
    make: object
    error: type[Exception]
    cure: str


ROOMS = {
    "chain": CHAIN,
    "parallel": PARALLEL,
    "weighted": WEIGHTED,
    "branch": BRANCH,
    "graph": GRAPH,
    "at": FOCUS,
    "batched": BATCHED,
    "repeat": REPEAT,
    "compiled": COMPILED,
    "space": SPACE,
    "axes": AXES,
    "sweep": SWEEP,
    "reduce": REDUCE,
    "rules": RULES,
    "sharding": SHARDING,
    "microbatch": MICROBATCH,
    "loader": LOADER,
    "sources": SOURCES,
    "laws": LAWS,
    "strategies": [
        (name, lambda make=make: example(make()), InvalidArgument, cure)
        for name, make, cure in STRATEGIES
    ],
    "views": VIEWS,
}
MISTAKES = [
    Mistake(f"{r}: {n}", *rest) for r, rows in ROOMS.items() for n, *rest in rows
]

# These errors name a stage or a type, not a function of ours.
UNNAMED = {
    "chain: no key",
    "chain: a state lost",
    "chain: no stateful layer",
    "chain: hash",
    "sweep: no key",
    "sweep: a hidden need of a key",
    "sweep: vmap key",
    "loader: hash",
    "sources: record 5",
}


@ft.cache
def answer(mistake):
    """The error that a mistake raises, made once for both tests."""
    try:
        mistake.make()
    except Exception as error:
        return error
    return None


def message_of(error):
    return str(error.args[0]) if isinstance(error, KeyError) else str(error)


def text_of(error):
    """What a user sees: the message, and the notes below it."""
    return "\n".join([message_of(error), *getattr(error, "__notes__", [])])


every_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)


@every_mistake
def test_the_message_says_what_to_do(mistake):
    error = answer(mistake)
    assert isinstance(error, mistake.error), repr(error)
    assert re.search(f"(?s){mistake.cure}", text_of(error)), text_of(error)


@every_mistake
def test_the_message_names_the_function_and_ends_with_a_cure(mistake):
    if mistake.name in UNNAMED:
        return
    text = message_of(answer(mistake))
    found = re.match(r"`eqx_pipe\.([\w.]+)`: ", text)
    assert found, text
    ft.reduce(getattr, found[1].split("."), ep)  # it exists
    _, *cure = re.split(r"[.?]\s|\n (?=[A-Z])", text[found.end() :], maxsplit=1)
    assert cure and re.search(r"[.)]$", cure[0]), text


def test_no_two_rows_have_one_name():
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 150
