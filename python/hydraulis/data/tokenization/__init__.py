"""Tokenization of texts, conversations and completions, with loss masks."""
