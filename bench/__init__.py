"""What an audit costs, in ratios to what it stands beside: `python -m bench`, or `make bench`."""
