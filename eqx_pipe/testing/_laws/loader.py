"""The laws of data loaders."""

import collections
import dataclasses
import functools as ft
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from ..._check import check_is
from ..._data import Cursor, Loader
from ..._keys import check_key
from ..._stage import identity
from ..._tree import as_arrays
from ..._types import Key, PyTree
from .law import (
    USUAL,
    Broken,
    agree,
    agree_with_reference,
    as_numpy,
    check_laws,
    check_reference,
    law,
)


@dataclasses.dataclass(frozen=True)
class LoaderTrial:
    """A loader at the beginning of its first epoch."""

    loader: Loader
    key: Key
    reference: Callable[[int], PyTree] | None = None

    @ft.cached_property
    def cursor(self) -> Cursor:
        return self.loader.init(self.key)

    def records(self, **changes: Any) -> PyTree:
        """Return the records of an epoch, in one batch, with changed settings."""
        names = inspect.signature(Loader).parameters
        settings = {name: getattr(self.loader, name) for name in names}
        whole = {"batch_pipe": identity, "drop_remainder": False, "sharding": None}
        loader = Loader(**{**settings, **whole, **changes})

        def join(*leaves: Any) -> Any:
            return jnp.concatenate(leaves) if eqx.is_array(leaves[0]) else leaves[0]

        batches = map(as_arrays, loader.epoch(loader.init(self.key)))
        return jtu.tree_map(join, *batches)

    @law("pure", "the same cursor gives the same batch.")
    def pure_law(self) -> None:
        first, _ = self.loader.next(self.cursor)
        again, _ = self.loader.next(self.cursor)
        labels = ("the second time", "the first time")
        agree(as_arrays(again), as_arrays(first), labels)

    @law("records", "an epoch has every record once.")
    def records_law(self) -> None:
        as_it_is = {n: getattr(self.loader, n) for n in ("drop_remainder", "sharding")}
        found = _rows(self.records(pipe=identity, **as_it_is))
        known = _rows(self.records(pipe=identity, batch_size=1, shuffle=False))
        missing, surplus = (known - found).total(), (found - known).total()
        if surplus or (missing and not self.loader.drop_remainder):
            what = f"{missing} of {known.total()} records are missing, and "
            raise Broken(f"{what}{surplus} occur too often")

    @law("reference", "its records agree with the reference, in order.")
    def reference_law(self) -> None:
        if self.reference is None:
            return
        records = self.records(pipe=identity, shuffle=False, batch_size=1)
        for i in range(len(jtu.tree_leaves(records)[0])):
            got = jtu.tree_map(lambda v, i=i: v[i], records)
            wanted, where = self.reference(i), f"in record {i}"
            agree_with_reference(got, wanted, where)

    @law("resume", "a resumed epoch is the rest of the whole one.")
    def resume_law(self) -> None:
        epoch = self.loader.epoch(self.cursor)
        batches, places = [], []
        for batch in epoch:
            batches.append(as_arrays(batch))
            places.append(epoch.cursor)
        if len(batches) < 2:
            return
        middle = (len(batches) - 1) // 2
        rest = list(map(as_arrays, self.loader.epoch(places[middle])))
        labels = ("resumed", "uninterrupted")
        agree(rest, batches[middle + 1 :], labels, USUAL)

    @law("batches", "a record does not depend on the batch size.")
    def batches_law(self) -> None:
        single, several = self.records(batch_size=1), self.records()
        labels = (f"in batches of {self.loader.batch_size}", "in batches of 1")
        agree(several, single, labels, USUAL)


def _rows(tree: PyTree) -> collections.Counter[bytes]:
    """Count each record, by its bytes."""
    arrays = [as_numpy(v) for v in jtu.tree_leaves(tree) if eqx.is_array(v)]
    rows = [b"".join(v[i].tobytes() for v in arrays) for i in range(len(arrays[0]))]
    return collections.Counter(rows)


def check_loader(
    loader: Loader,
    *,
    key: Key | None = None,
    reference: Callable[[int], PyTree] | None = None,
) -> None:
    """Check a loader, including its source and the stages of its pipes.

    The laws: an epoch has every record of the source once (fewer with
    `drop_remainder`); the same cursor gives the same batch; an epoch resumed in the
    middle has the remaining batches of the whole epoch; and the output of `pipe` for a
    record does not depend on the batch size.

    **Arguments:**

    - `loader`: a `Loader` with few records, since several epochs are read.
    - `key`: a PRNG key for the cursor; by default `jax.random.key(0)`. (Keyword only.)
    - `reference`: a function from an index, an `int`, to the record of the source
        there, before any pipe, which detects a source with an off-by-one error.
        (Keyword only.)

    **Raises:** `AssertionError` if a law is broken; `TypeError` if `loader` is not a
    `Loader`.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.arange(6.0)})
        >>> ept.check_loader(ep.data.Loader(source, ep.at("x", jnp.sqrt), batch_size=4))
    """
    __tracebackhide__ = True
    function = "testing.check_loader"
    check_reference(function, reference)
    check_key(function, key)
    cure = "Give a `Loader(source, pipe, batch_size=...)`."
    check_is(function, "loader", loader, Loader, cure)
    own_key = jr.key(0) if key is None else key
    check_laws("check_loader", "a loader", LoaderTrial(loader, own_key, reference))
