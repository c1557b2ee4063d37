from .component import ComponentConfig as ComponentConfig
from .lm_data import LmDataConfig as LmDataConfig
from .lm_data import load_config as load_config
