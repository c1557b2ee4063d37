from .online import AdaptiveMixture as AdaptiveMixture
from .online import BanditMixture as BanditMixture
from .online import OnlineMixture as OnlineMixture
from .online import PlainRule as PlainRule
from .schedule import BatchSchedule as BatchSchedule
from .stage_config import AmendmentConfig as AmendmentConfig
from .stage_config import StageConfig as StageConfig
