"""Property checks and Hypothesis strategies for your own tests.

`import eqx_pipe.testing as ept`. The checks have no further requirements; the
strategies require Hypothesis: `pip install 'eqx_pipe[testing]'`.
"""

import typing as _typing

from ._laws.axis import check_axis as check_axis
from ._laws.compiles import assert_compiles as assert_compiles
from ._laws.function import check_function as check_function
from ._laws.loader import check_loader as check_loader
from ._laws.method import check_method as check_method
from ._laws.reducer import check_reducer as check_reducer

if _typing.TYPE_CHECKING:
    from ._lazy import *  # noqa: F403
else:

    def __getattr__(name: str) -> _typing.Any:
        """Load the strategies together, with Hypothesis, on first use."""
        if name in _NEED_HYPOTHESIS:
            try:
                import hypothesis  # noqa: F401
            except ImportError as error:
                raise ImportError(
                    f"`eqx_pipe.testing.{name}` needs hypothesis. Install it by "
                    "`pip install 'eqx_pipe[testing]'`."
                ) from error
            from . import _lazy

            return getattr(_lazy, name)
        raise AttributeError(f"module `eqx_pipe.testing` has no attribute `{name}`")


_NEED_HYPOTHESIS = (
    "arguments",
    "arrays",
    "from_jaxtyping",
    "given_typed",
    "keys",
    "pipelines",
    "spaces",
)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_HYPOTHESIS})
