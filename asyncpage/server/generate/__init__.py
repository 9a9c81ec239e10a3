"""What all APIs that generate share: a call's fields, its run, and the answer in chunks or blocks."""
