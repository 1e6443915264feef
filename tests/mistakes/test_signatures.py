"""Every parameter of every public function is checked, and the error names it."""

import inspect
import re

import jax.random as jr
import pytest
from equinox import nn
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

import eqx_pipe as ep

from .calls import calls
from .messages import check_message, example, find_public

pytestmark = pytest.mark.usefixtures("unchecked")

# Each cure, and the parameters whose error has it: of all functions, or of one.
CURES = {
    "A stage is a callable": (
        "stage stages pipe pred then otherwise selector cell fun batch_pipe"
    ),
    "a function of the tuple of outputs": "parallel.merge gated.merge",
    r"Write `step\(carry, batch\)": "data.Loader.scan.step",
    "Give a function from a key": "sharding.init_sharded.init",
    "Give a function of two arguments": "sharding.parallelize.fun",
    "Give a function that returns parameters": "get_input_batch init_params",
    "Give the function of one lane": "vmap.fn",
    "The first argument is the function": "program.fn",
    "Give 'h100'": "topology.name",
    "Give a function, or a stage": "testing.check_function.fn",
    r"jax.random.key\(seed\)": "key",
    "Give an integer of at least [012]": (
        "n num batch_size rounds unroll size stride microbatches length k eta "
        "at_most max_axes max_depth max_size axis_size steps every log_every"
    ),
    "Known names: `": (
        "draws mode normalize on_error resume returns until "
        "ensemble.merge sharding.pipelined.axis_name "
        "expects vmap.reduce"
    ),
    "Give a positive number of seconds": "timeout",
    "Give True or False": (
        "is_log reverse shared shuffle drop_remainder count_steps progress compiled "
        "vmap.remat strict"
    ),
    r"jax.make_mesh\(": "mesh",
    "Put a `Linspace`": "space Space.tree",
    "first argument is the function of a point": "fn",
    "Give a reducer such as `Mean": "reduce reducers reducer",
    "Give a text": "label unit",
    "Give a non-empty name": "dim",
    "Give a path as a text": "store show.result show.after",
    "Give a real number": (
        "start Linspace.stop Geomspace.stop LogUniform.stop Uniform.stop"
    ),
    "Give a number of at least 0": "rtol atol",
    "Give the names of the entries": "broadcast",
    'over="seed"': "over",
    # Stages.
    "A name is a non-empty string": "feed.inputs",
    "Give a dict from name to its predecessors": "edges",
    "Give a dict from name to stage": "nodes",
    "Give a function of the pipeline": "tied.where get",
    "Give a function that makes one stage from a key": "make",
    "Give a key or an index": "at.where",
    "Give a pipeline of this library": "outputs.pipe",
    "Give a tuple of names": "graph.inputs",
    "Give an integer, `None`, or a pytree": "in_axes out_axes",
    "Give the function of a point": "kernel.fn",
    r"Give a function with a `while_loop`": "refill.fn",
    "Give one gate per stage": "gates",
    "Give one integer": "gated.axis parallel.axis",
    "Give one number per stage": "weights",
    "Give one, such as `.bfloat16": "compute output",
    "Give patterns of paths": "patterns",
    "Give the name of a node": "sink",
    r"True, False, or a function": "remat",
    # Axes, sweeps, reducers and searches.
    "For a grid give": "Uniform.num LogUniform.num",
    "Give a `Linspace`, `Values` or another axis": "Mapped.axis",
    "called with `population_size=`": "strategy",
    "called with `seed=`": "search.Optuna.sampler",
    "Give a dict from outputs": "output_coords",
    "Give a function from a point to one real number": "order_by",
    r"Give a function of `\(key, shape\)`": "Random.sampler",
    "Give a function of the `SearchResult`": "search.explore.callback",
    "Give a function, `": "scheduler train.callback",
    "Give a function: `": "Training.init Training.step evaluate",
    "Give a list of paths of axes": "vary",
    "Give a `TrainResult`, or a function": "begin",
    r'Give `{"momentum": \(low, high': "bounds",
    "Give a number above 0, at most 0.5": "fraction",
    "Give numbers to multiply by": "factors",
    "Give the path of a metric": "search.Halving.by search.PBT.by",
    "Give a list of the values": "Static.values",
    "Give a number from 0 to 1": "q",
    "Give a sequence of numbers": "Values.values",
    r"Give an object with a method `submit\(": "executor",
    "Give functions: `Reducer": "update finish reduce.Reducer.merge "
    "reduce.Reducer.init",
    "Give the edges, such as": "reduce.Histogram.edges",
    "Give two integers": "shard",
    "Give what `sweep` returns": "result",
    r"Give `eqx_pipe.Training\(": "training",
    "an object with `init`, `ask` and `tell`": "method",
    r"first: `Mapped\(jnp.exp": "Mapped.fn",
    # Data and devices.
    "Give `ArraySource": "source",
    r"Give a `Cursor`: `loader.init\(jax.random.key": "cursor",
    "Give a `jax.sharding.NamedSharding": "sharding",
    "Give a `jax.sharding.PartitionSpec": "specs",
    "Give a mapping from logical names to mesh axes": "rules pairs",
    "Give what `eqx_pipe.repeat": "stack",
    "The leading axis of every array": "data.ArraySource.tree",
    # Properties.
    "Give a `Loader": "loader",
    "Give a dict of arguments by name": "kwargs",
    "Give a function that makes the same numbers": "reference",
    "Give a function with annotations": "testing.arguments.fn",
    "Give a pytree of `jax.ShapeDtypeStruct": "struct",
    "Give a tuple of dtypes": "dtypes",
    "Give a tuple of names of laws": "only skip",
    "Give a tuple of names: `rows": "rows",
    "Give a tuple of sizes": "sizes",
    "Give an `Axis`": "axis",
    "Give an `equinox.nn.State`": "state",
    r"strategies.just\(": "elements",
}
CURE_OF = {name: cure for cure, names in CURES.items() for name in names.split()}

