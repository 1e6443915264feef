"""The version of jaxlib: what CPUs run well, or at all, depends on it."""

from jaxlib.version import __version__ as JAXLIB


def jaxlib_version() -> tuple[int, ...]:
    """The numbers of the version, without a suffix like `dev`."""
    return tuple(int(n) for n in JAXLIB.split(".")[:3] if n.isdecimal())
