"""gpu-topo serve: the daemon."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_topo.agent import config
from gpu_topo.agent.errors import UserError

EPILOG = """signals: SIGHUP reads the configuration again (a wrong one is refused and the old one stays), SIGTERM stops

pages: /metrics (text and OpenMetrics), /api/v1/report (JSON), /picture, /healthz, /readyz, / with links to them

examples:
  gpu-topo serve
  gpu-topo serve --web.listen-address :10119 --web.config.file /etc/gpu-topo/web.yml
  gpu-topo serve --expect gpus=8,nics=8 --state.directory /var/lib/gpu-topo"""


def arguments(parser: ArgumentParser) -> None:
    """What serve takes: every key of the configuration."""
    config.add_flags(parser)


def run(args: Namespace) -> int:
    """Serve until told to stop."""
    from gpu_topo.agent.baseline import BaselineError
    from gpu_topo.agent.daemon import serve
    from gpu_topo.agent.listen import ListenError
    from gpu_topo.classifier import RULES

    file, flags = getattr(args, "config.file"), config.flags_of(args)
    codes = [rule.code for rule in RULES]
    try:
        return serve(lambda: config.load(file, flags, codes))
    except (ListenError, BaselineError) as error:
        raise UserError(str(error)) from None
