"""Paths of stores, and names in them: odd names, full disks, links."""

import errno
import os
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest
from support.stores import close, one_device, same

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

SPACE = ep.Linspace(0, 1, 6)
ASKED = {"batch_size": 2, "mesh": one_device()}


@pytest.fixture(scope="module")
def whole():
    return ep.sweep(jnp.sin, SPACE, **ASKED)


# What a URL would be cut at, and what other readers of paths know.
NAMES = ["run#1", "~a?b=1;c::d [a-z]* 50%20\né"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_file_or_a_folder(name, tmp_path, monkeypatch, whole):
    monkeypatch.chdir(tmp_path)
    for folder, given in ((tmp_path / name, str), (tmp_path, lambda p: "./" + p.name)):
        store = folder / f"{name}.zarr"
        ep.sweep(jnp.sin, SPACE, store=given(store), shard=(0, 2), **ASKED)
        result = ep.sweep(jnp.sin, SPACE, store=given(store), **ASKED)
        close(result.values, whole.values)
        assert result.to_xarray()["value"].shape == (6,)
        same(ep.SweepResult.load(given(store)).values, result.values)
        assert xarray.open_zarr(zarr.storage.LocalStore(store))["value"].shape == (6,)
        saved = folder / f"saved {name}.zarr"
        whole.save(given(saved))
        whole.save(given(saved), overwrite=True)
        same(ep.SweepResult.load(given(saved)).values, whole.values)
        files = {f"{name}.zarr", f"saved {name}.zarr"}
        assert {p.name for p in folder.iterdir()} - {name} == files


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "Make room there"),
        (errno.EDQUOT, "Make room there"),
        (errno.EACCES, "See that the folder can be written to"),
        (errno.EROFS, "See that the folder can be written to"),
        (errno.EFBIG, "See that the folder can be written to"),
    ],
)
def test_room_is_asked_for_where_it_is_wanting(number, cure, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", fails)
    with pytest.raises(ep.SweepError, match=f"could not be made.* {cure}, then call"):
        ep.sweep(jnp.sin, SPACE, store=tmp_path / "r", **ASKED)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "runs.zarr"
    ep.sweep(jnp.sin, SPACE, store=path, shard=(0, 2), **ASKED)
    return path


def test_links_to_a_store_and_names_shared_with_a_copy(store, tmp_path, whole):
    """A link on the way is the user's; a copy may share its files with the store."""
    (tmp_path / "here").symlink_to(store)
    (tmp_path / "up").symlink_to(tmp_path)
    shutil.copytree(store, tmp_path / "copy", copy_function=os.link)
    copy = tmp_path / "up" / "copy"
    close(ep.sweep(jnp.sin, SPACE, store=copy, **ASKED).values, whole.values)
    assert not (store / "value" / "c.1").exists()
    there = ep.sweep(jnp.sin, SPACE, store=tmp_path / "here", **ASKED)
    close(there.values, whole.values)
    (tmp_path / "later").symlink_to(tmp_path / "scratch")  # which is not there yet
    ep.sweep(jnp.sin, SPACE, store=tmp_path / "later", **ASKED)
    assert (tmp_path / "later").is_symlink()
    assert ep.SweepResult.load(tmp_path / "scratch").ok.all()


BAD = ["a\\b", "x\0y", ".locks", ".a", "a\nb", "a\tb", "\ud800", "zarr.json", "x/y"]


@pytest.mark.parametrize("name", [*BAD, "é" * 101])
def test_names_that_files_cannot_have(name, tmp_path):
    fn = lambda x: {name: x, "b": x}  # noqa: E731
    says = "cannot be the name of an array in a file.*Rename the axis or the output"
    with pytest.raises(ValueError, match=says):
        ep.sweep(fn, SPACE, store=tmp_path / "r.zarr", **ASKED)
    result = ep.sweep(fn, SPACE, **ASKED)
    with pytest.raises(ValueError, match=says):
        result.save(tmp_path / "r.zarr")
    with pytest.raises(ValueError, match=says):
        ep.sweep(lambda p: p[name], {name: SPACE}, store=tmp_path / "r.zarr")
    assert not list(tmp_path.iterdir())


def test_names_that_files_can_have(tmp_path):
    names = ["a b", "a.", "é", "loss (train)", "-1", "a:b", "a#1", "2", "__x", "c"]
    result = ep.sweep(lambda x: {name: x for name in names}, SPACE, **ASKED)
    result.save(tmp_path / "r.zarr")
    same(ep.SweepResult.load(tmp_path / "r.zarr").values, result.values)
    fn = lambda x: {name: x for name in names}  # noqa: E731
    kept = ep.sweep(fn, SPACE, store=tmp_path / "s.zarr", **ASKED)
    same(kept.values, result.values)
    assert sorted(kept.to_xarray().data_vars) == sorted(names)


def test_a_disk_without_hard_links(whole, tmp_path, monkeypatch):
    def link(*_):
        raise OSError(errno.EPERM, "not supported")

    monkeypatch.setattr(os, "link", link)
    asked = {"store": tmp_path / "runs.zarr", **ASKED}
    for _ in range(2):
        same(ep.sweep(jnp.sin, SPACE, **asked).values[:], whole.values)
    assert not list(tmp_path.rglob(".parts/*"))
