"""Model tokenizers and chat templates, from a folder, the local hub cache or an engine; text back from token ids."""

from enginehouse.adapters.tokenizer.errors import TokenizerError
from enginehouse.adapters.tokenizer.model import ModelTokenizer, TokenizerSettings, load_tokenizer

__all__ = ["ModelTokenizer", "TokenizerError", "TokenizerSettings", "load_tokenizer"]
