"""A model's `config.json` of Hugging Face: reading, writing, and the keys that name one."""
