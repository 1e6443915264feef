"""Points that have failed are computed again; those that have a value keep it."""

import pkgutil
import random
import re
import shutil
import tomllib
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from support.stores import odd, one_device, stored, written

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
SPACE = ep.Linspace(0, 12, 13)
BAD = [0, 4, 5, 11]


def fails(x):
    bad = (x == 0) | (x == 4) | (x == 5) | (x == 11)
    return {"a": eqx.error_if(x, bad, "no"), "b": jnp.stack([x > 3, x > 4])}


def mended(x):
    """Return other values everywhere, to tell which of them are kept."""
    return {"a": 100 + x, "b": jnp.stack([x < 3, x < 4])}


def half(x):
    return {"a": 100 + eqx.error_if(x, x == 5, "still"), "b": jnp.stack([x < 3, x < 4])}


def run(fn, path, space=SPACE, **asked):
    asked |= {"batch_size": 2, "mesh": one_device(), "store": path}
    return ep.sweep(fn, space, **asked)


def check_mended(result, bad=BAD):
    expected = np.arange(13.0)
    expected[bad] += 100
    assert result.values["a"][bad].tolist() == expected[bad].tolist()
    ok = result.ok
    assert np.array_equal(result.values["a"][ok], expected[ok])
    b = np.stack([np.arange(13) > 3, np.arange(13) > 4], 1)
    b[bad] = np.stack([np.arange(13) < 3, np.arange(13) < 4], 1)[bad]
    assert np.array_equal(result.values["b"][ok], b[ok])


@pytest.mark.parametrize("first", [{}, {"shard": (0, 2)}])
def test_failed_points_are_computed_again_and_no_others(tmp_path, first):
    path = tmp_path / "runs.zarr"
    before = run(fails, path, on_error="mark", **first)
    store = stored(path)
    when = {n: then for n, then in written(path).items() if n not in odd(store)}
    lost = np.flatnonzero(before.status == 0).tolist()
    result = run(mended, path, resume="failed")
    assert result.ok.all()
    check_mended(result, sorted({*BAD, *lost}))
    assert when.items() <= written(path).items()
    # As everybody sees it, and as the next call finds it.
    data = xarray.open_zarr(path).load()
    assert (data["status"] == 1).all()
    assert np.array_equal(data["a"].values, result.values["a"])
    for fn, asked in ((fails, {}), (mended, {"resume": "failed"})):
        assert np.array_equal(run(fn, path, **asked).values["a"], result.values["a"])
    with pytest.raises(ValueError, match='resume="failed"` also computes failed'):
        run(mended, path)


def test_what_fails_again_stays_failed(tmp_path):
    path = tmp_path / "runs.zarr"
    run(fails, path, on_error="mark")
    with pytest.raises(ep.SweepError, match='"failed"` computes these') as caught:
        run(fails, path)
    assert caught.value.indices == tuple(BAD)
    with pytest.raises(ep.SweepError, match="at point 5"):
        run(half, path, resume="failed")
    # What was mended before is kept.
    assert ep.SweepResult.load(path).ok[0] and not ep.SweepResult.load(path).ok[5]
    result = run(half, path, resume="failed", on_error="mark")
    assert np.flatnonzero(~result.ok).tolist() == [5]
    check_mended(result, [0, 4, 11])
    result = run(mended, path, resume="failed")
    check_mended(result)


