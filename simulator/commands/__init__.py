"""The commands of ``cli.py``, one file a family. Each imports what it needs when it runs."""
