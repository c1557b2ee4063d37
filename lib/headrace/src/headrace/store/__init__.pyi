from .cache import TokenCache as TokenCache
from .consolidate import consolidate as consolidate
from .joined import open_cache as open_cache
from .layout import CacheLayout as CacheLayout
from .replicas import open_replicas as open_replicas
from .retry import RetryPolicy as RetryPolicy
from .retry import use_policy as use_policy
from .verify import verify as verify
