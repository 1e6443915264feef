"""Values that are read from a store, used as arrays; and stores that are damaged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.stores import one_device

import eqx_pipe as ep

pytest.importorskip("xarray")
pytest.importorskip("zarr")

SPACE = ep.Linspace(0, 1, 16)


def double(x):
    return 2 * x


def filled(path, **options):
    return ep.sweep(double, SPACE, store=path, batch_size=2, **options)


def test_stored_values_do_what_arrays_do(tmp_path):
    stored = filled(tmp_path / "runs.zarr").values
    plain = ep.sweep(double, SPACE).values
    assert type(stored) is not np.ndarray
    assert np.array_equal(stored == plain[3], plain == plain[3])
    assert np.array_equal(stored > 1, plain > 1)
    assert np.array_equal(1 - stored * 2, 1 - plain * 2)
    assert np.array_equal(np.sqrt(stored), np.sqrt(plain))
    assert np.array_equal(stored + stored, plain + plain)
    assert stored.mean() == np.mean(stored) == plain.mean() == jnp.mean(stored[:])
    assert stored.max() == plain.max() and stored.astype(int).dtype == int
    assert isinstance(jnp.asarray(stored), jax.Array)
    with pytest.raises(AttributeError, match="no attribute `mode`"):
        stored.mode  # noqa: B018
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(stored, copy=False)


def test_forcing_trusts_the_function_not_its_form(tmp_path):
    path = tmp_path / "runs.zarr"
    filled(path, shard=(0, 2))
    others = (
        lambda x: {"loss": 2 * x},
        lambda x: x.astype(jnp.int32),
        lambda x: jnp.stack([x, -x]),
    )
    for other in others:
        with pytest.raises(ValueError, match="`fn`: it returns float32.* in the store"):
            ep.sweep(other, SPACE, store=path, resume="force")
    assert ep.sweep(lambda x: x + x, SPACE, store=path, resume="force").ok.all()


def test_the_home_folder_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    filled("~/runs.zarr")
    assert (tmp_path / "runs.zarr").is_dir()


def test_a_path_may_leave_folders_that_do_not_exist(tmp_path):
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far/away")
    for path, where in (
        ("no/../a/b.zarr", "a/b.zarr"),
        ("link/../c.zarr", "far/c.zarr"),
    ):
        filled(tmp_path / path)
        assert (tmp_path / where / "zarr.json").exists()
        assert ep.SweepResult.load(tmp_path / path).ok.all()
    assert not (tmp_path / "no").exists()


def test_what_is_no_file_is_no_chunk(tmp_path):
    path = tmp_path / "runs.zarr"
    filled(path)
    chunk = next((path / "value").glob("c.*"))
    chunk.unlink()
    chunk.mkdir()
    with pytest.raises(OSError, match=f"{chunk}.*cannot be read"):
        np.asarray(ep.SweepResult.load(path).values)
    with pytest.raises((OSError, ep.SweepError), match=str(chunk)):
        np.asarray(filled(path).values)
    chunk.rmdir()
    assert filled(path).values[:].tolist() == ep.sweep(double, SPACE).values.tolist()


def test_indices_are_integers(tmp_path):
    values = filled(tmp_path / "runs.zarr").values
    with pytest.raises(IndexError, match="arrays used as indices"):
        values[[0.9, 2.7]]
    assert values[[]].shape == (0,) and len(values[np.uint8([3, 1])]) == 2


def test_long_texts_tell_spaces_apart(tmp_path):
    def run(text):
        space = {"x": SPACE, "text": "a" * 300 + text}
        return ep.sweep(lambda p: p["x"], space, store=tmp_path / "runs.zarr")

    run("1")
    run("1")
    with pytest.raises(ValueError, match="leaf text"):
        run("2")


def test_what_is_said_to_be_there_is_there_whatever_is_read_first(tmp_path):
    """Somebody looks at a store while it is being filled."""
    path = tmp_path / "runs.zarr"
    filled(path, mesh=one_device(), shard=(0, 2))
    result = ep.SweepResult.load(path)
    data = result.to_xarray()
    early, late = data["value"].values, filled(path, mesh=one_device())
    assert late.ok.all() and np.isnan(early).any()
    # The status is asked for after the values.
    for status in (data["status"].values, result.status):
        there = status == 1
        assert there.any() and not there.all()
        assert np.array_equal(early[there], late.values[there])
        assert np.array_equal(result.values[there], late.values[there])
