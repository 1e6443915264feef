"""Loaders that give sharded batches, also in a run of several processes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.processes import run_processes

import eqx_pipe as ep

KEY = jr.key(2)


def tree(size=24):
    return {"x": np.arange(2.0 * size, dtype=np.float32).reshape(size, 2)}


def records(size=24):
    return [{"x": x} for x in tree(size)["x"]]


def noisy(record, *, key):
    return {"x": record["x"], "bits": jr.bits(key)}


KINDS = {
    "automatic": (AxisType.Auto, AxisType.Auto),
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "mixed": (AxisType.Explicit, AxisType.Auto),
}


def mesh_of(axes="automatic"):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=KINDS[axes])


@pytest.mark.parametrize(
    ("kind", "mesh"),
    [("device", mesh_of()), ("host", mesh_of("mixed"))],
    ids=["device, automatic", "host, mixed"],
)
def test_batches_come_sharded_and_with_the_same_values(kind, mesh):
    """The last batch of six does not divide by four."""
    source = ep.data.ArraySource(tree(22)) if kind == "device" else records(22)
    sharding = NamedSharding(mesh, P("data", "model"))
    plain = ep.data.Loader(ep.data.ArraySource(tree(22)), noisy, batch_size=8)
    loader = ep.data.Loader(source, noisy, batch_size=8, sharding=sharding)
    cursor = loader.init(KEY)
    batches, expected = list(loader.epoch(cursor)), plain.epoch(plain.init(KEY))
    for batch, whole in zip(batches, expected, strict=True):
        assert (np.asarray(batch["x"]) == whole["x"]).all()
        assert (np.asarray(batch["bits"]) == whole["bits"]).all()
    first, _, last = batches
    for batch in (first, loader.next(cursor)[0]):
        assert batch["x"].sharding == sharding
        assert batch["bits"].sharding == NamedSharding(mesh, P("data"))
    assert last["x"].shape == (6, 2)
    assert last["x"].sharding == NamedSharding(mesh, P(None, "model"))


def test_the_source_is_moved_to_the_mesh_once():
    sharding = NamedSharding(mesh_of(), P("data"))
    loader = ep.data.Loader(
        ep.data.ArraySource(tree()), batch_size=8, sharding=sharding
    )
    x = loader.source.tree["x"]
    assert x.sharding.device_set == sharding.device_set
    again = ep.data.Loader(loader.source, batch_size=8, sharding=sharding)
    assert jax.tree.leaves(again.source)[0] is jax.tree.leaves(loader.source)[0]
    split = ep.data.ArraySource(jax.device_put(tree(), sharding))
    kept = ep.data.Loader(split, batch_size=8, sharding=sharding)
    assert kept.source.tree["x"].sharding.spec == P("data")
    a, b = (next(x.epoch(x.init(KEY)))["x"] for x in (loader, kept))
    assert (a == b).all()


@pytest.mark.parametrize(
    ("mesh", "axis"),
    [(mesh_of(), "model"), (mesh_of("mixed"), "data")],
    ids=["automatic", "mixed"],
)
def test_scan_over_sharded_batches(mesh, axis):
    sharding = NamedSharding(mesh, P(axis))
    loader = ep.data.Loader(
        ep.data.ArraySource(tree()), batch_size=8, sharding=sharding
    )
    step = lambda total, batch: (total + batch["x"].sum(), None)  # noqa: E731
    total, _, _ = loader.scan(step, 0.0, loader.init(KEY))
    assert np.allclose(total, tree()["x"].sum())


@pytest.mark.parametrize("kind", ["device", "host"])
def test_a_mesh_of_one_device(kind):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("data"))
    source = ep.data.ArraySource(tree()) if kind == "device" else records()
    loader = ep.data.Loader(source, batch_size=8, sharding=sharding)
    cursor = loader.init(KEY)
    for batch in (next(loader.epoch(cursor)), loader.next(cursor)[0]):
        assert batch["x"].sharding.spec == P("data")


@pytest.mark.parametrize(
    ("kind", "early", "axes"),
    [
        ("device", True, "explicit"),
        pytest.param("host", False, "mixed", marks=pytest.mark.slow),
    ],
)
def test_loaders_under_the_users_explicit_mesh(kind, early, axes):
    mesh = mesh_of(axes)
    sharding = NamedSharding(mesh, P("data"))

    def build():
        source = ep.data.ArraySource(tree(22)) if kind == "device" else records(22)
        pipe = lambda record: record["x"]  # noqa: E731
        return ep.data.Loader(source, pipe, batch_size=8, sharding=sharding)

    loader = build() if early else None
    weight = jax.device_put(jnp.ones(()), NamedSharding(mesh, P()))
    with jax.set_mesh(mesh):
        loader = loader or build()
        cursor = loader.init(KEY)
        first, *_ = batches = list(loader.epoch(cursor))
        assert first.sharding == sharding
        assert (first * weight).sharding.is_equivalent_to(sharding, 2)
        assert np.allclose(sum(np.asarray(b).sum(0) for b in batches), total(22))
        assert (loader.next(cursor)[0] == first).all()
        found = ep.reduce.reduce_batches(loader.epoch(cursor), ep.reduce.Sum())
        assert np.allclose(found, total(22))
        if kind == "device":
            step = lambda w, b: (w + b.sum(), None)  # noqa: E731
            carry, _, _ = loader.scan(step, weight, cursor)
            assert np.allclose(carry, 1 + batches[0].sum() + batches[1].sum())
            jitted = jax.jit(lambda cursor: loader.next(cursor)[0])(cursor)
            assert (np.asarray(jitted) == np.asarray(first)).all()
    if kind == "device":  # and outside of it
        plain, _, _ = loader.scan(step, jnp.zeros(()), cursor)
        typed, _, _ = loader.scan(step, weight, cursor)
        assert np.allclose(np.asarray(plain) + 1, np.asarray(typed))


def total(size):
    return tree(size)["x"].sum(0)


def test_a_mesh_without_devices_is_refused(unchecked):
    abstract = jax.sharding.AbstractMesh((4,), ("data",))
    with pytest.raises(TypeError, match="AbstractMesh.*mesh of devices"):
        sharding = NamedSharding(abstract, P("data"))
        ep.data.Loader(records(), batch_size=4, sharding=sharding)


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
    (here / f"{kind}.json").write_text(json.dumps({**saved, "at": cursor.to_json()}))
"""

THEN_TWO = """
for kind in ("host", "device"):
    saved = json.loads((here / f"{kind}.json").read_text())
    loader = run(8, kind, several())
    cursor = ep.data.Cursor.from_json(saved["at"])
    assert cursor.position == 21
    found, end = rest(loader, cursor)
    assert saved["begun"] + [list(pair) for pair in found] == saved["all"]
    # And on, so that one process may take over in the middle of the next epoch.
    begun, cursor = part(loader, end.next_epoch(), 4)
    assert (cursor.epoch, cursor.position) == (1, 32)
    if rank == 0:
        saved = {**saved, "begun": begun, "at": cursor.to_json()}
        (here / f"{kind}.json").write_text(json.dumps(saved))
"""

AND_ALONE_AGAIN = """
for kind in ("host", "device"):
    saved = json.loads((here / f"{kind}.json").read_text())
    loader = run(5, kind)
    cursor = ep.data.Cursor.from_json(saved["at"])
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
