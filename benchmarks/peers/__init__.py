"""ffwd_ort beside what a user would pick instead; `make bench-peers` runs `python -m benchmarks.peers`."""
