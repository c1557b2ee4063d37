from .learning import MixtureLearner as MixtureLearner
from .learning import ShareBounds as ShareBounds
from .lock import RunLock as RunLock
from .run import Run as Run
from .run import open_run as open_run
from .state import LoaderState as LoaderState
from .where import where as where
