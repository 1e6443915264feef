"""Laws to check, and strategies to draw from, in your own test suite.

`import eqx_pipe.testing as ept`. The laws need nothing else; the strategies need
hypothesis: `pip install 'eqx_pipe[testing]'`.
"""

import typing as _typing

from ._laws.compiles import assert_compiles as assert_compiles
from ._laws.dtypes import check_dtype as check_dtype
from ._laws.finite import check_finite as check_finite
from ._laws.function import check_function as check_function
from ._laws.grad import check_grad as check_grad
from ._laws.key import check_key as check_key
from ._laws.loader import check_loader as check_loader
from ._laws.method import check_method as check_method
from ._laws.params import check_params as check_params
from ._laws.programs import check_recompiles as check_recompiles
from ._laws.pure import check_jit as check_jit
from ._laws.pure import check_pure as check_pure
from ._laws.pure import check_struct as check_struct
from ._laws.pure import check_vmap as check_vmap
from ._laws.reducer import check_reducer as check_reducer
from ._laws.rules import check_rules as check_rules
from ._laws.sharding import check_parallelize as check_parallelize
from ._laws.sharding import check_sharding as check_sharding
from ._laws.spaces import check_axis as check_axis
from ._laws.spaces import check_space as check_space
from ._laws.stage import check_stage as check_stage
from ._laws.sweep import check_sweep as check_sweep

if _typing.TYPE_CHECKING:
    from ._lazy import *  # noqa: F403
else:

    def __getattr__(name: str) -> _typing.Any:
        """The strategies: loaded together, with hypothesis, when first asked for."""
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
    "axes",
    "batches",
    "edge_numbers",
    "from_jaxtyping",
    "given_typed",
    "graphs",
    "keys",
    "meshes",
    "pipelines",
    "register_stage",
    "spaces",
    "stages",
    "structs",
    "unregister_stage",
)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_HYPOTHESIS})
