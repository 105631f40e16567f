"""ascend-kv-sim."""
