"""Checks of the simulator against public numbers and against theory, one module a family (see ``validation``)."""
