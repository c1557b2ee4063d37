from .manifest import LoaderState as LoaderState
from .manifest import RunManifest as RunManifest
from .manifest import open_run as open_run
from .where import Whereabouts as Whereabouts
from .where import where as where
