from .train import Transformer as Transformer
