"""Entries kept beside objects go with them, and belong to them alone."""

import copy
import gc

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr

from eqx_pipe._cache import WeakCache


def module():
    return eqx.nn.Linear(2, 2, key=jr.key(0))  # it has no hash


def test_an_entry_goes_with_its_object():
    cache, first, second = WeakCache(), module(), module()
    assert cache.get(first) is None
    assert cache.put(first, "a") == "a" and cache.put(second, "b") == "b"
    assert cache.put(first, "c") == "c"
    assert (cache.get(first), cache.get(second), len(cache)) == ("c", "b", 2)
    del first
    gc.collect()
    assert len(cache) == 1 and cache.get(second) == "b"


def test_equal_objects_have_entries_of_their_own():
    cache, owner = WeakCache(), module()
    cache.put(owner, jnp.ones(3))
    assert cache.get(copy.copy(owner)) is None


def test_an_address_that_is_used_again():
    cache = WeakCache()
    for number in range(1000):
        owner = _Owner()
        assert cache.get(owner) is None
        cache.put(owner, number)
        del owner
    assert len(cache) == 0


class _Owner:
    pass


def test_an_entry_outlives_the_one_that_it_replaced():
    cache, owner = WeakCache(), _Owner()
    for number in range(3):
        cache.put(owner, number)
        gc.collect()
        assert cache.get(owner) == number
