"""The shape of a model: from a Hugging Face config.json to parameters, weight bytes and KV bytes."""
