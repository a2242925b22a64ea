"""The renderer: messages to token ids, and sampled token ids to messages, for each model family."""
