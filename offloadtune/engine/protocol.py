"""What parent and worker agree on besides JSON lines."""

REQUEST_MARK = "offloadtune request "
"""Begins the line that stands on stderr before what a request makes the engine say; the request's number follows."""
