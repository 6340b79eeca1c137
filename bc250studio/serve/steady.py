"""A client for long series of repeatable requests, that brings the server back when it dies."""

from __future__ import annotations

from dataclasses import replace

from bc250studio.errors import JobFailed
from bc250studio.serve.binary import Binary, choose_device
from bc250studio.serve.launch import start
from bc250studio.serve.plan import Plan
from bc250studio.serve.server_record import Server, read
from bc250studio.serve.talk import Talk


def steady_talk(server: Server, plan: Plan, binary: Binary) -> Talk:
    """A client for long series of repeatable requests: it starts this server again when it dies.

    Mesa 22.3's llvmpipe breaks its heap when the adapter's scale changes between two requests, so on a CPU-based
    Vulkan device each scale gets a process of its own; GPUs and the CPU backend change it with the request.
    """
    talk = server.talk()

    def again(scale: float) -> tuple[str, str]:
        if read(server.folder) is None:
            raise JobFailed("The server was stopped while it was being compared; start it again and prove again.")
        started = start(server.folder, replace(plan, scale=scale), binary, own_job=server.folder)
        return started.url, started.key

    talk.revive = lambda: again(talk.scale_now)
    if plan.adapter is not None and choose_device(binary, plan.device)[1].cpu_based:
        talk.rescale = again
    return talk
