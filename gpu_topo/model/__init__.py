"""Facts, as they were read, and findings, as they were concluded: immutable and typed. No reading, no judging."""
