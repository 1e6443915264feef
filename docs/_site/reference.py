"""Write `docs/api/`: `python docs/_site/reference.py`.

A page has a section for each concept of a module, or of a part of `eqx_pipe`: a table
of its names, with the first lines of their docstrings and links to the source, so that
it can be read without building the site, and then what the site replaces by docstrings.
`tests/package/test_house.py` compares the pages with the code.
"""

import importlib
import inspect
from pathlib import Path

import eqx_pipe

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "api"
CONCEPTS = {
    "compose": {
        "One after the other, side by side": "chain parallel residual weighted gated",
        "Choices": "cond switch",
        "Layers, steps, batches, members": "repeat scan batched ensemble",
        "Several inputs": "graph feed at",
        "Parameters": "trainable frozen tied precision",
        "Look inside": "summary outputs Summary",
        "Stages and their errors": "Stage Composite StructureError SweepError "
        "MissingKeyError",
    },
    "sweep": {
        "Run": "sweep train Training vmap vmap_space sweeper Sweeper kernel refill "
        "use_cpu_devices",
        "Results": "SweepResult Best TrainResult show Page",
        "Spaces": "Space sobol",
        "Axes": "Linspace Geomspace Values Static Seeds Random Uniform LogUniform "
        "Mapped Axis",
        "Before a run": "plan SweepPlan plan_train program ProgramPlan topology",
    },
    "search": {
        "Searches": "explore SearchResult Optuna Evosax Adaptive Design Method",
        "Schedulers of trainings": "Halving PBT Population",
    },
    "reduce": {
        "Moments": "Mean Var Sum",
        "Extremes": "Min Max ArgMin ArgMax TopK Extreme",
        "Distributions": "Histogram Quantile",
        "Your own": "Reducer",
    },
    "sharding": {
        "Place arrays": "AxisRules shard init_sharded constrain",
        "Run on meshes": "parallelize pipelined on",
    },
    "data": {"Batches": "Loader ArraySource Cursor Epoch"},
    "testing": {
        "Checks": "check_function check_axis check_reducer check_loader check_method "
        "assert_compiles",
        "Arguments and strategies": "given_typed arguments arrays from_jaxtyping keys",
    },
}
"""The sections of each page, and the names in them, in their order."""

TITLES = {
    "compose": "Composing",
    "sweep": "Sweeps and trainings",
    "search": "Searches",
    "reduce": "Reductions",
    "sharding": "Sharding",
    "data": "Data",
    "testing": "Tests of your own code",
}
STAGES = ("_compose", "_stage", "_errors")
"""The packages whose names are on the page `compose`."""

RETURNED = {
    *("Best", "Composite", "Cursor", "Epoch", "Extreme", "Page", "Population"),
    *(
        "SearchResult",
        "Summary",
        "SweepPlan",
        "SweepResult",
        "Sweeper",
        "TrainResult",
    ),
}
"""Classes that users get from functions, and do not construct."""

BASES = {"Points"}
"""Classes whose methods are listed with those of the public class that extends them."""


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    return {f"{page}.md": page_of(page) for page in TITLES}


def page_of(page: str) -> str:
    """Return a page: for each concept a table, then what the site replaces."""
    intro = (
        "The links of a table lead to the docstrings on the site, and to the source in "
        "the\nrepository."
    )
    parts = [f"# {TITLES[page]}\n\n{intro}\n"]
    for concept, found in sections(page).items():
        rows = [row(call(path, value), value) for path, value in found]
        table = "\n".join(
            ["| call, without its options | purpose |", "|---|---|", *rows]
        )
        blocks = "\n".join(block(path, value) for path, value in found)
        parts.append(f"## {concept}\n\n{table}\n\n{blocks}")
    return "\n".join(parts)


def block(path: str, value: object) -> str:
    """Return what the site replaces by the docstring of a name.

    The path of the definition: a public path such as `eqx_pipe.chain` leads to the file
    `chain.py` if it has the name of its function. Links use the public path, an anchor.
    """
    defined = f"{value.__module__}.{path.rpartition('.')[2]}"
    anchor = f"[](){{#{path}}}\n\n" if path != defined else ""
    return f"{anchor}::: {defined}\n{options(value)}"


def sections(page: str) -> dict[str, list[tuple[str, object]]]:
    """Return the path and value of each name by its concept."""
    found = {path.rpartition(".")[2]: (path, value) for path, value in entries(page)}
    names = {c: text.split() for c, text in CONCEPTS[page].items()}
    if lacking := found.keys() - {name for listed in names.values() for name in listed}:
        raise ValueError(f"list {sorted(lacking)} in `CONCEPTS[{page!r}]`")
    return {c: [found[n] for n in listed if n in found] for c, listed in names.items()}


