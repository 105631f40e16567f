"""From a YAML text to checked values: lines of keys, overrides, messages, cross checks."""
