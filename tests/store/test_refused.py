"""Refusals: another sweep, a path of something else, wrong arguments."""

import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from support.stores import KEY, WEIGHT, close, edit, noise, plain, some_space

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return the path of a store that is filled."""
    path = tmp_path_factory.mktemp("store") / "runs.zarr"
    ep.sweep(plain, some_space(0), key=KEY, store=path, batch_size=4)
    return path


def contents(path):
    return {p: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def other(**changes):
    tree = {"b": ep.Linspace(0, 1, 5), "a": ep.Values([1.0, 2.0, 3.0])}
    return ep.Space({**tree, **changes})


def shifted(p):
    return jtu.tree_map(lambda x: x + 1 if x.dtype == jnp.float32 else x, plain(p))


DOUBLE = 2 * WEIGHT


def reweighted(p):
    total = sum(jnp.sum(jnp.sin(x)) for x in jtu.tree_leaves(p) if hasattr(x, "dtype"))
    return {"y": jnp.stack([total, total / 3]) @ DOUBLE, "n": {"k": total > 0}}


@pytest.mark.parametrize(
    ("fn", "space", "key", "says"),
    [
        (plain, other(b=ep.Linspace(0, 2, 5)), KEY, r"axis b: .*0, 1, 5.* now .*0, 2"),
        (plain, other(c=1.5), KEY, r"leaf c: None in the store, now 1.5"),
        (plain, other()[2:], KEY, r"slice: None in the store, now \(2, 13\)"),
        (shifted, some_space(0), KEY, "another program"),
        (reweighted, some_space(0), KEY, r"other values \(float32\[2,3\]\)"),
        (lambda p: plain(p)["y"], some_space(0), KEY, r"it returns .*now float32\[3\]"),
    ],
)
def test_a_store_of_another_sweep_is_refused(begun, fn, space, key, says):
    was = contents(begun)
    with pytest.raises(ep.StructureError, match=says) as caught:
        ep.sweep(fn, space, key=key, store=begun)
    assert "another path" in str(caught.value)
    assert ("`fn`" in str(caught.value)) == (fn is not plain)  # only what differs
    assert contents(begun) == was


def test_another_key_is_refused_only_where_it_is_used(tmp_path):
    space, path = some_space(0), tmp_path / "noise"
    ep.sweep(noise, space, key=KEY, store=path)
    for key, resume in ((jr.key(4), None), (jr.key(4), "force")):
        with pytest.raises(ep.StructureError, match="`key`: .*3.* now .*4"):
            ep.sweep(noise, space, key=key, store=path, resume=resume)
    for key in (KEY, jr.key(4), None):
        values = ep.sweep(plain, space, key=key, store=tmp_path / "plain").values
    close(values, ep.sweep(plain, space).values)


def test_a_larger_space_and_another_function_are_both_named(begun):
    larger = other(b=ep.Linspace(0, 1, 6))
    with pytest.raises(ValueError, match=r"dims: b: 5(.|\n)*another program"):
        ep.sweep(shifted, larger, key=KEY, store=begun)
    with pytest.raises(ValueError, match="int32 #.*float32 #") as caught:
        whole = ep.Values(jnp.array([1, 2, 3]))
        path = begun.parent / "whole.zarr"
        ep.sweep(lambda p: p["a"], {"a": whole}, store=path)
        ep.sweep(lambda p: p["a"], {"a": ep.Values([1.0, 2.0, 3.0])}, store=path)
    assert "another program" not in str(caught.value)


def test_force_skips_the_check_of_the_function_alone(begun, tmp_path):
    result = ep.sweep(shifted, some_space(0), key=KEY, store=begun, resume="force")
    close(result.values, ep.sweep(plain, some_space(0), key=KEY, batch_size=4).values)
    with pytest.raises(ValueError, match="resume=.force."):
        ep.sweep(shifted, some_space(0), key=KEY, store=begun)


def test_a_fresh_lambda_is_the_same_function(begun):
    scale = jnp.asarray(np.asarray(WEIGHT))
    path = begun.parent / "lambda.zarr"
    space = ep.Linspace(0, 1, 4)
    ep.sweep(lambda x: x * scale, space, store=path)
    again = jnp.array(WEIGHT)
    ep.sweep(lambda y: y * again, space, store=path)
    other = jnp.array(-WEIGHT)
    with pytest.raises(ValueError, match="other values"):
        ep.sweep(lambda y: y * other, space, store=path)


def test_another_batch_size_is_refused(begun):
    with pytest.raises(ValueError, match="begun with 4.*Leave it out"):
        ep.sweep(plain, some_space(0), key=KEY, store=begun, batch_size=3)
    ep.sweep(plain, some_space(0), key=KEY, store=begun, batch_size=4)


def test_another_form_by_another_jax_is_named_and_another_format_too(tmp_path):
    path, space = tmp_path / "runs.zarr", ep.Linspace(0, 1, 3)
    fn = lambda x: jnp.sin(x) * WEIGHT  # noqa: E731
    ep.sweep(fn, space, store=path)
    edit(path, lambda record: record.update(jax="0.0.1"))
    ep.sweep(fn, space, store=path)  # the same text
    edit(path, lambda record: record["function"].update(program="other"))
    with pytest.raises(ValueError, match='(?s)jax 0.0.1 in the store.*resume="force"'):
        ep.sweep(fn, space, store=path)
    ep.sweep(fn, space, store=path, resume="force")
    with pytest.raises(ValueError, match="other values"):
        ep.sweep(lambda x: jnp.sin(x) * DOUBLE, space, store=path)
    edit(path, lambda record: record.update(format=77))
    with pytest.raises(ValueError, match="format 77.*the version that created it"):
        ep.sweep(fn, space, store=path)


@pytest.mark.parametrize("what", ["file", "folder", "group"])
def test_a_path_that_holds_something_else_is_refused_untouched(tmp_path, what):
    path = tmp_path / "mine"
    if what == "file":
        path.write_text("precious")
    elif what == "folder":
        path.mkdir()
        (path / "thesis.tex").write_text("precious")
    else:
        xarray.Dataset({"a": ("x", [1, 2])}).to_zarr(path, consolidated=False)
    was = contents(tmp_path)
    with pytest.raises(ValueError, match="is left as it is. Give a path"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=path)
    assert contents(tmp_path) == was


def test_an_empty_folder_is_nothing(tmp_path):
    path = tmp_path / "empty"
    path.mkdir()
    result = ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=str(path))
    assert result.to_xarray()["value"].shape == (3,)
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_a_creation_that_was_killed_goes_on(tmp_path):
    path, space = tmp_path / "r", {"x": ep.Linspace(0, 1, 3)}
    fn = lambda p: jnp.sin(p["x"])  # noqa: E731
    ep.sweep(fn, space, store=path)
    for name in ("status", "value"):
        (path / name / "c.0").unlink()
    (path / "zarr.json").unlink()
    with pytest.raises(ValueError, match="has no `zarr.json`"):
        ep.SweepResult.load(path)
    assert ep.sweep(fn, space, store=path).ok.all()
    # Coordinates that are lost, or that another sweep has left there.
    (path / "x" / "c.0").write_bytes((path / "value" / "c.0").read_bytes())
    with pytest.raises(OSError, match="Call the same sweep again"):
        ep.SweepResult.load(path)
    assert ep.sweep(fn, space, store=path).ok.all()
    assert ep.SweepResult.load(path).ok.all()
    (path / "zarr.json").unlink()  # of a store that has values
    with pytest.raises(ValueError, match="has no `zarr.json`, but"):
        ep.sweep(fn, space, store=path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("asked", "kind", "says"),
    [
        ({"store": 3}, TypeError, "`store` is 3.*`pathlib.Path`"),
        ({"store": "https://x/runs.zarr"}, ValueError, "Give a path on a disk"),
        ({"store": ""}, ValueError, "Give a path on a disk"),
        ({"resume": "force"}, ValueError, "requires `store`"),
        ({"store": "x", "resume": "yes"}, ValueError, "`force`"),
    ],
)
def test_wrong_arguments(asked, kind, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=says):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), **asked)
    assert not list(tmp_path.iterdir())


def test_a_store_or_a_reduction_under_disable_jit_is_refused(tmp_path):
    run = ep.sweeper(jnp.sin, ep.Linspace(0, 1, 3), reduce=ep.reduce.Max())
    with jax.disable_jit():
        with pytest.raises(ValueError, match="for debugging"):
            ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=tmp_path / "r")
        with pytest.raises(ValueError, match="does not support `reduce`.*leave it"):
            run(ep.Linspace(0, 1, 3))


@pytest.mark.parametrize("module", ["xarray", "zarr"])
def test_a_missing_library_names_the_extra(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"eqx_pipe\[sweep\]"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=tmp_path / "r")
