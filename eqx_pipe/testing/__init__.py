"""Property checks and Hypothesis strategies for your own tests.

`import eqx_pipe.testing as ept`. The checks have no further requirements; the
strategies require Hypothesis: `pip install 'eqx_pipe[testing]'`.
"""

import typing as _typing

from .._errors import optional as _optional
from ._laws.extensions import check_axis as check_axis
from ._laws.extensions import check_loader as check_loader
from ._laws.extensions import check_method as check_method
from ._laws.extensions import check_reducer as check_reducer
from ._laws.function import check_function as check_function
from ._laws.law import assert_compiles as assert_compiles

_STRATEGIES = "arguments", "arrays", "from_jaxtyping", "given_typed"

if _typing.TYPE_CHECKING:
    from ._strategies import arguments as arguments
    from ._strategies import arrays as arrays
    from ._strategies import from_jaxtyping as from_jaxtyping
    from ._strategies import given_typed as given_typed
else:

    def __getattr__(name: str) -> _typing.Any:
        """Load the strategies together, with Hypothesis, on first use."""
        if name not in _STRATEGIES:
            raise AttributeError(f"module `eqx_pipe.testing` has no attribute `{name}`")
        _optional(f"testing.{name}", "hypothesis", "testing")
        from . import _strategies

        return getattr(_strategies, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_STRATEGIES})
