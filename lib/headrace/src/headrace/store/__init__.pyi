from .cache import TokenCache as TokenCache
from .consolidate import consolidate as consolidate
from .layout import CacheLayout as CacheLayout
from .retry import RetryPolicy as RetryPolicy
from .retry import use_policy as use_policy
from .upgrade import upgrade as upgrade
from .verify import VerifyReport as VerifyReport
from .verify import verify as verify
