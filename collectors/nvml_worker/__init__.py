"""The child side of the NVML collector: asks the library one question after another and streams each answer.

It runs as a process of its own, because a driver call can hang in the kernel where no signal reaches it. It imports
nothing else of gpu-topo, so that it starts fast. What it sends, line by line:

    ?nvmlDeviceGetName 0 []                                          the question that comes now
    {"q": "nvmlDeviceGetName", "gpu": 0, "r": "NVIDIA L4", "t": 7e-06}  its answer, or "e": why there is none
    .                                                                that was all

What it is sent: `next N`: question N is overdue, go on with the others in a fresh thread. When the channel closes,
it asks nothing more, and ends as soon as its last call has returned: it is never killed, since killing a process
that is inside the driver has frozen GPUs (NVIDIA/dcgm-exporter#84).
"""
