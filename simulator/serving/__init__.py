"""One serving engine at work: sequences, batches, admission, memory pressure, leaps, and what is written down."""
