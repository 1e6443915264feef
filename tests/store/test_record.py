"""A store says what it is; what is not so is found before anything is made of it."""

import copy
import json
import random
import warnings

import jax.numpy as jnp
import jax.tree_util as jtu
import pytest
from support.helpers import THOROUGH
from support.stores import close, one_device, same

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

SPACE = ep.Space({"a": ep.Linspace(0, 1, 4), "b": ep.Values([1.0, 2.0, 3.0]), "c": 7})
MEAN = {"reduce": {"mean": ep.reduce.Mean(by="x"), "max": ep.reduce.Max(by="y")}}
ASKED = {"batch_size": 2, "mesh": one_device()}


def fn(p):
    """Outputs of which two could be taken for each other."""
    x = p["a"] * p["b"]
    return {"x": x, "y": -x, "v": x * jnp.arange(3.0), "up": x > 1, "n": jnp.int8(1)}


@pytest.fixture(scope="module", params=["values", "states"])
def store(request, tmp_path_factory):
    """A full store, its `zarr.json`, how to ask for it, and what it holds."""
    path = tmp_path_factory.mktemp(request.param) / "runs.zarr"
    asked = MEAN if request.param == "states" else {}
    result = ep.sweep(fn, SPACE, store=path, **asked, **ASKED)
    values = jtu.tree_map(lambda x: x[...], result.values)
    close(values, ep.sweep(fn, SPACE, **asked, **ASKED).values)
    return path, json.loads((path / "zarr.json").read_text()), asked, values


def write(store, attribute, text):
    path, meta, *_ = store
    meta = meta | {"attributes": meta["attributes"] | {attribute: text}}
    (path / "zarr.json").write_text(json.dumps(meta))


def read(store, load):
    """The values of a store; a `ValueError` names it."""
    path, _, asked, _ = store
    try:
        with warnings.catch_warnings():
            # Another version of JAX may have begun it.
            warnings.simplefilter("ignore")
            if load:
                return ep.SweepResult.load(path).values
            return ep.sweep(fn, SPACE, store=path, **asked, mesh=one_device()).values
    except ValueError as error:
        assert str(path) in str(error), error
        return error


ODD = [None, True, -1, 0, 1, 2, 3, 2**31, 10**9, 2**70, 1.5, "", "x", "../x", "\0"]
ODD += [[], {}, [10**9] * 2, [3, 4], ["y"], {"x": 1}, float("nan"), "[" * 99, [[0]]]


def places(node, path=()):
    """The paths of all nodes of a JSON value."""
    yield path
    pairs = node.items() if isinstance(node, dict) else []
    pairs = enumerate(node) if isinstance(node, list) else pairs
    for key, child in list(pairs):
        yield from places(child, (*path, key))


def mutated(text, rng):
    """A record with something else in one place, as text."""
    how = rng.choice(["value", "value", "delete", "swap", "number", "cut", "letter"])
    if how == "cut":
        return text[: rng.randrange(len(text))]
    if how == "letter":
        i = rng.randrange(len(text))
        return text[:i] + rng.choice('"[]{},:0-9a\\') + text[i + rng.randrange(2) :]
    record = json.loads(text)
    *path, last = rng.choice([path for path in places(record) if path])
    parent = record
    for key in path:
        parent = parent[key]
    if how == "delete":
        del parent[last]
    elif how == "swap":
        other = rng.choice(list(places(parent))[1:])[:1][0]
        parent[last], parent[other] = parent[other], copy.deepcopy(parent[last])
    elif how == "number" and isinstance(parent[last], int):
        parent[last] += rng.choice([-1, 1, 7, 10**9])
    else:
        parent[last] = rng.choice(ODD)
    return json.dumps(record)


def test_a_mutated_record_is_an_error_or_gives_the_same_values(store):
    """Also where the mutation names another array of the same shape."""
    attributes, rng = store[1]["attributes"], random.Random(16)
    refused = 0
    # States are read by a whole sweep, which takes longer.
    for i in range(5_000 if THOROUGH else 10 if store[2] else 25):
        text = mutated(attributes["eqx_pipe_store"], rng)
        write(store, "eqx_pipe_store", text)
        load = i % 3 > 0 and not store[2]
        found = read(store, load)
        refused += isinstance(found, ValueError)
        if not isinstance(found, ValueError):
            same(found, store[3])
    assert refused > i / 3


