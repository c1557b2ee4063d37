from .holdout import ValidationConfig as ValidationConfig
from .order import Order as Order
from .shuffle_config import BlockShuffleConfig as BlockShuffleConfig
from .shuffle_config import BraidShuffleConfig as BraidShuffleConfig
from .shuffle_config import ScoreShuffleConfig as ScoreShuffleConfig
from .subset import SubsetConfig as SubsetConfig
