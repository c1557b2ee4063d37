from .effective_batch import packed_batch as packed_batch
from .plan import plan_packs as plan_packs
from .spec import PackingConfig as PackingConfig
