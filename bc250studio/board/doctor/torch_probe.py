"""Asked of the runner's Python by path, so that it needs nothing of ours: which torch, which chip, does it compute?

Prints one JSON object a line: facts first, then the result of a launch, since a torch without code for the
chip may abort the whole process (hipErrorNoBinaryForGpu) instead of raising.
"""

from __future__ import annotations

import json
import sys


def mapped(*names: str) -> list[str]:
    """Files mapped into this process whose base name starts with one of ``names``."""
    found = set()
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip("\n").split(maxsplit=5)[-1]
                if path.startswith("/") and path.rpartition("/")[2].startswith(names):
                    found.add(path)
    except OSError:
        pass
    return sorted(found)


def say(record: dict[str, object]) -> None:
    """One line, at once."""
    print(json.dumps(record), flush=True)


def main() -> None:
    """Facts, then a launch."""
    try:
        import torch
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}", "python": sys.version.split()[0]})
        return
    facts: dict[str, object] = {
        "python": sys.version.split()[0],
        "version": torch.__version__,
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "folder": torch.__path__[0],
        "available": torch.cuda.is_available(),
        "arch_list": torch.cuda.get_arch_list(),
    }
    if facts["available"]:
        properties = torch.cuda.get_device_properties(0)
        facts["device"] = properties.name
        facts["arch"] = getattr(properties, "gcnArchName", "").partition(":")[0]
        facts["memory_mib"] = properties.total_memory >> 20
    say(facts)
    device = "cuda" if facts["available"] else "cpu"
    try:
        x = torch.arange(64 * 64, dtype=torch.float32).reshape(64, 64).remainder(7).to(device)
        right = float((x @ x).sum()) == float((x.cpu().double() @ x.cpu().double()).sum())
        say({"launched": True, "right": right, "mapped": mapped("librocblas", "libhipblaslt", "libamdhip64")})
    except Exception as error:
        say({"launched": False, "launch_error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"})


if __name__ == "__main__":
    main()
