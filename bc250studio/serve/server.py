"""A llama-server's life: started detached, described by ``server.json``, adopted on return, stopped only if ours.

The server outlives the app and the job's supervisor. Whoever comes back reads ``server.json`` (mode
0600: it holds the key), checks pid + start time + boot id and that the server serves these files, and
goes on using it. 127.0.0.1 and a port are always given; the key travels in a file, never on a command line.
Here is the whole of what others use; each subject has its module.
"""

from __future__ import annotations

from bc250studio.serve.adopt import adopt, end, stop, stop_folder
from bc250studio.serve.launch import start
from bc250studio.serve.plan import SLOTS, Plan
from bc250studio.serve.reach import LOOPBACK, check_address, free_port, tunnel_lines
from bc250studio.serve.server_log import death
from bc250studio.serve.server_record import Server, forget, read
from bc250studio.serve.steady import steady_talk

__all__ = [
    "LOOPBACK",
    "SLOTS",
    "Plan",
    "Server",
    "adopt",
    "check_address",
    "death",
    "end",
    "forget",
    "free_port",
    "read",
    "start",
    "steady_talk",
    "stop",
    "stop_folder",
    "tunnel_lines",
]