def test_a_mutated_schema_is_an_error_or_a_result(store):
    """Its names of outputs and its numbers beside the axes are all that it is."""
    attributes, rng = store[1]["attributes"], random.Random(17)
    if store[2]:
        return
    for _ in range(1_000 if THOROUGH else 20):
        write(store, "eqx_pipe_schema", mutated(attributes["eqx_pipe_schema"], rng))
        read(store, load=True)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DEEP, "is no JSON"),
        ("{", r"is no JSON \(Expecting property name"),
        ("9" * 5000, "is no JSON"),
        ("[]", "it is a list"),
        ("null", r"it is None \(NoneType\)"),
        ("{}", "it has no `format`"),
        ({"lengths": [10**9, 10**9]}, r"`count` are|`lengths` is \[1000000000, 1000"),
        ({"lengths": [1e9, 1e9]}, r"`lengths\[0\]` is 1000000000.0 \(float\)"),
        ({"count": -1}, r"`count` is -1 \(int\)"),
        ({"split": 5}, "`split` and `count` are 5"),
        ({"batch_size": -1}, r"`batch_size` is -1 \(int\)"),
        ({"batch_size": 13}, r"`batch_size` is 13 \(int\)"),
        ({"batch_size": True}, r"`batch_size` is True \(bool\)"),
        ({"variables": ["../../runs.zarr/x"]}, "the names of its arrays are"),
        ({"status": "gone"}, "its array `gone` cannot be opened"),
        ({"space": []}, "`space` is a list"),
        ({"space": {"mode": None}}, r"`space.mode` is None \(NoneType\)"),
        ({"function": {}}, "`function` has no `text`"),
        ({"key": [[[]]]}, "`key` is a list"),
        ({"jax": 3}, r"`jax` is 3 \(int\)"),
    ],
)
def test_what_is_said_of_a_damaged_record(store, text, says):
    if isinstance(text, dict):
        record = json.loads(store[1]["attributes"]["eqx_pipe_store"])
        text = json.dumps(record | text)
    write(store, "eqx_pipe_store", text)
    with pytest.raises(ValueError, match=f"(?s){says}.*Put back its `zarr.json`"):
        raise read(store, load=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": [10**9, 10**9]}, "and the array `x` float32.*10+|conflicting sizes"),
        ({"shape": [10**10]}, "cannot be opened"),
        ({"data_type": "object"}, "cannot be opened"),
        ({"data_type": "r64"}, "cannot be opened"),
        (
            {
                "data_type": {
                    "name": "numpy.datetime64",
                    "configuration": {"unit": "s", "scale_factor": 1},
                },
                "fill_value": 0,
            },
            r"the array `x` datetime64\[s\]|cannot be opened",
        ),
        ({"data_type": "int32", "fill_value": 0}, "`x` keeps int32|`x` is int32"),
    ],
)
def test_arrays_that_are_not_as_the_record_says(store, change, says):
    path, meta, asked, _ = store
    if asked:
        return
    meta = copy.deepcopy(meta)
    meta["consolidated_metadata"]["metadata"]["x"].update(change)
    (path / "zarr.json").write_text(json.dumps(meta))
    for load in (False, True):
        with pytest.raises(ValueError, match=says):
            raise read(store, load)


@pytest.mark.parametrize("dtype", ["object", "V8", "datetime64[s]", "U3", "float64", 3])
def test_a_form_with_other_dtypes(store, dtype):
    if store[2]:
        return
    form = json.loads(store[1]["attributes"]["eqx_pipe_schema"])
    form["outputs"]["dict"][0][1]["dtype"] = dtype
    write(store, "eqx_pipe_schema", json.dumps(form))
    with pytest.raises(ValueError, match="is damaged.*`xarray.open_dataset` may still"):
        raise read(store, load=True)


@pytest.mark.parametrize("text", [DEEP, "{", "[]", '{"version": "1"}'])
def test_what_is_no_form(store, text):
    if store[2]:
        return
    write(store, "eqx_pipe_schema", text)
    with pytest.raises(ValueError, match="no schema|schema of version.*open_dataset"):
        raise read(store, load=True)
