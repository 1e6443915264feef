"""Where a store lies and what lies in it: odd names, full disks, links."""

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
        for suffix in ("zarr", "nc"):
            saved = folder / f"saved {name}.{suffix}"
            whole.save(given(saved))
            same(ep.SweepResult.load(given(saved)).values, whole.values)
            whole.save(given(saved), overwrite=True)
        files = {f"{name}.zarr", f"saved {name}.zarr", f"saved {name}.nc"}
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


@pytest.mark.parametrize(
    "link", ["value/c/1", "value/c", "value", "status/c/1", ".locks", ".locks/all"]
)
def test_a_link_in_a_store_is_refused(link, store, tmp_path):
    victim = tmp_path / "victim"
    place = store / link
    if place.is_dir():
        shutil.copytree(place, victim)
        shutil.rmtree(place)
        (victim / "thesis").write_text("precious")
    else:
        place.unlink(missing_ok=True)
        victim.write_text("precious")
    place.symlink_to(victim)
    was = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="a link in the store.*put in its place"):
        ep.sweep(jnp.sin, SPACE, store=store, **ASKED)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == was


def test_a_link_that_leads_nowhere_is_refused_too(store, tmp_path):
    (store / "value" / "c" / "1").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="a link in the store.*gone"):
        ep.sweep(jnp.sin, SPACE, store=store, **ASKED)
    assert not (tmp_path / "gone").exists()


def test_links_to_a_store_and_names_shared_with_a_copy(store, tmp_path, whole):
    """A link on the way is the user's; a copy may share its files with the store."""
    (tmp_path / "here").symlink_to(store)
    (tmp_path / "up").symlink_to(tmp_path)
    shutil.copytree(store, tmp_path / "copy", copy_function=os.link)
    was = (store / ".locks" / "all").read_bytes()
    copy = tmp_path / "up" / "copy"
    close(ep.sweep(jnp.sin, SPACE, store=copy, **ASKED).values, whole.values)
    assert (store / ".locks" / "all").read_bytes() == was
    assert not (store / "value" / "c" / "1").exists()
    there = ep.sweep(jnp.sin, SPACE, store=tmp_path / "here", **ASKED)
    close(there.values, whole.values)


def test_a_store_whose_files_were_put_elsewhere_is_read(store, tmp_path):
    """As by tools that keep large files of a repository under their checksums."""
    ep.sweep(jnp.sin, SPACE, store=store, **ASKED)
    file = store / "value" / "c" / "1"
    file.symlink_to(file.rename(tmp_path / "kept"))
    assert (
        ep.SweepResult.load(store).ok.all()
        and ep.SweepResult.load(store).values[:].all() == 0
    )


BAD = ["a\\b", "x\0y", ".locks", ".a", "a\nb", "a\tb", "\ud800", "zarr.json", "x/y"]


@pytest.mark.parametrize("name", [*BAD, "é" * 101])
def test_names_that_files_cannot_have(name, tmp_path):
    fn = lambda x: {name: x, "b": x}  # noqa: E731
    says = "cannot be the name of an array in a file.*Rename the axis or the output"
    with pytest.raises(ValueError, match=says):
        ep.sweep(fn, SPACE, store=tmp_path / "r.zarr", **ASKED)
    result = ep.sweep(fn, SPACE, **ASKED)
    for suffix in ("zarr", "nc"):
        with pytest.raises(ValueError, match=says):
            result.save(tmp_path / f"r.{suffix}")
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
    with pytest.raises(ValueError, match="`-1`.*NetCDF they begin with a letter"):
        result.save(tmp_path / "r.nc")
    more = ep.sweep(lambda x: {n: x for n in names if n != "-1"}, SPACE, **ASKED)
    more.save(tmp_path / "r.nc")
    same(ep.SweepResult.load(tmp_path / "r.nc").values, more.values)
