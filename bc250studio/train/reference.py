"""Reference log-probabilities for the proof: ``python -m bc250studio.train.reference JOBDIR``.

Torch computes, on held-out rows, what the server must answer if it serves what was trained. Written before the
server starts, so that model and server need not share the board's memory. Variants (64 most probable ids and
their log-probabilities at each position):

``served_adapter``   the served file's own dequantised weights + the adapter: is it the same adapter?
``served_base``      the same weights, adapter off
``trained_adapter``  the weights trained on + the adapter: what quantisation of the base costs
``merged_file``      a merged file's own weights, when one was written: what quantisation of the merge costs
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as to_safetensors

from bc250studio import data, paths
from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.models import find, load
from bc250studio.train import adapters
from bc250studio.train.families import Parts

FILE = "reference.safetensors"
RESULT = "checkpoints/reference_result.json"
KEPT = 64
"""Ids kept at each position; the proof compares the server's 20 and lumps the rest."""


def choose_positions(rows: Any, tokens: int) -> tuple[list[int], list[tuple[int, int]]]:
    """(rows used, [(which of them, position)]): ``tokens`` labelled positions, spread over as many rows as there are.

    A position p >= 1 asks for token p from the tokens before it. Rows in order, every labelled position of a row
    before the next row, so that a server's prompt cache is of use; when one row would take more than its share, it
    is cut at the share.
    """
    labelled = [np.flatnonzero(np.asarray(rows.row(i)[1])) for i in range(len(rows))]
    labelled = [found[found >= 1] for found in labelled]
    usable = [i for i, found in enumerate(labelled) if len(found)]
    if not usable:
        return [], []
    # A share that uses up to 16 rows when there are that many.
    share = max(-(-tokens // min(len(usable), 16)), 1)
    used: list[int] = []
    chosen: list[tuple[int, int]] = []
    for limit in (share, None):  # a second round takes whole rows when short ones left some over
        used, chosen = [], []
        for i in usable:
            if len(chosen) >= tokens:
                break
            take = labelled[i][: limit if limit is None else min(limit, tokens)][: tokens - len(chosen)]
            chosen += [(len(used), int(p)) for p in take]
            used.append(i)
        if len(chosen) >= tokens:
            break
    return used, chosen


@torch.no_grad()
def top_log_probabilities(
    parts: Parts, sequences: list[np.ndarray], chosen: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32 [P, 64], log-probabilities float32 [P, 64]), most probable first."""
    device = parts.head.weight.device
    ids = np.zeros((len(chosen), KEPT), dtype=np.int32)
    logp = np.zeros((len(chosen), KEPT), dtype=np.float32)
    for number, sequence in enumerate(sequences):
        places = [k for k, (s, _) in enumerate(chosen) if s == number]
        positions = torch.tensor([chosen[k][1] - 1 for k in places], device=device)
        tokens = torch.from_numpy(sequence.astype(np.int64))[None, : chosen[places[-1]][1]].to(device)
        hidden = parts.body(input_ids=tokens, use_cache=False).last_hidden_state[0, positions]
        for start in range(0, len(places), 128):
            part = torch.log_softmax(parts.head.logits(hidden[start : start + 128]), -1).topk(KEPT, -1)
            rows = places[start : start + 128]
            ids[rows] = part.indices.to(torch.int32).cpu().numpy()
            logp[rows] = part.values.float().cpu().numpy()
    return ids, logp


class Reference:
    """Everything for one job: which files, which rows, which variants."""

    def __init__(self, job: JobFolder) -> None:
        self.job = job
        self.profile = job.profile().profile
        self.device = load.choose_device(self.profile.model.device)
        outputs = dict(job.stage("export").get("outputs") or {})
        self.base_gguf = Path(str(outputs.get("base_gguf") or ""))
        self.merged = Path(str(outputs["merged_gguf"])) if outputs.get("merged_gguf") else None
        if self.merged is not None and not self.merged.is_absolute():
            self.merged = job.path / self.merged
        trained = dict(job.stage("train").get("outputs") or {})
        self.adapter = job.path / str(trained["adapter"]) if trained.get("adapter") else None
        self.full = job.path / str(trained["model"]) if trained.get("model") else None
        if not self.base_gguf.is_file() and self.merged is None:
            raise BadInput(f"{job.name} has no exported base file to compare with; run its export stage first.")
        if self.adapter is None and self.full is None:
            raise BadInput(f"{job.name} has no trained adapter; run its train stage first.")

    def __call__(self) -> dict[str, Any]:
        """Write ``reference.safetensors``; the record of the stage."""
        source = find.find(self.profile.model.base, self.profile.model.revision)
        prepared = data.prepare(self.profile, source)
        rows = prepared.evaluation if len(prepared.evaluation) else prepared.train
        used, chosen = choose_positions(rows, self.profile.proof.tokens)
        if not chosen:
            raise BadInput(
                "No held-out token is labelled, so nothing can be compared; lower data.eval_fraction's demands."
            )
        sequences = [np.asarray(rows.row(i)[0]) for i in used]
        variants = self._variants(source, sequences, chosen)
        tensors: dict[str, np.ndarray] = {
            "ids": np.concatenate(sequences).astype(np.int32),
            "offsets": np.concatenate(([0], np.cumsum([len(s) for s in sequences]))).astype(np.int64),
            "sequence": np.array([s for s, _ in chosen], dtype=np.int32),
            "position": np.array([p for _, p in chosen], dtype=np.int32),
            # which rows of the held-out set these are
            "rows": np.array(used, dtype=np.int64),
        }
        for name, (ids, logp) in variants.items():
            tensors[f"{name}.ids"], tensors[f"{name}.logp"] = ids, logp
        facts = {
            "tokens": len(chosen),
            "held_out": bool(len(prepared.evaluation)),
            "variants": sorted(variants),
            "type": str(self.dtype).removeprefix("torch."),
            "adapter_sha256": digest(self.adapter / "adapter_model.safetensors") if self.adapter else None,
            "gguf_sha256": digest(self.base_gguf) if self.base_gguf.is_file() else None,
            "merged_sha256": digest(self.merged) if self.merged else None,
        }
        paths.write_atomic(self.job.path / FILE, to_safetensors(tensors, metadata={"facts": json.dumps(facts)}))
        return {"verdict": "done", "outputs": {"reference": FILE}, **facts}

    def _say(self, text: str) -> None:
        self.job.write_state(phase="proving", stage_text=text, stage_done=None, stage_total=None)

    def _variants(self, source: Any, sequences: list[np.ndarray], chosen: list[tuple[int, int]]) -> dict[str, Any]:
        self.dtype = self._dtype(source)
        options = {
            "dtype": self.dtype,
            "device": self.device,
            "trust_remote_code": self.profile.model.trust_remote_code,
        }
        found: dict[str, Any] = {}
        trained_is_served = source.gguf is not None and not source.has_config and _same(source.gguf, self.base_gguf)
        if self.base_gguf.is_file():
            self._say("loading the served file's own weights")
            served = load.load_served(source, self.base_gguf, **options)
            if self.adapter is not None:
                served = adapters.attach(served, self.profile.adapter, 0, self.adapter).eval()
                self._say("log-probabilities of the served weights with the adapter")
                found["served_adapter"] = top_log_probabilities(Parts(served), sequences, chosen)
                self._say("log-probabilities of the served weights alone")
                with served.disable_adapter():
                    found["served_base"] = top_log_probabilities(Parts(served), sequences, chosen)
                if trained_is_served:
                    found["trained_adapter"] = found["served_adapter"]
            else:
                found["served_base"] = top_log_probabilities(Parts(served), sequences, chosen)
            del served
            gc.collect()
        if "trained_adapter" not in found:
            self._say("log-probabilities of the training weights")
            if self.full is not None:
                trained = load.load(_Folder(self.full), **options)
            else:
                trained = adapters.attach(load.load(source, **options), self.profile.adapter, 0, self.adapter).eval()
            found["trained_adapter"] = top_log_probabilities(Parts(trained), sequences, chosen)
            if self.full is not None:
                # Full training has no adapter to add to the served base: the trained weights are the judge.
                found["served_adapter"] = found["trained_adapter"]
            del trained
            gc.collect()
        if self.merged is not None:
            self._say("log-probabilities of the merged file")
            merged = load.load_served(source, self.merged, **options)
            found["merged_file"] = top_log_probabilities(Parts(merged), sequences, chosen)
        return found

    def _dtype(self, source: Any) -> torch.dtype:
        """fp32 where it fits, since this is the yardstick; else the type trained in."""
        if self.device.type != "cuda":
            return torch.float32
        from bc250studio.models.describe import describe

        free, _ = torch.cuda.mem_get_info(self.device)
        if describe(source).parameters * 4 * 1.3 < free:
            return torch.float32
        return load.choose_dtype(self.profile.model.precision, self.device)


class _Folder:
    """A model folder of this run, in the shape of ``ModelSource``."""

    kind, gguf, has_config = "folder", None, True

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def digest(path: Path) -> str:
    """sha256 of a file, in hex."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()


def main(arguments: list[str]) -> int:
    """Exit code 0, else the error's."""
    job = JobFolder(Path(arguments[0]).resolve())
    try:
        record, code = Reference(job)(), 0
    except StudioError as error:
        record, code = {"verdict": "failed", "error": str(error)}, error.exit_code
    except Exception as error:
        traceback.print_exc()
        text = f"The reference failed: {type(error).__name__}: {clean(error, 300)}. Traceback in {job.path / 'logs'}."
        record, code = {"verdict": "failed", "error": text}, 1
    if record.get("error"):
        print(record["error"], file=sys.stderr)
    paths.write_atomic(job.path / RESULT, json.dumps({**record, "exit_code": code}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
