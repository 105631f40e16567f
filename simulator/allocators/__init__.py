"""Who decides about KV memory: one policy a file behind the protocol in ``base``."""
