"""A store goes on in a fresh process if nothing has changed, and else refuses."""

import importlib
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import same_stores

import eqx_pipe as ep

pytest.importorskip("zarr")

LINE = {"x": ep.Linspace(1.0, 2.0, 3)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Return what became of each call, by the phase."""
    folder, found = tmp_path_factory.mktemp("stores"), {}
    for phase in ("begin", "same", "other"):
        command = [sys.executable, same_stores.__file__, phase, str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not result.returncode, result.stderr
        lines = result.stdout.splitlines()
        found[phase] = dict(json.loads(line) for line in lines if line[:1] == "[")
    return found


@pytest.mark.parametrize("name", same_stores.CASES)
def test_a_store_goes_on_unless_something_has_changed(outcomes, name):
    assert outcomes["begin"][name] == outcomes["same"][name] == "right"
    assert outcomes["other"][name].startswith("refused: ")


NAMED = {
    "a_closure": "`v` is 1.0 in the store, now 3.0",
    "a_callback_with_effects": "`note.v` is 1.0 in the store, now 3.0",
    "a_module_that_a_callback_reads": "`settings.rate` is 1.0 in the store, now 3.0",
    "how_a_reducer_finishes": "`finish.finish` is 1.0 in the store, now 3.0",
    "functions_that_change_places": "`space`, axis act: another order of `",
    "a_mapped_axis": "`x` = 1.0 on the dim `x`",
    "a_scheduler_with_slots": "`scheduler`: Slotted, in which `rate` is 1.0",
    "the_step_of_a_training": "in `step`, `rate` is 1.0 in the store, now 3.0",
    "the_start_of_a_training": "in `init`, `v` is 1.0 in the store, now 3.0",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_message_names_what_has_changed(outcomes, name):
    assert NAMED[name] in outcomes["other"][name]


def callback(source):
    scope = {"np": np}
    exec(source, scope)
    return scope["call"]


OLD = "def call(x):\n    y = 2 * x\n    return np.float32(y)"
SAME = {
    "another name": OLD.replace("call", "other") + "\ncall = other",
    "another local": OLD.replace("y", "z"),
    "other lines": OLD.replace("2 *", "(\n        2 *").replace("x\n ", "x)\n\n "),
    "a docstring": OLD.replace("(x):\n", '(x):\n    """Double."""\n'),
}


def doubled(source):
    struct, call = jax.ShapeDtypeStruct((), np.float32), callback(source)
    return lambda p: jax.pure_callback(call, struct, p["x"], vmap_method="sequential")


@pytest.mark.parametrize("name", SAME)
def test_a_function_that_is_written_in_another_way_is_the_same(tmp_path, name):
    ep.sweep(doubled(OLD), LINE, store=tmp_path / "r")
    assert ep.sweep(doubled(SAME[name]), LINE, store=tmp_path / "r").ok.all()
    with pytest.raises(ValueError, match=r"the code of `call` has the numbers \[2\]"):
        ep.sweep(doubled(OLD.replace("2 *", "3 *")), LINE, store=tmp_path / "r")


def test_an_axis_counts_by_its_values_and_not_by_the_name_of_its_function(tmp_path):
    def twice(x):
        return 2 * x

    def doubled(x):
        return x + x

    for fn in (twice, doubled):
        space = {"x": ep.Mapped(fn, LINE["x"])}
        assert ep.sweep(lambda p: p["x"], space, store=tmp_path / "r").ok.all()


def called(x):
    struct = jax.ShapeDtypeStruct((), np.float32)
    return jax.pure_callback(np.sin, struct, x, vmap_method="sequential")


class Table:
    """A pytree that functions flatten which no name leads to."""


jax.tree_util.register_pytree_node(Table, lambda x: ((), None), lambda *_: Table())

HANDLES = {
    "Table": Table(),
    "builtins.list_iterator": iter([]),
    "builtins.set": {(1, 2)},
    "numpy.ndarray": np.array([iter([])], dtype=object),
    "Jaxpr": jax.make_jaxpr(called)(np.float32(0)),
}


@pytest.mark.parametrize("kind", HANDLES)
def test_what_a_store_cannot_recognise_counts_as_changed(tmp_path, kind):
    held = {"handle": HANDLES[kind]}

    def call(x):
        return np.float32(x if held else 0)

    struct = jax.ShapeDtypeStruct((), np.float32)
    fn = lambda p: jax.pure_callback(  # noqa: E731
        call, struct, p["x"], vmap_method="sequential"
    )
    options = {"store": tmp_path / "r", "progress": False}
    coming = ep.plan(fn, LINE, **options)
    assert "call.held.handle" in repr(coming) and kind in coming.unsure
    ep.sweep(fn, LINE, **options)
    says = rf"`held.handle`, a `[\w.]*{kind}`, which a store cannot recognise"
    with pytest.raises(ValueError, match=says):
        ep.sweep(fn, LINE, **options)
    assert ep.sweep(fn, LINE, resume="force", **options).ok.all()


def test_a_plan_prints_what_a_store_compares(tmp_path):
    rate, table = 2.0, jnp.ones(3)
    coming = ep.plan(lambda p: p["x"] * rate * table.sum(), LINE, store=tmp_path / "r")
    assert coming.counts == ("rate", "table") and not coming.unsure
    assert "counts   rate, table" in repr(coming)


def test_a_store_of_an_earlier_format_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr("eqx_pipe._store.format.FORMAT", 9)
    monkeypatch.setattr("eqx_pipe._sweep.identity.FORMAT", 9)
    training = ep.Training(lambda p: p["x"], lambda p, x: (x, {"x": x}))
    ep.sweep(lambda p: p["x"], LINE, store=tmp_path / "sweep")
    ep.train(training, LINE, 2, store=tmp_path / "train")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has the format 9, .* knows the format 10"):
        ep.sweep(lambda p: p["x"], LINE, store=tmp_path / "sweep")
    with pytest.raises(ValueError, match="has the format '9', .* knows the format 10"):
        ep.train(training, LINE, 2, store=tmp_path / "train")
    with pytest.raises(ValueError, match="Use the version that created it"):
        ep.TrainResult.load(tmp_path / "train")


def test_code_that_finds_names_by_text_may_fill_a_store(tmp_path, monkeypatch):
    (tmp_path / "own_rates.py").write_text("rate = 2.0")
    monkeypatch.syspath_prepend(tmp_path)
    rates = importlib.import_module("own_rates")

    def fn(p):
        return p["x"] * getattr(rates, "r" + "ate") * rates.rate

    def callback(result):
        return result.step > rates.rate and hasattr(rates, "rate")

    training = ep.Training(lambda p: 0.0, lambda p, x: (x + fn(p), None))
    for _ in range(2):
        result = ep.sweep(fn, LINE, store=tmp_path / "a.zarr")
        np.testing.assert_array_equal(result.values[:], [4.0, 6.0, 8.0])
        store = tmp_path / "b"
        ended = ep.train(training, LINE, 4, every=1, store=store, callback=callback)
        assert ended.step == 3 and ended.carry(0) == 12
