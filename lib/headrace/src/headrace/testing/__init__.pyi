from .caches import tiny_cache as tiny_cache
from .caches import write_cache as write_cache
from .faults import FaultProxy as FaultProxy
from .faults import Faults as Faults
from .servers import gcs_server as gcs_server
from .servers import s3_server as s3_server
from .servers import web_server as web_server
