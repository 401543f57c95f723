"""Training: one loop over stacked seeds, with checkpoints, resume, and captured steps on a GPU."""

from hardnet_lab.train.checkpoint import load_checkpoint, save_checkpoint
from hardnet_lab.train.distributed import World, joined, local_device
from hardnet_lab.train.loop import InterruptedRunError, Training, stacked_net
from hardnet_lab.train.progress import Bars, Display, Silence, bars
from hardnet_lab.train.settings import History, Settings, Task
from hardnet_lab.train.stacked import StackedMLP, streams_of
from hardnet_lab.train.stacked_module import StackedModule

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
