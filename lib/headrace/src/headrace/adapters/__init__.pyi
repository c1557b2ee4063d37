from .grain import GrainBatches as GrainBatches
from .grain import GrainRows as GrainRows
from .maxtext import MaxTextIterator as MaxTextIterator
from .torch import TorchBatches as TorchBatches
