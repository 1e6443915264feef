"""A small store, written and read by steps of the package alone.

The tests of its invariants run each step by itself, over a folder and over a bucket in
memory, which a sweep cannot do; the simulator (`simulate.py`) runs them in processes.
"""

import numpy as np

from eqx_pipe._store import (
    FAILED,
    MISSING,
    OK,
    Chunks,
    Filling,
    Growth,
    Origin,
    StoreLayout,
    Variable,
    commit_chunk,
    create_store,
    grow_store,
    open_store,
    settle,
)
from eqx_pipe._store import (
    Folder as Folder,
)

from .bucket import opened_by_zarr

XS, YS = [0.0, 2.0], [0.0, 1.0, 2.0, 3.0, 4.0]
GROWTHS = {
    # The larger dims, and whether values keep their files.
    "on the dim that is cut": (XS, [*YS, 5.0, 6.0], True),
    "on a leading dim": ([*XS, 4.0], YS, True),
    "in between": ([0.0, 1.0, 2.0], YS, False),
}


def layout(xs=XS, ys=YS, split=1, count=3):
    return StoreLayout(
        dims=("x", "y"),
        chunks=Chunks((len(xs), len(ys)), split, count),
        coordinates={"x": (("x",), np.array(xs), {}), "y": (("y",), np.array(ys), {})},
        variables=[
            Variable("v", np.dtype("f4")),
            Variable("w", np.dtype("i4"), (2,), ("w.0",)),
        ],
        status="status",
        attributes={},
        record={},
    )


def truth(xs, ys):
    v = (np.array(xs)[:, None] * 100 + np.array(ys)).astype("f4")
    return [v.reshape(-1), np.stack([v, v + 1], -1).astype("i4").reshape(-1, 2)]


def rows_of(store, number):
    first, last = store.chunks.span(number)
    xs, ys = store.coordinate("x"), store.coordinate("y")
    return [leaf[first:last].copy() for leaf in truth(xs, ys)]


def fill(store, number, failed=(), lacking=()):
    values = rows_of(store, number)
    status = np.full(len(values[0]), OK, np.int8)
    failed = [row for row in failed if row < len(status)]
    status[failed] = FAILED
    status[[row for row in lacking if row < len(status)]] = MISSING
    for leaf in values:
        leaf[status != OK] = 0
    commit_chunk(store, number, values, status, {"no": np.array(failed, int)})


def mend(store, number, again=()):
    manifest = store.manifest(number)
    if manifest is None:
        raise FileNotFoundError("another writer has begun the chunk anew")
    rows = np.flatnonzero(manifest.status != OK)
    values = [leaf[rows] for leaf in rows_of(store, number)]
    status = np.where(np.isin(rows, again), FAILED, OK).astype(np.int8)
    for leaf in values:
        leaf[status != OK] = 0
    errors = {"still": rows[status == FAILED]}
    commit_chunk(store, number, values, status, errors, rows)


def odd(store):
    """Return the chunks with failed or missing rows."""
    return np.flatnonzero(store.listed().odd).tolist()


def check(files):
    """Raise unless rows have their values, for us and for xarray; return those."""
    store = open_store("sweep", files)
    gaps, errors, _ = store.account()
    failed = set(np.concatenate([np.zeros(0, int), *errors.values()]).tolist())
    for number in range(len(store.chunks)):
        manifest = store.manifest(number)
        if manifest is None:
            continue
        first, _ = store.chunks.span(number)
        ok, right = manifest.status == OK, rows_of(store, number)
        for k, leaf in enumerate(right):
            assert np.array_equal(store.read(number, k)[ok], leaf[ok])
        without = first + np.flatnonzero(manifest.status == FAILED)
        assert set(without.tolist()) <= failed  # each has a text
        assert ok.all() or number in odd(store)
    import xarray

    zarr = opened_by_zarr(files)
    data = xarray.open_zarr(zarr, chunks=None).load()
    ok = data["status"].values.reshape(-1) == OK
    for name, leaf in zip("vw", truth(data["x"], data["y"]), strict=True):
        found = data[name].values.reshape(leaf.shape)
        assert np.array_equal(found[ok], leaf[ok])
    return ok.reshape(data["status"].shape)


def run(store, shard=None, again=True, failed=lambda number: (), kept=None):
    """Fill a store as a sweep does; `kept(number)` is called after each commit."""
    filling = Filling(store, shard, again)
    with filling.locked() as listed:
        for number, rows in filling.todo(listed).items():
            values = rows_of(store, number)
            index = np.arange(len(values[0])) if rows is None else rows
            values = [leaf[index] for leaf in values]
            status = np.where(np.isin(index, failed(number)), FAILED, OK).astype("i1")
            for leaf in values:
                leaf[status != OK] = 0
            errors = {"no": index[status == FAILED]}
            filling.keep(number, rows, values, status, errors)
            if kept is not None:
                kept(number)


def complete(files):
    """Do what the next run does: compute what is missing, damaged or failed."""
    settle(files)
    store = open_store("sweep", files)
    run(store)
    assert check(files).all() and not store.lacks_values(store.listed().done).any()
    assert not files.exists(".growing")


def origin(store, xs, ys):
    each = store.coordinate("x").tolist(), store.coordinate("y").tolist()
    positions = [
        np.array([old.index(v) if v in old else -1 for v in new])
        for old, new in zip(each, (xs, ys), strict=True)
    ]
    return Origin(tuple(positions), tuple(map(len, each)))


def created(files, **cut):
    """Create the store, and return it."""
    return create_store("sweep", files, layout(**cut))


def opened(files):
    """Return the store in some files."""
    return open_store("sweep", files)


def grown(files, xs, ys, appends):
    """Let a store grow to larger dims, unless it has."""

    def growth_of(store):
        if tuple(store.record["lengths"]) == (len(xs), len(ys)):
            return None
        return Growth(layout(xs, ys), origin(store, xs, ys), not appends)

    return grow_store(files, growth_of)
