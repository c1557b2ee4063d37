from .host_gate import HostBarrier as HostBarrier
from .loader import DataLoader as DataLoader
from .loader import LoaderOptions as LoaderOptions
from .run_log import LogStats as LogStats
from .run_log import RunLog as RunLog
from .run_log import prometheus as prometheus
from .run_log import tensorboard as tensorboard
from .run_log import wandb_run as wandb_run
