"""python -m gpu_topo.agent"""

from gpu_topo.agent.cli import entry

entry()
