"""Libraries of the extra `data`, imported when they are first needed."""

import importlib
from types import ModuleType

from hydraulis.errors import HydraulisError


def extra_module(name: str, purpose: str, extra: str = "data") -> ModuleType:
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
        message = (
            f"{purpose} needs the library '{name.partition('.')[0]}', which cannot be imported ({error}); "
            f"install it with: pip install 'hydraulis[{extra}]'"
        )
        raise HydraulisError(message, code="extra_missing") from error