# Parameters that take any object: data, and what is read when it is used.
ANY = set(
    "args axis_name by carry check_vma in_specs initial_batch keep "
    "logical out_specs static tree u x draw.state summary.state "
    "reduce.Var.ddof scan.init sharding.on.specs "
    "testing.check_method.fn testing.check_method.key testing.check_reducer.values "
    "testing.given_typed.fn testing.from_jaxtyping.annotation trainable.pipe".split()
)

# Functions that draw under `vmap`, which not every kind of key survives.
DRAWING = ("Space data.Loader.init search.explore sweep vmap_space").split()

# Public classes that users do not make.
MADE = set(
    "Axis MissingKeyError ProgramPlan Stage StructureError SweepError SweepPlan "
    "SweepResult TrainResult data.Cursor search.Method search.Population "
    "search.SearchResult".split()
)
METHODS = ["data.Loader.init", "data.Loader.next", "data.Loader.scan"]


def public_functions():
    """Return the names of all functions and classes that users call."""
    for prefix in ("", "data.", "reduce.", "search.", "sharding.", "testing."):
        module = find_public(prefix[:-1]) if prefix else ep
        for name in dir(module):
            if not name.startswith("_") and callable(getattr(module, name)):
                yield prefix + name


FUNCTIONS = [name for name in public_functions() if name not in MADE] + METHODS


def call_with(name, parameter, value):
    """Call a public function with one argument replaced."""
    args, kwargs = calls()[name]
    function = find_public(name)
    given = inspect.signature(function).bind(*args, **kwargs)
    kind = inspect.signature(function).parameters[parameter].kind
    variadic = kind == inspect.Parameter.VAR_POSITIONAL
    given.arguments[parameter] = (value,) if variadic else value
    result = function(*given.args, **given.kwargs)
    if isinstance(result, SearchStrategy):
        example(result)
    elif name == "testing.assert_compiles":
        result.__enter__()


def parameters_of(name):
    """Return the names of the parameters that do not take any object."""
    parameters = inspect.signature(find_public(name)).parameters.values()
    names = [p.name for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD]
    own = {p: f"{name}.{p}" for p in names}
    return [p for p in names if own[p] in CURE_OF or not {p, own[p]} & ANY]


def cure_of(name, parameter):
    """Return the cure of one function, or of all; `None` for a new parameter."""
    return CURE_OF.get(f"{name}.{parameter}", CURE_OF.get(parameter))


def shown_as(name, parameter):
    """Return the function and the parameter that the error names."""
    if parameter == "rules":
        return "sharding.AxisRules", "pairs"
    if parameter == "over" and name.startswith("reduce."):
        return "sweep", "over"
    return name, parameter.replace("reducers", "reduce").replace("reducer", "reduce")


def refusal(name, parameter, value):
    """Return the message for a wrong argument, which names function and parameter."""
    with pytest.raises((TypeError, ValueError, InvalidArgument)) as caught:
        call_with(name, parameter, value)
    text = str(caught.value)
    check_message(text)
    function, shown = shown_as(name, parameter)
    assert re.match(rf"`eqx_pipe\.{function}`: .*`{shown}[`\[]", text), text
    return text


def nearly_right(name, parameter, text):
    """Yield wrong values of a kind that the parameter might take, and their cures.

    `text` is the message for an object of another kind.
    """
    cure = cure_of(name, parameter)
    if cure.startswith("A stage"):
        yield nn.Linear, r"Make an instance of it first: `Linear\(...\)`"
    elif cure.startswith("Give an integer of"):
        least = re.search(r"at least (\d)", text)
        yield int(least[1]) - 1, least[0]
        yield int(least[1]) + 0.5, least[0]
    elif cure.startswith("Known names"):
        known = re.search(r"Known names: `(\w+)`", text)
        yield known[1][:-1], f"Did you mean `{known[1]}`"
    elif parameter == "key":
        yield jr.split(jr.key(0)), cure
        if name in DRAWING:
            yield jr.key(0, impl="rbg"), "threefry2x32"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_refuses_wrong_values(name):
    for parameter in parameters_of(name):
        text = refusal(name, parameter, object())
        assert re.search(cure_of(name, parameter), text), text
        for value, cure in nearly_right(name, parameter, text):
            text = refusal(name, parameter, value)
            assert re.search(cure, text), text
