"""The command line: `python -m benchmarks [NAME] [--quick] ...`."""

import argparse
import ast
import importlib
import inspect
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from ._report import Run

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"


def questions() -> dict[str, str]:
    """Return the question of each benchmark: the first line of its docstring.

    Read without importing, as that would import JAX, or a peer that is not there.
    """
    return {
        path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        for path in sorted(FOLDER.glob("*.py"))
        if not path.name.startswith("_")
    }


def parse(argv: list[str], known: dict[str, str]) -> argparse.Namespace:
    """Parse the arguments. Those of a benchmark are the keywords of its `main`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Lists the benchmarks, runs one, or with --quick alone all.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=list(known), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="default: benchmarks/results/NAME"
    )
    own = parser.add_argument_group("of a benchmark")
    own.add_argument(
        "--only", nargs="*", default=[], metavar="TEXT", help="cases with that text"
    )
    own.add_argument("--rounds", type=int)
    own.add_argument("--devices", type=int, help="how many CPU devices JAX has")
    own.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time, which other work on the machine disturbs less",
    )
    if argv and argv[0] in known:
        module = importlib.import_module(f".{argv[0]}", __package__)
        parser.description = inspect.getdoc(module)
        add_options(own, module, "--quick" in argv)
    return parser.parse_args(argv)


def add_options(group, module, quick: bool) -> None:
    smaller = getattr(module, "QUICK", {}) if quick else {}
    for name, default in (module.main.__kwdefaults__ or {}).items():
        default = smaller.get(name, default)
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, tuple):
            group.add_argument(
                flag, nargs="*", type=type(default[0]), default=list(default)
            )
        else:
            group.add_argument(flag, type=type(default), default=default)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    module = importlib.import_module(f".{arguments.name}", __package__)
    devices = arguments.devices or getattr(module, "DEVICES", None)
    if devices is not None:
        import eqx_pipe as ep

        ep.use_cpu_devices(os.cpu_count() if devices == "all" else devices)
    smaller = getattr(module, "QUICK", {}) if arguments.quick else {}
    file = f"{arguments.name}{'-quick' if arguments.quick else ''}.json"
    this = Run(
        arguments.name,
        f"python -m benchmarks {shlex.join(argv)}",
        arguments.rounds or (2 if arguments.quick else getattr(module, "ROUNDS", 21)),
        time.process_time if arguments.cpu_time else time.perf_counter,
        arguments.only or smaller.get("only", ()),
        arguments.quick,
        arguments.json or RESULTS / file,
    )
    own = module.main.__kwdefaults__ or {}
    module.main(this, **{name: getattr(arguments, name) for name in own})
    this.end()
    return int(this.failed)


def run_all(known: dict[str, str]) -> int:
    """Each in a process of its own, since they want different devices."""
    status = 0
    for name, question in known.items():
        print(f"\n== {name}: {question}", flush=True)
        command = [sys.executable, "-m", "benchmarks", name, "--quick"]
        status |= subprocess.run(command, cwd=FOLDER.parent).returncode != 0
    return int(status)


def main(argv: list[str]) -> int:
    known = questions()
    arguments = parse(argv, known)
    if arguments.name is not None:
        return run(arguments, argv)
    if arguments.quick:
        return run_all(known)
    for name, question in known.items():
        print(f"{name:<20} {question}")
    print("\npython -m benchmarks NAME [--help], or --quick for all in little time")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
