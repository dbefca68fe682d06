"""Replaces a function or a class of a framework in every module that imported it by name."""

import importlib
import sys
from typing import Any

from hydraulis.errors import HydraulisError

_NOTHING = object()


def replace(module: str, name: str, replacement: Any, *, needs: str) -> list[str]:
    """Replace an object in its module, and in the loaded modules of its package that imported it.

    Args:
        module: Name of the module that later imports take the object from.
        name: Name of the object.
        replacement: Object in its place.
        needs: Packages to install where the module is missing, with their version.

    Returns:
        Names of the modules that have the replacement now.

    Raises:
        HydraulisError: The module or a library that it needs is missing (code `extra_missing`).
    """
    try:
        original = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        message = f"{module}.{name} is missing ({error}); install {needs}"
        raise HydraulisError(message, code="extra_missing") from error
    package = module.partition(".")[0]
    loaded = [one for one in list(sys.modules) if one.partition(".")[0] == package]
    # An import that was blocked leaves None.
    held = {one: getattr(sys.modules[one], "__dict__", {}).get(name, _NOTHING) for one in loaded}
    found = [one for one, value in held.items() if value is original or value is replacement]
    for one in found:
        setattr(sys.modules[one], name, replacement)
    return found
