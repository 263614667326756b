"""Results: committed run records, the pages written from them, and published weights."""
