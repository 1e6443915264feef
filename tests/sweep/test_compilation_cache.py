"""JAX's compilation cache on disk keeps the programs of sweeps for the next process."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax, jax.numpy as jnp, jax.random as jr
import eqx_pipe as ep

counts = {"hits": 0, "misses": 0}

def count(event, **_):
    for name in counts:
        counts[name] += event == f"/jax/compilation_cache/cache_{name}"

jax.monitoring.register_event_listener(count)

def fn(p, key):
    x = jax.lax.while_loop(lambda x: x < p["b"], lambda x: 2 * x + 1, p["a"])
    return x + jr.normal(key)

space = {"a": ep.Linspace(0, 1, 7), "b": ep.Values([1.0, 2.0, 3.0])}
ep.sweep(fn, space, key=jr.key(0))
ep.sweep(fn, space, key=jr.key(0), reduce=ep.reduce.Var(), batch_size=4)
choices = {"f": ep.Static([jnp.sin, jnp.cos]), "x": space["a"]}
ep.sweep(lambda p: p["f"](p["x"]), choices)
print(counts["hits"], counts["misses"])
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    settings = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", PROGRAM]
    said = [
        subprocess.run(
            command, env=settings, check=True, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    first, second = ([int(n) for n in one.stdout.split()] for one in said)
    assert first[1] > 4
    assert second == [first[0] + first[1], 0]


WORKERS = """
import collections, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import jax, jax.numpy as jnp
import eqx_pipe as ep

counts = collections.Counter()

def listen():
    jax.monitoring.register_event_listener(lambda event, **_: counts.update([event]))

def counted():
    folder = "/jax/compilation_cache/cache"
    return counts[f"{folder}_hits"], counts[f"{folder}_misses"]

def fn(x):
    return jax.lax.while_loop(lambda x: x < 3, lambda x: 2 * x + 1, x)

if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])  # not for workers
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        with ProcessPoolExecutor(1, mp_context=spawn, initializer=listen) as pool:
            ep.sweep(fn, ep.Linspace(0, 1, 7), executor=pool)
            print(*pool.submit(counted).result())
"""


@pytest.mark.slow
def test_workers_use_the_cache_of_the_caller(tmp_path):
    settings = {
        **os.environ,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    del settings["JAX_COMPILATION_CACHE_DIR"]
    script = tmp_path / "script.py"
    script.write_text(WORKERS)
    command = [sys.executable, script, tmp_path / "programs"]
    (tmp_path / "programs").mkdir()
    said = subprocess.run(
        command, env=settings, check=True, capture_output=True, text=True
    )
    first, second = (line.split() for line in said.stdout.splitlines())
    assert int(first[1]) > 0
    assert int(second[0]) > 0 and second[1] == "0"
