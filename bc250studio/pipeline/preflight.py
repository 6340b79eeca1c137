"""What can be known in a second before a job is created: a typing error must not cost a night.

Everything here raises :class:`BadInput`; nothing is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from bc250studio import paths, profiles, settings
from bc250studio.errors import BadInput
from bc250studio.models.describe import describe
from bc250studio.models.find import find

LEAST_FREE_BYTES = 256 * 2**20


def check(resolved: profiles.Resolved, stages: Sequence[str]) -> None:
    """Refuse what cannot work: model, data, adapter kind against export kind, binary, port, disk."""
    profile = resolved.profile
    source = find(profile.model.base, profile.model.revision)
    description = describe(source)
    if "train" in stages:
        from bc250studio.data import files

        for reference in (profile.data.path, profile.data.eval_path):
            if reference and not reference.startswith("hub:"):  # a download belongs into the run
                files.locate(reference)
    if "export" in stages:
        from bc250studio.export import rules

        route = rules.route(profile, description)
        if profile.export.kind == "adapter" and route.kind != "adapter":
            raise BadInput(
                "This fine-tune cannot be exported as an adapter: "
                + "; ".join(route.reasons)
                + ". Set export.kind to merged or auto."
            )
    if "serve" in stages:
        from bc250studio.serve import binary, server

        binary.find_binary(settings.load())
        server.check_address(profile.serve)
    free = shutil.disk_usage(paths.private_dir(paths.runs_dir())).free
    if free < LEAST_FREE_BYTES:
        raise BadInput(
            f"Only {free / 2**20:.0f} MiB are free under {paths.runs_dir()}; a run needs at least "
            f"{LEAST_FREE_BYTES / 2**20:.0f} MiB. Delete old runs or move BC250STUDIO_HOME."
        )
