"""What hypothesis calls when it is imported: `eqx_pipe`'s types become known to it.

So do two profiles of settings, `eqx_pipe-ci` and `eqx_pipe-thorough`.

This file lies outside of the package and imports neither it nor JAX. So loading
hypothesis stays cheap, and jaxtyping's pytest option works, which must come before the
first import of what it checks. The package looks for this module when it is imported,
and offers its types then.
"""

import sys
from types import ModuleType


def register() -> None:
    """Makes known two profiles, and the types of those modules that are loaded."""
    _register_profiles()
    for name in ("eqx_pipe", "eqx_pipe._later"):
        if name in sys.modules:
            offer(sys.modules[name])


def _register_profiles() -> None:
    """For `pytest --hypothesis-profile`; without a deadline, as compiling is slow."""
    from hypothesis import HealthCheck, settings

    common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(
        "eqx_pipe-ci", max_examples=20, derandomize=True, print_blob=True, **common
    )
    settings.register_profile("eqx_pipe-thorough", max_examples=300, **common)


def offer(module: ModuleType) -> None:
    """Makes known the types that a module of the package holds.

    Their strategies are looked up when one is drawn from.
    """
    import hypothesis.strategies as st

    for name, make in _STRATEGIES.items():
        cls = vars(module).get(name)
        if isinstance(cls, type):
            st.register_type_strategy(cls, lambda _, make=make: make())


def _stage():
    import eqx_pipe.testing as ept

    return ept.structs().flatmap(ept.pipelines)


def _space():
    import eqx_pipe.testing as ept

    return ept.spaces()


def _axis():
    import eqx_pipe.testing as ept

    return ept.axes()


def _axis_of(name: str):
    def make():
        return _axis().filter(lambda axis: type(axis).__name__ == name)

    return make


_AXES = ("Linspace", "Geomspace", "Values", "Random", "Mapped")
_STRATEGIES = {"Stage": _stage, "Space": _space, "Axis": _axis}
_STRATEGIES |= {name: _axis_of(name) for name in _AXES}
