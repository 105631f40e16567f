"""What comes: arrival processes, length laws, trace files, and the columns they become."""
