"""The articles' claims, computed."""
