"""Shapes and cards that are known without a file."""
