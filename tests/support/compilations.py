"""How many programs were compiled in this process since this was imported."""

import jax

compiled: list[str] = []
"""An entry for each program."""

jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: (
        compiled.append(event)
        if event == "/jax/core/compile/backend_compile_duration"
        else None
    )
)
