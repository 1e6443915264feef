"""Does the model of costs predict the time of a sweep by 1, 2 and 4 workers?

Chunks sleep, since two cores cannot compute for four workers. First it measures the
costs of the model: of a call of `sweep` with warm workers, of a chunk that does not
sleep, and of each megabyte of a function.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import jax
import numpy as np

import eqx_pipe as ep

from ._timing import Spread, spread

ROUNDS = 3
QUICK = {"chunks": 8, "sleep": 0.02, "workers": (1,), "megabytes": 1}
BAR = 1.25


def sleeping(x, seconds):
    """Return the point after a pause, once for each chunk."""

    def pause(x, seconds):
        time.sleep(float(np.max(seconds)))
        return x

    return jax.pure_callback(pause, x, x, seconds, vmap_method="broadcast_all")


def swept(pool, chunks, seconds, array=None):
    """Return the time of a sweep whose chunks have a point each."""

    def fn(p):
        y = sleeping(p["x"], p["seconds"])
        return y if array is None else y + array[0]

    # The pauses are data, so that all sweeps have one program.
    pauses = np.full(chunks, seconds, np.float32)
    axes = {"x": ep.Linspace(0, 1, chunks), "seconds": ep.Values(pauses)}
    space = ep.Space(axes, mode="zip")
    begun = time.perf_counter()
    ep.sweep(fn, space, executor=pool, batch_size=1, progress=False)
    return time.perf_counter() - begun


def main(run, *, chunks=60, sleep=0.2, workers=(1, 2, 4), megabytes=20):
    rng = np.random.default_rng(0)
    for count in workers:
        for case in run.chosen([f"{count} workers"]):
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(count, mp_context=spawn) as pool:
                swept(pool, 16 * count, 0.05)  # start all workers
                alone = [swept(pool, 1, 0) for _ in range(run.rounds + 2)]
                call = float(np.median(alone))
                many = [swept(pool, 32 * count, 0) for _ in range(run.rounds)]
                chunk = max(0.0, float(np.median(many)) - call) / 32
                big = rng.normal(size=megabytes * 250_000).astype(np.float32)
                loaded = swept(pool, 2 * count, 0, big)
                byte = max(0.0, loaded - call - 2 * chunk) / megabytes / count
                taken = [swept(pool, chunks, sleep) for _ in range(run.rounds)]
            expected = call + -(-chunks // count) * (sleep + chunk)
            over = spread([seconds / expected for seconds in taken])
            run.row(
                case=case,
                time_of_call=call,
                time_of_chunk=chunk,
                time_of_megabyte=byte,
                time=float(np.median(taken)),
                time_expected=expected,
                over_expected=over,
            )
            run.bar(f"{case}: time over expected", over, BAR)
            inverse = Spread(1 / over.median, over.deviation / over.median**2)
            run.bar(f"{case}: expected over time", inverse, BAR)