def test_points_are_mended_by_workers(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    pytest.importorskip("cloudpickle")
    path = tmp_path / "runs.zarr"
    run(fails, path, on_error="mark")
    with ThreadPoolExecutor(2) as pool:
        asked = {"store": path, "resume": "failed", "executor": pool}
        check_mended(ep.sweep(mended, SPACE, **asked))


def test_the_command_says_what_a_store_has(tmp_path, capsys):
    path = tmp_path / "runs.zarr"
    run(fails, path, on_error="mark", shard=(0, 2))
    result = ep.SweepResult.load(path)
    counts = np.bincount(result.status, minlength=3).tolist()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    main = pkgutil.resolve_name(project["scripts"]["eqx-pipe"])
    assert main(["status", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"{path}: 13 points; x: 13\n" in out and "of at most 2 points" in out
    for name, count in zip(("missing", "done", "failed"), counts, strict=True):
        assert re.search(rf"  {name} +{count} +{count / 13:.1%}", out)
    assert "(0, 4 to 5)" in out
    assert np.flatnonzero(result.status == 2).tolist() == [0, 4, 5]
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder/zarr.json").mkdir(parents=True)
    for wrong, says in (
        ("empty", "has no `zarr.json`"),
        ("none", "has no `zarr.json`"),
        ("folder", "zarr.json` is damaged.*not a regular file.*from a copy"),
    ):
        assert main(["status", str(tmp_path / wrong)]) == 2
        assert re.search(says, capsys.readouterr().err)


def test_damaged_files_are_named_and_their_chunks_computed_again(tmp_path, capsys):
    path = tmp_path / "runs.zarr"
    run(lambda x: {"a": x}, path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    main = pkgutil.resolve_name(project["scripts"]["eqx-pipe"])
    assert main(["verify", str(path)]) == main(["repair", str(path)]) == 0
    assert "7 of 7 chunks, 0 damaged" in capsys.readouterr().out
    (path / "a/c.1").write_bytes((path / "a/c.2").read_bytes())
    (path / "status/c.3").write_bytes(b"")
    (path / "a/c.5").unlink()
    assert main(["verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.count("Delete it") == 3 and "7 of 7 chunks, 3 damaged" in out
    assert all(f"{path}/{file}`" in out for file in ("a/c.1", "status/c.3", "a/c.5"))
    assert main(["repair", str(path)]) == 0
    assert "3 chunks are now missing" in capsys.readouterr().out
    loaded = ep.SweepResult.load(path)
    assert np.flatnonzero(loaded.missing).tolist() == [2, 3, 6, 7, 10, 11]
    assert run(lambda x: {"a": x}, path).values["a"][:].tolist() == list(range(13))
    assert main(["verify", str(path)]) == 0
    (path / "x/c.0").write_bytes(b"")
    assert main(["verify", str(path)]) == main(["repair", str(path)]) == 1
    assert capsys.readouterr().out.count(f"{path}/x/c.0`") == 2


def flipped(data, rng):
    data = bytearray(data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


DAMAGE = {
    "twice": lambda data, rng: data + data,
    "longer": lambda data, rng: data + rng.randbytes(rng.randrange(1, 80)),
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "bit": flipped,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_gives_no_other_values(tmp_path, how):
    """Either an error names the store, or the chunk is computed again."""
    rng, whole = random.Random(how), tmp_path / "whole.zarr"
    few, more = ep.Linspace(0, 3, 4), ep.Values([0.0, 1.0, 2.0, 3.0, 4.0])
    run(fails, whole, few, on_error="mark")
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.stat().st_size)
    for file in [file for file in files if (whole / file).is_file()]:
        path = tmp_path / file.as_posix().replace("/", "-")
        shutil.copytree(whole, path)
        (path / file).write_bytes(DAMAGE[how]((whole / file).read_bytes(), rng))
        for act in (
            lambda path=path: ep.SweepResult.load(path),
            lambda path=path: run(fails, path, few, on_error="mark"),
            lambda path=path: run(fails, path, more, on_error="mark"),
        ):
            try:
                result = act()
                frame = result.to_pandas()
            except (OSError, ValueError, ep.SweepError) as error:
                assert str(path) in str(error)
                continue
            x = frame["x"].to_numpy()
            ok = np.isin(result.status, [0, 1])
            assert np.array_equal(ok, ~np.isin(x, BAD))
            done = frame[result.ok]
            assert done["a"].tolist() == done["x"].tolist()
            assert done["b.0"].tolist() == (done["x"] > 3).tolist()
