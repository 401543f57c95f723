"""Training: one loop over stacked seeds, with checkpoints, resume, and captured steps on a GPU."""

from hardnet_lab.train.checkpoint import load_checkpoint, save_checkpoint
from hardnet_lab.train.distributed import World, joined, local_device
from hardnet_lab.train.loop import Bars, Display, InterruptedRunError, Silence, Training, bars, stacked_net
from hardnet_lab.train.settings import History, Settings, Task
from hardnet_lab.train.stacked import StackedMLP, StackedModule, streams_of

__all__ = [
    "Bars",
    "Display",
    "History",
    "InterruptedRunError",
    "Settings",
    "Silence",
    "StackedMLP",
    "StackedModule",
    "Task",
    "Training",
    "World",
    "bars",
    "joined",
    "load_checkpoint",
    "local_device",
    "save_checkpoint",
    "stacked_net",
    "streams_of",
]
