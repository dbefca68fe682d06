"""From text, conversations and completions to tokens and loss masks."""
