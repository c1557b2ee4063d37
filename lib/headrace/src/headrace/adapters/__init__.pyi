from .grain import GrainBatches as GrainBatches
from .grain import GrainRows as GrainRows
from .host_batches import HostBatches as HostBatches
from .host_batches import HostOptions as HostOptions
from .maxtext import MaxTextIterator as MaxTextIterator
from .maxtext import to_maxtext as to_maxtext
from .torch import TorchBatches as TorchBatches
