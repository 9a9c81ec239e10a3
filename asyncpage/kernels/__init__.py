"""Native code for processors: what it computes, and how it comes to be built on this machine."""
