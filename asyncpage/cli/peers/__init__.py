"""What `scripts/compare_peers` is made of: workloads, servers that are started and ended, and the table."""
