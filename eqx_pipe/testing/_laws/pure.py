"""The law that a function depends only on its arguments, and changes nothing."""

from typing import Any

from .compare import agree
from .held import held
from .law import Broken, law, must_work
from .trial import Trial


@law("pure", "the same arguments give the same bits, and a call changes nothing.")
def pure_law(trial: Trial) -> None:
    first = trial.plain
    with must_work("reading the arguments after a call"):  # fails if one was donated
        _changed_nothing(trial)
    again, _ = trial.again
    agree(again, first, ("the second time", "the first time"))
    # Traced as well: a function that stores a tracer would fail later, elsewhere.
    _ = trial.trace_error
    _changed_nothing(trial)


def _changed_nothing(trial: Trial) -> None:
    """Raise `Broken` if the calls changed an argument or the function."""
    try:
        agree(trial.given, trial.call.args, ("after the call", "before"))
    except Broken as how:
        what = f"a call changed its arguments: {how.what}"
        raise Broken(what, how.leaf) from None
    before: dict[str, Any] = trial.before
    after = held(trial.call.fn)
    for name in (*after, *before):
        if name not in before or name not in after or before[name] != after[name]:
            raise Broken(
                f"a call changed `fn{name}`; return what later calls need, or keep it "
                "in an `equinox.nn.State` (a cache: `functools.cache`)"
            )
