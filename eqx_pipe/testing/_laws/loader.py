"""The laws of data loaders."""

import dataclasses
import functools as ft
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._check import check_key as check_one_key
from ..._data.array_source import DeviceSource
from ..._data.cursor import Cursor
from ..._data.loader import Loader
from ..._errors import describe_value, type_error
from ..._stage import identity
from ..._tree import as_arrays, is_key_array
from ..._types import Key, PyTree
from .compare import Bound, Finding, Tolerance, compare, same_bits, tolerance_of
from .law import Law, check_laws

_SETTINGS = (
    "pipe",
    "batch_pipe",
    "batch_size",
    "shuffle",
    "drop_remainder",
    "sharding",
)


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A loader at the beginning of its first epoch."""

    loader: Loader
    key: Key
    tolerance: Tolerance

    @ft.cached_property
    def cursor(self) -> Cursor:
        return self.loader.init(self.key)

    def variant(self, **changes: Any) -> Loader:
        """The same loader with other settings."""
        settings = {name: getattr(self.loader, name) for name in _SETTINGS}
        return Loader(self.loader.source, **{**settings, **changes})

    def find_change(self) -> Finding | None:
        first, _ = self.loader.next(self.cursor)
        again, _ = self.loader.next(self.cursor)
        labels = ("the second time", "the first time")
        return same_bits(as_arrays(again), as_arrays(first), labels)

    def find_lost_records(self) -> Finding | None:
        plain = {"pipe": identity, "batch_pipe": identity}
        got = self.variant(**plain)
        whole = self.variant(
            **plain, batch_size=1, shuffle=False, drop_remainder=False, sharding=None
        )
        records = _rows(_joined(list(got.epoch(got.init(self.key)))))
        known = _rows(_joined(list(whole.epoch(whole.init(self.key)))))
        missing = [row for row in known if records.count(row) < known.count(row)]
        surplus = [row for row in records if records.count(row) > known.count(row)]
        if surplus or (missing and not self.loader.drop_remainder):
            what = f"{len(missing)} of {len(known)} records are missing, and "
            return Finding("records", "", f"{what}{len(surplus)} come too often")
        return None

    def find_resumed(self) -> Finding | None:
        epoch = self.loader.epoch(self.cursor)
        batches, places = [], []
        for batch in epoch:
            batches.append(as_arrays(batch))
            places.append(epoch.cursor)
        if len(batches) < 2:
            return None
        middle = (len(batches) - 1) // 2
        text = Cursor.from_json(places[middle].to_json(), like=places[middle])
        for cursor, how in ((places[middle], "resumed"), (text, "resumed from text")):
            rest = [as_arrays(batch) for batch in self.loader.epoch(cursor)]
            wanted = batches[middle + 1 :]
            found = compare(rest, wanted, self.tolerance, (how, "uninterrupted"))
            if found:
                return found
        return None

    def find_next_epoch(self) -> Finding | None:
        iterator = self.loader.epoch(self.cursor)
        for _ in iterator:
            pass
        end, begin = iterator.cursor, self.cursor.next_epoch()
        if end.epoch != self.cursor.epoch or end.next_epoch().epoch != begin.epoch:
            what = f"{end} does not stand between {self.cursor} and {begin}"
            return Finding("place", "", what)
        got, wanted = (
            [as_arrays(batch) for batch in self.loader.epoch(cursor)]
            + [as_arrays(self.loader.next(cursor)[0])]
            for cursor in (end, begin)
        )
        labels = ("from the end of the one before", "from its beginning")
        return compare(got, wanted, self.tolerance, labels)

    def find_other_batches(self) -> Finding | None:
        options = {"batch_pipe": identity, "drop_remainder": False, "sharding": None}
        one, usual = self.variant(**options, batch_size=1), self.variant(**options)
        single = _joined(list(one.epoch(one.init(self.key))))
        several = _joined(list(usual.epoch(usual.init(self.key))))
        labels = (f"in batches of {self.loader.batch_size}", "in batches of 1")
        return compare(several, single, self.tolerance, labels)

    def find_scanned(self) -> Finding | None:
        if not isinstance(self.loader.source, DeviceSource):
            return None  # a compiled program cannot read it

        def step(carry: Any, batch: PyTree) -> Any:
            arrays = [v for v in jtu.tree_leaves(batch) if hasattr(v, "dtype")]
            return carry + 1, arrays

        count, cursor, loop = jnp.int32(0), self.cursor, []
        for _ in range(2):
            batch, cursor = self.loader.next(cursor)
            count, out = step(count, as_arrays(batch))
            loop.append(out)
        got = self.loader.scan(step, jnp.int32(0), self.cursor, length=2)
        wanted = jtu.tree_map(lambda *v: jnp.stack(v), *loop)
        return compare(got[:2], (count, wanted), self.tolerance, ("scan", "a loop"))


def _joined(batches: list[PyTree]) -> PyTree:
    def join(*leaves: Any) -> Any:
        if hasattr(leaves[0], "dtype"):
            return jnp.concatenate([jnp.asarray(leaf) for leaf in leaves])
        return leaves[0]

    return jtu.tree_map(join, *batches)


def _rows(tree: PyTree) -> list[bytes]:
    """Each record's bytes."""
    leaves = [v for v in jtu.tree_leaves(tree) if hasattr(v, "dtype")]
    arrays = [np.asarray(jr.key_data(v) if is_key_array(v) else v) for v in leaves]
    return [b"".join(v[i].tobytes() for v in arrays) for i in range(len(arrays[0]))]


_LAWS = (
    Law("pure", "the same cursor gives the same batch.", _Trial.find_change),
    Law("records", "an epoch has every record once.", _Trial.find_lost_records),
    Law("resume", "a resumed epoch is the rest of the whole one.", _Trial.find_resumed),
    Law(
        "batches",
        "a record does not depend on the batch size.",
        _Trial.find_other_batches,
    ),
    Law("scan", "`scan` gives what a loop of `next` gives.", _Trial.find_scanned),
    Law("epochs", "the next epoch follows on the end of one.", _Trial.find_next_epoch),
)


def check_loader(
    loader: Loader, *, key: Key | None = None, rtol: Bound = None, atol: Bound = None
) -> None:
    """Checks a loader, and with it a source and the stages of its pipes.

    An epoch has every record of the source once (fewer with `drop_remainder`); the same
    cursor gives the same batch; an epoch resumed in the middle, also from a cursor that
    was text, is the rest of the whole one; what `pipe` gives for a record does not
    depend on the batch size; `scan` gives what a loop of `next` gives; and from the end
    of an epoch the next one follows, as from its own beginning.

    **Arguments:**

    - `loader`: a `Loader`; with few records, as several epochs are read.
    - `key`: for its cursor. (Keyword only.)
    - `rtol`, `atol`: as in `check_stage`. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax.numpy as jnp
        >>> source = ep.ArraySource({"x": jnp.arange(6.0)})
        >>> ept.check_loader(ep.Loader(source, ep.at("x", jnp.sqrt), batch_size=4))
    """
    __tracebackhide__ = True
    function = "testing.check_loader"
    tolerance = tolerance_of(function, rtol, atol)
    check_one_key(function, key)
    if not isinstance(loader, Loader):
        raise type_error(
            function,
            f"`loader` is {describe_value(loader)}.",
            "Give a `Loader(source, pipe, batch_size=...)`.",
        )
    trial = _Trial(loader, jr.key(0) if key is None else key, tolerance)
    check_laws("check_loader", "a loader", _LAWS, trial)
