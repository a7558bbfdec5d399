"""PCI vendor ids of those whose parts the program tells apart (https://pci-ids.ucw.cz)."""

NVIDIA = 0x10DE
AMD = 0x1002  # ATI, and AMD's GPUs since
AMD_PROCESSORS = 0x1022
INTEL = 0x8086
MELLANOX = 0x15B3
HUAWEI = 0x19E5
HABANA = 0x1DA3
