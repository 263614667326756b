"""What the files of a run folder are called."""

CONFIG = "config.json"  # the network, the recipe, and what it was trained on
METRICS = "metrics.jsonl"  # a line an epoch
WEIGHTS = "model.safetensors"  # after the last whole epoch
BEST = "best.safetensors"  # after the best one
CHECKPOINT = "checkpoint.safetensors"  # all that it takes to go on exactly
DIVERGED = "diverged.safetensors"  # of a network whose loss is no number any more
TENSORBOARD = "tensorboard"
LOCK = ".lock"  # stays in the folder and means nothing by itself: what counts is whether a process holds it

WRITTEN_BY_RUNS = {METRICS, TENSORBOARD, CONFIG, WEIGHTS, BEST, DIVERGED}  # before there is a checkpoint
