"""How a model's tokenizer can be missing or unusable."""


class TokenizerError(Exception):
    """No tokenizer. The text is for operators: what was tried, what is wrong with it, what would help."""
