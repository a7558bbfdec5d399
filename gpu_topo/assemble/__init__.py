"""The readings of several sources and samples become one Node: `assemble` puts them together, `named` adds names."""

from gpu_topo.assemble.node import assemble, named

__all__ = ["assemble", "named"]
