"""The fixed script of a bench, what its visits say, and what a trend of runs says: pure functions of records."""
