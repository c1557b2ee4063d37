from .blend import Blend as Blend
from .blend import temperature_weights as temperature_weights
from .blend import unimax_weights as unimax_weights
from .schedule import BatchSchedule as BatchSchedule
from .stage_config import AmendmentConfig as AmendmentConfig
from .stage_config import StageConfig as StageConfig
from .stages import Stage as Stage
