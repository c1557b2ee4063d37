from .batch.packed_batch import PackedBatch as PackedBatch
from .config.component import ComponentConfig as ComponentConfig
from .config.lm_data import LmDataConfig as LmDataConfig
from .config.lm_data import load_config as load_config
from .data.mixture import MixtureDataset as MixtureDataset
from .data.token_seq import TokenSeqDataset as TokenSeqDataset
from .errors import HeadraceError as HeadraceError
from .feed.loader import DataLoader as DataLoader
from .feed.run_log import RunLog as RunLog
from .ingest.build import build_cache as build_cache
from .ingest.source import SourceConfig as SourceConfig
from .ingest.tokenize import TokenizerConfig as TokenizerConfig
from .run.run import open_run as open_run
from .store.joined import open_cache as open_cache

__version__: str
