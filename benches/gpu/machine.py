"""The machine of a measurement: device, driver, versions and load.

python -m benches.gpu.machine [--json FILE]
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_PACKAGES = ("triton", "transformers", "flash-attn", "flash-attn-4", "numpy", "safetensors")
_ASKED = "driver_version,utilization.gpu,memory.used,memory.total,clocks.sm,power.draw,temperature.gpu"


def describe(device: torch.device) -> dict[str, Any]:
    """Return the facts by which two records are compared; None where a value is not known."""
    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _said("git", "rev-parse", "--short", "HEAD"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "torch": torch.__version__,
    }
    found |= {package: _version(package) for package in _PACKAGES}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory MiB": properties.total_memory >> 20,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
            "before measuring": _state(),
        }
    else:
        found["device"] = f"{platform.machine()} CPU"
    return found


def _state() -> dict[str, str] | None:
    """Return the driver and the load of the first device, as nvidia-smi reports them."""
    said = _said("nvidia-smi", "--id=0", f"--query-gpu={_ASKED}", "--format=csv,noheader")
    values = [] if said is None else said.split(", ")
    return (
        dict(zip(_ASKED.split(","), values, strict=True)) if len(values) == len(_ASKED.split(",")) else None
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _said(*words: str) -> str | None:
    if shutil.which(words[0]) is None:
        return None
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    return ended.stdout.strip().splitlines()[0] if ended.returncode == 0 and ended.stdout.strip() else None


def main() -> int:
    """Print the description, and write it."""
    parser = argparse.ArgumentParser(prog="benches.gpu.machine", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    path = parser.parse_args().json
    text = json.dumps(describe(torch.device("cuda" if torch.cuda.is_available() else "cpu")), indent=2) + "\n"
    sys.stdout.write(text)
    if path is not None:
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
