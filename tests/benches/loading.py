"""The scripts of `benches/` as modules."""

import importlib.util
from types import ModuleType

from helpers import ROOT


def load_script(name: str) -> ModuleType:
    """Load a script of `benches/` by its name, again at each call."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benches/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
