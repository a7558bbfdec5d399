"""gpu-topo: how a GPU node is really wired and running, what is degraded, what it costs and what to do."""

__version__ = "0.1.0"
