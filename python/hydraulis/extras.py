"""Optional libraries: imported on first use, and refused with the extra to install."""

import importlib
import importlib.util
from types import ModuleType

from hydraulis.errors import HydraulisError

_TORCH = "torch"


def import_extra(name: str, purpose: str, extra: str = "data") -> ModuleType:
    """Import a module of an optional library.

    Args:
        name: Dotted name of the module.
        purpose: The feature or file that needs it, for the message.
        extra: The extra of the package that installs the library.

    Raises:
        HydraulisError: The library is not installed or cannot be imported (code `extra_missing`).
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name, purpose, extra, f"cannot be imported ({error})") from error


def require_torch(purpose: str) -> None:
    """Check that torch is installed, without the seconds of an import.

    Args:
        purpose: The feature that needs torch, for the message.

    Raises:
        HydraulisError: torch is not installed (code `extra_missing`).
    """
    if importlib.util.find_spec(_TORCH) is None:
        raise _missing(_TORCH, purpose, "train", "is not installed")


def _missing(name: str, purpose: str, extra: str, reason: str) -> HydraulisError:
    library = name.partition(".")[0]
    message = (
        f"{purpose} needs the library '{library}', which {reason}; install it with: "
        f"pip install 'hydraulis[{extra}]'"
    )
    return HydraulisError(message, code="extra_missing")
