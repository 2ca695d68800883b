"""Turnout."""
