"""The peak memory of a sweep of a cheap function, and how long it takes.

Each side and number of points in a process of its own: ours, by hand on a grid that is
held (`shard_map`), and tvboptim. Run: `python benchmarks/sweep_memory.py [points ...]`,
with `pip install 'eqx_pipe[bench]'`; `labelled` instead of numbers labels and stores a
result of ten million points.
"""

import os

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}"
)

import math
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time

SIZES = [10**6, 10**7, 10**8]


def sides(size):
    """Two axes, one formula, one float32 for each point."""
    from peer_cases import cheap
    from peers import by_shard_map, by_tvboptim, ours

    slow = 10 ** (int(math.log10(size)) // 2)
    axes = {"a": (0.01, 1.0, slow), "b": (0.1, 0.9, size // slow)}
    case = cheap()._replace(axes=axes)
    return {
        "sweep": lambda: ours(case, "auto"),
        "shard_map": lambda: by_shard_map(case, 16_384),
        "tvboptim": lambda: by_tvboptim(case, 16_384),
    }


def mebibytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(side, size):
    start = time.perf_counter()
    kept = sides(size)[side]()()
    took = time.perf_counter() - start
    print(f"{side:10s}{size:>13,}{mebibytes():8.0f} MiB{took:8.2f} s", flush=True)
    del kept


class Resident:
    """The peak of this process's memory while a block runs, and how long it took."""

    def __enter__(self):
        self._end = threading.Event()
        self.peak = self._now()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.start
        self._end.set()
        self._thread.join()

    def _watch(self):
        while not self._end.wait(0.01):
            self.peak = max(self.peak, self._now())

    def _now(self):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def labelled(size=10**7):
    """What is done with a result, after the sweep."""
    import eqx_pipe as ep

    folder = tempfile.mkdtemp()
    space = {"a": ep.Linspace(0.01, 1, 1000), "b": ep.Linspace(0.1, 0.9, size // 1000)}
    zipped = ep.Space(
        {"a": ep.Linspace(0, 1, size), "b": ep.Geomspace(1, 9, size)}, mode="zip"
    )
    results = {}

    def fn(p):
        return p["a"] * p["b"]

    def report(what, work):
        with Resident() as used:
            before = used.peak
            kept = work()
        print(
            f"{what:34s}{used.seconds:8.2f} s{before:8.0f} MiB before"
            f"{used.peak - before:8.0f} MiB more",
            flush=True,
        )
        del kept

    print(f"{size:,} points of one float32 ({size * 4 / 2**20:.0f} MiB)")
    try:
        for name, own in (("product", space), ("zip", zipped)):
            report(f"{name}: sweep", lambda o=own: results.update(r=ep.sweep(fn, o)))
            result = results["r"]
            report(f"{name}: repr", lambda r=result: repr(r))
            report(f"{name}: grid", lambda r=result: r.grid())
            report(f"{name}: best", lambda r=result: r.best())
            report(f"{name}: to_xarray", lambda r=result: r.to_xarray())
            report(f"{name}: to_pandas", lambda r=result: r.to_pandas())
            report(f"{name}: space.to_pandas", lambda r=result: r.space.to_pandas())
            at = f"{folder}/{name}"
            report(f"{name}: save", lambda r=result, a=at: r.save(a + ".zarr"))
            report(f"{name}: load", lambda a=at: ep.load_result(a + ".zarr").values)
            store = at + "-store.zarr"
            report(
                f"{name}: sweep into a store",
                lambda o=own, s=store: results.update(r=ep.sweep(fn, o, store=s)),
            )
            report(f"{name}: values of the store", lambda: results["r"].values)
            report(f"{name}: best of the store", lambda: results["r"].best())
            report(
                f"{name}: resume (nothing left)",
                lambda o=own, s=store: ep.sweep(fn, o, store=s),
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:] == ["labelled"]:
        labelled()
    else:
        for size in sys.argv[1:] or SIZES:
            for side in ("sweep", "shard_map", "tvboptim"):
                command = [sys.executable, __file__, "--one", side, str(size)]
                subprocess.run(command, check=True)
