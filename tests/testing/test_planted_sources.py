"""Broken sources and pipes of loaders: each is caught by the law it breaks."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.broken import mixes_lanes
from support.helpers import slow_unless

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(0)


class Source:
    """Numbers on the host, with something broken."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return np.float32(i)


class Forgetful(Source):
    """Gives another record the second time."""

    calls = 0

    def __getitem__(self, i):
        self.calls += 1
        return np.float32(self.calls)


class Reader(Source):
    """Reads on wherever it is, as a file that nobody seeks in."""

    at = -1

    def __getitem__(self, i):
        self.at = (self.at + 1) % 6
        return np.float32(self.at)


class Blocks(Source):
    """Keeps the last block of three records, and forgets the place inside."""

    block = None

    def __getitem__(self, i):
        if self.block == i // 3:
            return np.float32(3 * self.block)
        self.block = i // 3
        return np.float32(i)


class Tired(Source):
    """Gives zeros after a while."""

    calls = 0

    def __getitem__(self, i):
        self.calls += 1
        return np.float32(i if self.calls <= 30 else 0)


_traces = iter(range(10**9))


def counts_its_traces(x):
    return x + jnp.float32(next(_traces))


def loader(source=None, **options):
    source = ep.data.ArraySource(jnp.arange(7.0)) if source is None else source
    return ep.data.Loader(source, **{"batch_size": 2, "shuffle": True, **options})


LOADERS = {
    "another record each time": (lambda: loader(Forgetful()), "same batch"),
    "reads on": (lambda: loader(Reader(), batch_size=4), "same batch"),
    "forgets the place in a block": (lambda: loader(Blocks(), batch_size=1), "once"),
    "gives up after a while": (lambda: loader(Tired(), shuffle=False), ""),
    "mixes records": (lambda: loader(pipe=mixes_lanes), "batch size"),
    "counts its traces": (lambda: loader(pipe=counts_its_traces), ""),
}


@pytest.mark.parametrize(
    "name", slow_unless({*LOADERS} - {"counts its traces"}, LOADERS)
)
def test_a_broken_loader_is_caught(name):
    make, rule = LOADERS[name]
    with pytest.raises(AssertionError, match="check_loader.*of a loader") as caught:
        ept.check_loader(make())
    assert rule in str(caught.value)


def test_an_end_from_which_nothing_follows_is_caught(monkeypatch):
    epoch = ep.data.Loader.epoch

    def ends(loader, cursor):
        return epoch(loader, cursor) if cursor.position < len(loader.source) else ()

    monkeypatch.setattr(ep.data.Loader, "epoch", ends)
    with pytest.raises(AssertionError, match="the next epoch follows on the end"):
        ept.check_loader(loader())


class Late(Source):
    """The record after the one that is asked for, and at the end the first."""

    def __getitem__(self, i):
        return np.float32((i + 1) % 6)


def test_a_source_that_is_off_by_one_is_caught_by_a_reference():
    ept.check_loader(loader(Late()))
    with pytest.raises(AssertionError, match="(?s)`reference` of a loader.*record 0"):
        ept.check_loader(loader(Late()), reference=np.float32)
    ept.check_loader(loader(Source()), reference=np.float32)


class Alike(Source):
    """Two equal records are no error."""

    def __getitem__(self, i):
        return np.float32(min(i, 4))


def test_a_sound_source_is_not():
    ept.check_loader(loader(Alike()))
