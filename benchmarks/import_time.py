"""How long `import eqx_pipe` takes, over `import equinox`, in fresh processes.

Run as `python benchmarks/import_time.py [repeats]`. Fails above a ratio of 1.10.
"""

import os
import statistics
import subprocess
import sys
import time

LIMIT = 1.10
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE"}


def seconds(module: str) -> float:
    """The time from start to end of a process that imports `module`."""
    # Bytecode is kept, as it is where a package was installed.
    environment = {k: v for k, v in os.environ.items() if k not in NO_BYTECODE}
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", f"import {module}"], check=True, env=environment
    )
    return time.perf_counter() - begin


def main(repeats: int) -> None:
    modules = ["equinox", "eqx_pipe"]
    times = {module: [] for module in modules}
    for module in modules:
        seconds(module)  # the first import compiles to bytecode
    for i in range(repeats):
        for module in modules if i % 2 else reversed(modules):
            times[module].append(seconds(module))
    medians = {module: statistics.median(times[module]) for module in modules}
    for module, median in medians.items():
        print(f"import {module:<10} {median:.3f} s, median of {repeats}")
    ratio = medians["eqx_pipe"] / medians["equinox"]
    print(f"ratio {ratio:.3f} (at most {LIMIT})")
    if ratio > LIMIT:
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
