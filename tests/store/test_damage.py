"""Files of a store that are damaged, exchanged or lost are told, by their names."""

import json
import random

import numpy as np
import pytest
from support import small_store as small

pytest.importorskip("xarray")
pytest.importorskip("zarr")


def test_another_file_in_the_place_of_one_is_told(files):
    """Exchanged, older, cut, empty, or with another bit; or gone."""
    store = small.created(files)
    for number in range(len(store.chunks)):
        small.fill(store, number, failed=[1] if number == 3 else [])
    old = files.get("v/c.1.1")
    small.mend(store, 3)
    small.fill(store, 0, failed=[0])
    keys = ["v/c.0.1", "w/c.0.1.0", "status/c.0.1", "status/c.1.1", "v/c.1.1"]
    for key in keys:
        number = int("".join(key.split(".")[1:3]), 2)
        data, rng = files.get(key), random.Random(key)
        others = [b"", data[:-1], files.get("v/c.1.0"), files.get("status/c.1.0")]
        others += [old] if key == keys[-1] else []
        for _ in range(40):
            flipped = bytearray(data)
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            others.append(bytes(flipped))
        for other in others:
            files.put(key, other)
            if store.is_sound(number):  # a bit that pads the last byte of a stream
                assert key.startswith("status") and small.check(files).any()
                continue
            with pytest.raises(OSError, match=key):
                [store.read(number, k) for k in range(2)]
        files.put(key, data)
        assert store.is_sound(number)
    # A file is deleted, and the next run computes its chunk again.
    for key in keys:
        files.remove(key)
    small.complete(files)


def test_metadata_and_coordinates_are_read_whole_or_told(files):
    small.created(files)
    for key in ("zarr.json", "x/c.0", "y/c.0"):
        data, rng = files.get(key), random.Random(key)
        for _ in range(60):
            flipped = bytearray(data)
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            files.put(key, bytes(flipped))
            with pytest.raises((ValueError, OSError), match=key):
                store = small.opened(files)
                small.rows_of(store, 0)
        files.put(key, data)
    data = files.get("zarr.json")
    files.put("zarr.json", json.dumps(json.loads(data) | {"node_type": 1}).encode())
    with pytest.raises(ValueError, match="its checksum differs"):
        small.opened(files)
    files.put("zarr.json", data)
    files.put("x/c.0", files.get("y/c.0"))
    with pytest.raises(OSError, match="x/c.0"):
        small.opened(files).coordinate("x")


def test_long_and_many_errors_are_kept_and_mended(files):
    store = small.created(files, split=0, count=3)
    values = small.rows_of(store, 0)
    rows = np.arange(len(values[0]))
    errors = {f"{k}" * 50_000: rows[k::7] for k in range(7)}
    small.commit_chunk(
        store, 0, values, np.full(len(rows), small.FAILED, np.int8), errors
    )
    found = store.manifest(0).errors
    assert found.keys() == errors.keys()
    assert all(np.array_equal(found[text], at) for text, at in errors.items())
    small.check(files)
    small.commit_chunk(
        store, 0, values, np.full(len(rows), small.OK, np.int8), {}, rows
    )
    assert store.manifest(0).errors == {} and small.check(files).all()
