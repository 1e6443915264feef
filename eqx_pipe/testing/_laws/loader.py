"""The laws of data loaders."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._check import check_key as check_one_key
from ..._data.cursor import Cursor
from ..._data.loader import Loader
from ..._data.source import DeviceSource
from ..._errors import describe_value, message
from ..._stage import identity
from ..._tree import as_arrays
from ..._types import PyTree
from .compare import Finding, compare, raised, same_bits, tolerance_of
from .report import broken


def check_loader(
    loader: Any, *, key: Any = None, rtol: Any = None, atol: Any = None
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
        raise TypeError(
            message(
                function,
                f"`loader` is {describe_value(loader)}.",
                "Give a `Loader(source, pipe, batch_size=...)`.",
            )
        )
    trial = _Loading(loader, jr.key(0) if key is None else key, tolerance)
    for rule, law in (
        ("the same cursor gives the same batch.", trial.pure),
        ("an epoch has every record once.", trial.permutation),
        ("a resumed epoch is the rest of the whole one.", trial.resumed),
        ("a record does not depend on the batch size.", trial.other_batches),
        ("`scan` gives what a loop of `next` gives.", trial.scanned),
        ("the next epoch follows on the end of one.", trial.epochs),
    ):
        try:
            finding = law()
        except Exception as error:
            finding = raised(error, "the loader")
        if finding is not None:
            raise broken("check_loader", f"of a loader: {rule}", "", finding)


class _Loading:
    """A loader at the beginning of its first epoch."""

    def __init__(self, loader: Loader, key: Any, tolerance: Any):
        self.loader, self.key, self.tolerance = loader, key, tolerance
        self.cursor = loader.init(key)

    def variant(self, **changes: Any) -> Loader:
        """The same loader with other settings."""
        settings = {
            "pipe": self.loader.pipe,
            "batch_pipe": self.loader.batch_pipe,
            "batch_size": self.loader.batch_size,
            "shuffle": self.loader.shuffle,
            "drop_remainder": self.loader.drop_remainder,
            "sharding": self.loader.sharding,
        }
        return Loader(self.loader.source, **{**settings, **changes})

    def pure(self) -> Finding | None:
        first, _ = self.loader.next(self.cursor)
        again, _ = self.loader.next(self.cursor)
        ways = ("the second time", "the first time")
        return same_bits(as_arrays(again), as_arrays(first), ways)

    def permutation(self) -> Finding | None:
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

    def resumed(self) -> Finding | None:
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

    def epochs(self) -> Finding | None:
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
        ways = ("from the end of the one before", "from its beginning")
        return compare(got, wanted, self.tolerance, ways)

    def other_batches(self) -> Finding | None:
        options = {"batch_pipe": identity, "drop_remainder": False, "sharding": None}
        one, usual = self.variant(**options, batch_size=1), self.variant(**options)
        single = _joined(list(one.epoch(one.init(self.key))))
        several = _joined(list(usual.epoch(usual.init(self.key))))
        ways = (f"in batches of {self.loader.batch_size}", "in batches of 1")
        return compare(several, single, self.tolerance, ways)

    def scanned(self) -> Finding | None:
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
    data = [
        jr.key_data(v) if jnp.issubdtype(v.dtype, jax.dtypes.prng_key) else v
        for v in leaves
    ]
    arrays = [np.asarray(v) for v in data]
    return [b"".join(v[i].tobytes() for v in arrays) for i in range(len(arrays[0]))]
