"""Loaders in a run of several processes."""

import jax
import pytest
from support.processes import run_processes

SCRIPT = """
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec as P
import eqx_pipe as ep


class Source:
    def __init__(self):
        self.read = []

    def __len__(self):
        return 24

    def __getitem__(self, i):
        self.read.append(i)
        return {"x": np.full(2, i, np.float32)}


def noisy(record, *, key):
    return {"x": record["x"], "bits": jr.bits(key)}


source = Source()
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = NamedSharding(mesh, P("data"))
loader = ep.data.Loader(source, noisy, batch_size=8, sharding=sharding)
alone = ep.data.Loader([{"x": np.full(2, i, np.float32)} for i in range(24)], noisy,
                  batch_size=4)
expected = list(alone.epoch(alone.init(jr.key(0))))
source.read.clear()
iterator = loader.epoch(loader.init(jr.key(0)))
for i, batch in enumerate(iterator):
    assert batch["x"].shape == (8, 2) and batch["x"].sharding == sharding
    found = process_allgather(batch, tiled=True)
    for name in ("x", "bits"):
        want = np.concatenate([expected[2 * i][name], expected[2 * i + 1][name]])
        assert np.array_equal(found[name], want), name
# Each process has read its own half only, the first or the last four of each batch.
order = np.concatenate([e["x"][:, 0] for e in expected]).astype(int).reshape(3, 2, 4)
assert sorted(source.read) == sorted(order[:, rank].ravel().tolist()), source.read
batch, cursor = loader.next(iterator.cursor)
assert batch["x"].shape == (8, 2) and cursor.position == 8
# A process whose devices hold no rows reads none.
first = np.asarray([device for device in jax.devices() if device.process_index == 0])
sharding = NamedSharding(jax.sharding.Mesh(first, ("data",)), P("data"))
for given in (np.arange(8), [np.float32(i) for i in range(8)]):
    loader = ep.data.Loader(given, batch_size=4, sharding=sharding)
    batch, _ = loader.next(loader.init(jr.key(0)))
    assert batch.shape == (4,) and len(batch.addressable_shards) == 2 * (rank == 0)
"""


TASK = """
import json, pathlib
import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec as P
import eqx_pipe as ep

SIZE = 48


def noisy(record, *, key):
    return {"i": record, "bits": jr.bits(key)}


def run(batch_size, kind, sharding=None):
    numbers = np.arange(SIZE, dtype=np.int32)
    source = numbers if kind == "host" else ep.data.ArraySource(numbers)
    return ep.data.Loader(source, noisy, batch_size=batch_size, sharding=sharding)


def bits_of(batches):
    found = {}
    for batch in batches:
        batch = {name: whole(x) for name, x in batch.items()}
        for i, bits in zip(batch["i"].tolist(), batch["bits"].tolist(), strict=True):
            assert i not in found
            found[i] = bits
    return list(found.items())


def whole(x):
    return np.asarray(process_allgather(x, tiled=True)) if jax.process_count() > 1 \
        else np.asarray(x)


def part(loader, cursor, number):
    iterator = loader.epoch(cursor)
    found = bits_of(next(iterator) for _ in range(number))
    return found, iterator.cursor


def rest(loader, cursor):
    iterator = loader.epoch(cursor)
    return bits_of(iterator), iterator.cursor


def several():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return NamedSharding(mesh, P("data"))


here = pathlib.Path(PLACE)
"""

ALONE_FIRST = """
for kind in ("host", "device"):
    loader = run(7, kind)
    cursor = loader.init(jr.key(3))
    everything, _ = rest(loader, cursor)
    second, _ = rest(loader, cursor.next_epoch())
    begun, cursor = part(loader, cursor, 3)
    saved = {"all": everything, "second": second, "begun": begun}
    (here / f"{kind}.json").write_text(json.dumps(saved))
    eqx.tree_serialise_leaves(here / f"{kind}.eqx", cursor)
"""

THEN_TWO = """
for kind in ("host", "device"):
    saved = json.loads((here / f"{kind}.json").read_text())
    loader = run(8, kind, several())
    like = loader.init(jr.key(0))
    cursor = eqx.tree_deserialise_leaves(here / f"{kind}.eqx", like)
    assert cursor.position == 21
    found, end = rest(loader, cursor)
    assert saved["begun"] + [list(pair) for pair in found] == saved["all"]
    # And on, so that one process may take over in the middle of the next epoch.
    begun, cursor = part(loader, end.next_epoch(), 4)
    assert (cursor.epoch, cursor.position) == (1, 32)
    if rank == 0:
        saved = {**saved, "begun": begun}
        (here / f"{kind}.json").write_text(json.dumps(saved))
        eqx.tree_serialise_leaves(here / f"{kind}.eqx", cursor)
"""

AND_ALONE_AGAIN = """
for kind in ("host", "device"):
    saved = json.loads((here / f"{kind}.json").read_text())
    loader = run(5, kind)
    like = loader.init(jr.key(0))
    cursor = eqx.tree_deserialise_leaves(here / f"{kind}.eqx", like)
    found, _ = rest(loader, cursor)
    assert saved["begun"] + [list(pair) for pair in found] == saved["second"]
"""


@pytest.mark.slow
def test_two_processes_read_their_own_records_and_carry_on_a_run_of_one(tmp_path):
    """By batches of 7, 8 and 5; every record once, with the draws of one run."""
    task = TASK.replace("PLACE", repr(str(tmp_path)))
    exec(task + ALONE_FIRST, {"jax": jax})
    run_processes(SCRIPT + task + THEN_TWO)
    exec(task + AND_ALONE_AGAIN, {"jax": jax})
