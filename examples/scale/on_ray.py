"""The same as a stateful actor of Ray Data: each of two processes loads the model once."""

import ray
from policy import make_model

from hardnet.integrations.table import Enforcer

ray.init(num_cpus=3)  # two actors, and one that reads and writes
states = ray.data.read_parquet("states.parquet")
columns = ["speed", "angle", "load"]
certified = states.map_batches(
    Enforcer, fn_constructor_args=(make_model, columns, ["id"]), batch_format="pyarrow", batch_size=4096, concurrency=2
)  # on GPUs: num_gpus=1, and "cuda" as the last of the arguments
certified.write_parquet("certified.parquet")
