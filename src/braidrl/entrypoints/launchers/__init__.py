"""Launchers: this machine, a Ray cluster, or the nodes of a SLURM job, behind one contract."""

from braidrl.configs.rl import RLConfig
from braidrl.entrypoints.launchers.contract import Launcher, Slot
from braidrl.entrypoints.launchers.local import LocalLauncher
from braidrl.entrypoints.launchers.plan import visible_devices


def open_launcher(config: RLConfig, slots: list[Slot]) -> Launcher:
    """The launcher of the config, with room for `slots` asked for."""
    if config.launcher == "ray":
        from braidrl.entrypoints.launchers.ray import RayLauncher

        return RayLauncher(config, slots)
    if config.launcher == "slurm":
        from braidrl.entrypoints.launchers.slurm import SlurmLauncher

        return SlurmLauncher(config)
    return LocalLauncher(config.stop_timeout, visible_devices())
