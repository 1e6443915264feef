"""The path of the stage that failed, which each level adds to an error (`locate`)."""

from .._errors import MissingKeyError

_NOTE = "In eqx_pipe stage "


def is_located(error: BaseException) -> bool:
    """Return whether the error already passed through a pipeline (`locate`)."""
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", []))


def locate(error: BaseException, segment: str) -> None:
    """Record on `error` that it passed through the child `segment`.

    Called once per level while the error propagates, innermost first, so the path is
    complete at the pipeline that the user called, also if there is another module
    between two pipelines. The path is shown as a note below the traceback.
    """
    if isinstance(error, MissingKeyError):
        error.path = f"{segment}.{error.path}" if error.path else segment
        return
    notes = getattr(error, "__notes__", [])
    path = segment
    for note in notes:
        if note.startswith(_NOTE):
            path = f"{segment}.{note[len(_NOTE) :].strip('`')}"
            notes.remove(note)
            break
    error.add_note(f"{_NOTE}`{path}`")
