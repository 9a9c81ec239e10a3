"""The journal: what the scheduler and the KV manager were sent and what they decided, as a file to replay."""
