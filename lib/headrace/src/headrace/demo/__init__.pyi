from .corpus import END_OF_TEXT as END_OF_TEXT
from .corpus import Document as Document
from .corpus import text_file as text_file
from .corpus import train_bpe as train_bpe
from .corpus import write_jsonl as write_jsonl
from .train import Transformer as Transformer
from .train import make_optimizer as make_optimizer
from .train import train_step as train_step