def entries(page: str) -> list[tuple[str, object]]:
    """Return the path and value of each public name of a page."""
    if page in ("compose", "sweep"):
        values = {n: getattr(eqx_pipe, n) for n in eqx_pipe.__all__}
        values = {n: v for n, v in values.items() if not inspect.ismodule(v)}
        values = {n: v for n, v in values.items() if on_page(v) == page}
        found = [(f"eqx_pipe.{n}", v) for n, v in values.items()]
    else:
        module = importlib.import_module(f"eqx_pipe.{page}")
        values = {n: getattr(module, n) for n in dir(module) if not n.startswith("_")}
        values = {n: v for n, v in values.items() if not inspect.ismodule(v)}
        found = [(f"eqx_pipe.{page}.{n}", v) for n, v in values.items()]
    found += returned([value for _, value in found], page)
    return found


def returned(values: list[object], page: str) -> list[tuple[str, object]]:
    """Return the classes of a page that functions and methods give, not imported."""
    calls = [m for value in values for _, m in methods(value)] + values
    kinds: set[type] = set()
    for call in filter(inspect.isfunction, calls):
        kind = inspect.signature(call).return_annotation
        if inspect.isclass(kind) and kind.__module__.startswith("eqx_pipe._"):
            # All combinators share their methods.
            base = [k for k in kind.__mro__ if k.__name__ == "Composite"]
            kinds.add((base or [kind])[0])
    others = [k for k in kinds if k.__name__ in RETURNED and k not in values]
    others = [k for k in others if on_page(k) == page]
    return [(f"{k.__module__}.{k.__name__}", k) for k in others]


def on_page(value: object) -> str:
    """Return the page of a name of `eqx_pipe` itself, or of a class not imported."""
    package = value.__module__.split(".")[1]
    if package in STAGES:
        return "compose"
    return package[1:] if package[1:] in TITLES else "sweep"


def methods(value: object) -> list[tuple[str, object]]:
    """Return the public methods and properties that a class itself documents."""
    if not inspect.isclass(value):
        return []
    own = [k for k in value.__mro__ if k is value or k.__name__ in BASES]
    members = {n: m for kind in own for n, m in vars(kind).items()}
    found = {n: getattr(m, "__func__", m) for n, m in members.items()}
    kinds = (property, type(inspect.isclass))
    return [
        (name, member)
        for name, member in found.items()
        if isinstance(member, kinds) and member.__doc__ and not name.startswith("_")
    ]


def options(value: object) -> str:
    """Return the options of an entry for the site.

    It shows the methods of `BASES`, and no constructors that users do not call.
    """
    names = {k.__name__ for k in getattr(value, "__mro__", ())}
    shown = ["inherited_members: true"] * bool(names & BASES)
    if getattr(value, "__name__", "") in RETURNED:
        shown.append("merge_init_into_class: false")
    lines = [f"      {line}\n" for line in shown]
    return "".join(["    options:\n", *lines]) if shown else ""


def call(path: str, value: object) -> str:
    """Return the shortest call of a name, as one types it."""
    name = path.rpartition(".")[2]
    short = path.replace("eqx_pipe.testing.", "ept.").replace("eqx_pipe.", "ep.")
    if short.startswith("ep._"):  # users do not import it
        short = name
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if name in RETURNED or not callable(value):
        return f"`{short}`"
    if inspect.isclass(value) and (
        issubclass(value, Exception) or inspect.isabstract(value)
    ):
        return f"`{short}`"
    needed = []
    for p in inspect.signature(value).parameters.values():
        if p.kind is inspect.Parameter.VAR_POSITIONAL:
            needed.append(f"*{p.name}")
        elif p.kind not in kinds and p.default is p.empty:
            keyword = p.kind is inspect.Parameter.KEYWORD_ONLY
            needed.append(f"{p.name}=" if keyword else p.name)
    return f"`{short}({', '.join(needed)})`"


def row(name: str, value: object) -> str:
    """Return a row of a table: a linked name, and the first line of its docstring."""
    summary = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    # The strategies of hypothesis have no source of their own, but a module.
    source = Path(importlib.import_module(value.__module__).__file__)
    link = Path("../..", source.relative_to(ROOT))
    return f"| [{name}]({link.as_posix()}) | {summary} |"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
