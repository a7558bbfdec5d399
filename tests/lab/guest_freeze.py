"""Runs in the virtual machine as root: stops the next thread that a process starts at its first open(2), for good.

So a read of the daemon's scan hangs as in a broken kernel driver, where no deadline of its own reaches, while its loop
turns and serves. Ends with the process. By ptrace(2): a thread that a traced thread starts is traced from its birth.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SEIZE, _CONT, _SYSCALL, _PEEKUSER = 0x4206, 7, 24, 3
_SYSGOOD, _TRACE_CLONE = 1, 8
_ANY_THREAD = 0x40000000  # __WALL
_ORIG_RAX, _OPENAT = 15 * 8, 257  # x86-64

_library = ctypes.CDLL(None, use_errno=True)
_library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_library.ptrace.restype = ctypes.c_long


def ptrace(request: int, thread: int, where: int = 0, data: int = 0) -> int:
    """ptrace(2)."""
    answer: int = _library.ptrace(request, thread, where, data)
    return answer


def main(pid: int) -> None:
    """Trace the first thread of a process until it ends."""
    if ptrace(_SEIZE, pid, 0, _TRACE_CLONE | _SYSGOOD) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    print("traced", flush=True)
    victim = None
    while True:
        thread, status = os.waitpid(-1, _ANY_THREAD)
        if not os.WIFSTOPPED(status):
            if thread == pid:
                return
            continue
        number, event = os.WSTOPSIG(status), status >> 16
        if thread == pid:
            ptrace(_CONT, pid, 0, 0 if event or number == signal.SIGTRAP else number)
        elif victim in (None, thread):
            victim = thread
            if number == signal.SIGTRAP | 0x80 and ptrace(_PEEKUSER, thread, _ORIG_RAX) == _OPENAT:
                print("frozen", flush=True)  # and never continued
            else:
                ptrace(_SYSCALL, thread, 0, 0)
        else:
            ptrace(_CONT, thread, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
