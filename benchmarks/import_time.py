"""How much longer does `import eqx_pipe` take than `import equinox`?

Each in a fresh process. The bar is a ratio of 1.10.
"""

import functools
import os
import subprocess
import sys

from ._timing import ratio

ROUNDS = 20
BAR = 1.10


def imported(module):
    # Bytecode is kept, as it is where a package was installed.
    unset = "PYTHONDONTWRITEBYTECODE"
    environment = {k: v for k, v in os.environ.items() if k != unset}
    command = [sys.executable, "-c", f"import {module}"]
    subprocess.run(command, check=True, env=environment)


def main(run):
    modules = ("equinox", "eqx_pipe")
    sides = {module: functools.partial(imported, module) for module in modules}
    times = run.compare("import", sides, to="equinox")
    run.bar("eqx_pipe over equinox", ratio(times, "eqx_pipe", "equinox"), BAR)
