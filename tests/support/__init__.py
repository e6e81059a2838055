"""What several tests use: tiny models, data, processes and a Hub. No test file imports another one."""
