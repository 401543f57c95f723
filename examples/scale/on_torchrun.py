"""torchrun --nproc-per-node 2 on_torchrun.py: each process takes the row groups of its rank."""

import os
from pathlib import Path

from policy import make_model

from hardnet.integrations.table import Enforcer, enforce_table

rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = f"cuda:{os.environ['LOCAL_RANK']}" if os.environ.get("ON_GPU") else "cpu"
enforcer = Enforcer(make_model, ["speed", "angle", "load"], keep=["id"], device=device)
shard = (rank + 1, processes)
print(enforce_table(enforcer, Path("states.parquet"), Path("certified.parquet"), shard, belongs="policy"))
