"""Libraries of the extras, imported when they are first needed."""

import importlib
import importlib.util
from types import ModuleType

from hydraulis.errors import HydraulisError

_TORCH = "torch"


def import_extra(name: str, purpose: str, extra: str = "data") -> ModuleType:
    """Import a module that an extra of the package brings.

    Args:
        name: of the module.
        purpose: what it is needed for.
        extra: the extra that declares it.

    Raises:
        HydraulisError: it is not installed (code `extra_missing`).
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name, purpose, extra, f"cannot be imported ({error})") from error


def require_torch(purpose: str) -> None:
    """Refuse where there is no torch, without the seconds that importing it takes.

    Args:
        purpose: what it is needed for.

    Raises:
        HydraulisError: it is not installed (code `extra_missing`).
    """
    if importlib.util.find_spec(_TORCH) is None:
        raise _missing(_TORCH, purpose, "train", "is not installed")


def _missing(name: str, purpose: str, extra: str, why: str) -> HydraulisError:
    library = name.partition(".")[0]
    message = (
        f"{purpose} needs the library '{library}', which {why}; install it with: "
        f"pip install 'hydraulis[{extra}]'"
    )
    return HydraulisError(message, code="extra_missing")
