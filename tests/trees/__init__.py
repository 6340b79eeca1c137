"""Machines as file trees, written from the documented layout of sysfs and /proc; no board is at hand.

Sources: Linux drivers/gpu/drm/amd/pm/swsmu/smu11/cyan_skillfish_ppt.c and include/kgd_pp_interface.h
(gpu_metrics), drivers/gpu/drm/amd/pm/amdgpu_pm.c (hwmon), Documentation/hwmon/sysfs-interface.rst,
drivers/gpu/drm/amd/amdkfd/kfd_topology.c, and what owners have published (shared research notes, 2.1-2.7).
"""

from tests.trees.bc250 import Bc250
from tests.trees.plain import plain

__all__ = ["Bc250", "plain"]
