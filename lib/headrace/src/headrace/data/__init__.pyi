from .async_dataset import AsyncDataset as AsyncDataset
from .dataset import PlannedDataset as PlannedDataset
from .mixture import MixtureDataset as MixtureDataset
from .packed import PackedTokenDataset as PackedTokenDataset
from .token_seq import TokenSeqDataset as TokenSeqDataset
