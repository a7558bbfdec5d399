"""What the names of pci.ids say of a function's kind, for recordings that give no class: lspci -tv, and what is cut
out of longer outputs. Where a name says nothing, so does this: a guess is worse than "not told".
"""

from __future__ import annotations

from gpu_topo.model.node import ACCELERATOR, GPU, NIC, NVSWITCH, OTHER, STORAGE
from gpu_topo.model.vendors import AMD, HABANA, HUAWEI, INTEL, NVIDIA

MAKERS = frozenset({NVIDIA, AMD, HABANA, HUAWEI})  # most of what these build into servers computes

# What stands beside a GPU on its card, or in a chipset of the same vendor. "HDMI" is the sound of a display.
_BESIDE = frozenset(
    (
        *("audio", "hdmi", "usb", "ucsi", "bridge", "host", "root", "port", "endpoint", "controller", "processor"),
        *("coprocessor", "memory", "smbus", "network", "ethernet", "lpc", "isa", "ide", "sata", "serial", "switch"),
        *("cpu", "iommu", "modem", "chipset", "hypertransport", "northbridge", "azalia", "theater", "xilleon", "xenos"),
    )
)
# Architectures of NVIDIA's chips: "GB100 [B200]", "AD102GL [L40S]", "TU117M", "NV34".
_CHIPS = ("gb", "gh", "gr", "ga", "gk", "gf", "gm", "gp", "gv", "gt", "gn", "g7", "g8", "g9", "tu", "ad", "nv")
_BRANDS = frozenset(("geforce", "quadro", "tesla", "titan", "rtx", "gtx", "nvs", "grid", "cmp"))

# Processors of AMD, by which their graphics are called: lists of names of different ages spell one part in many ways
# ("Phoenix3" is now "HawkPoint1", "Carrizo" "Wani [Radeon R5/R6/R7 Graphics]"). No card bears any of these.
_AMD_PROCESSORS = frozenset(
    (
        *("llano", "trinity", "richland", "kaveri", "godavari", "kabini", "beema", "mullins", "carrizo", "wani"),
        *("stoney", "raven", "picasso", "dali", "pollock", "renoir", "lucienne", "cezanne", "barcelo", "vangogh"),
        *("rembrandt", "mendocino", "raphael", "phoenix", "hawkpoint", "strix", "krackan", "gorgon"),
    )
)
_AMD_PAIRS = ("bristol ridge", "van gogh", "hawk point", "granite ridge", "dragon range", "fire range")

_INTEL_CARDS = (
    "data center gpu",
    "server gpu",
    "ponte vecchio",
    "arctic sound",
    "ats-m",
    "battlemage",
    "[arc ",
    "dg1 ",
    "dg2 ",
    "sg1 ",
)
_INTEL_GRAPHICS = (" graphics", "[uhd", "[hd ")
_INTEL_ACCELERATORS = (" npu", "quickassist", " qat")

# Companies that build accelerators and little else, as their names begin.
_ACCELERATOR_MAKERS = (
    "biren",
    "cambricon",
    "cerebras",
    "enflame",
    "furiosa",
    "graphcore",
    "groq",
    "habana",
    "iluvatar",
    "metax",
    "rebellions",
    "sambanova",
    "shanghai enflame",
    "shanghai iluvatar",
    "tenstorrent",
)
_ACCELERATORS = ("ai accelerator", "ai training accelerator", "ai inference accelerator", "cloud ai ", "edge tpu")

# Samsung, SanDisk, KIOXIA, Micron, Crucial, SK hynix, Phison, Seagate, Kingston.
# What else Huawei puts on its boards: management displays, storage controllers, engines of its processors.
_HUAWEI_OTHERS = ("bmc", "vga", "sas", "sata", "raid", "engine", "hpre", "usb", "bridge", "root port", "pcie", "pmu")
_DRIVE_MAKERS = frozenset({0x144D, 0x15B7, 0x1E0F, 0x1344, 0xC0A9, 0x1C5C, 0x1987, 0x1BB1, 0x2646})
_DRIVES = (
    "nvme",
    "nvm express",
    "ssd",
    "solid state",
    "non-volatile memory",
    "sata ",
    "serial ata",
    "ahci",
    "raid",
    "scsi",
    "fusion-mpt",
    "serial attached",
    "block device",
    "ide interface",
    "ide controller",
)
_NICS = (
    "ethernet",
    "infiniband",
    "connectx",
    "omni-path",
    "elastic fabric",
    "elastic network",
    "elastic rdma",
    "gvnic",
    "network",
    "netxtreme",
    "slingshot",
    "cassini",
    "vmxnet",
    "hi1822",
    "wi-fi",
    "wifi",
    "wireless",
    "gbe ",
    "rdma",
    "bcm57",
    "bcm95",
)
_NO_NICS = (
    "bridge",
    "switch",
    "management",
    "flash recovery",
    "virtual network",
    "crypto",
    " dma",
    "bluetooth",
    " port",
    "g fc)",
)


def kind_of(vendor: int | None, name: str) -> str | None:
    """The kind of an endpoint by its vendor and name ("NVIDIA Corporation GB100 [B200]"); None: the name does not tell.

    Bridges are for others to know: they lead on.
    """
    low = name.lower()
    if vendor == NVIDIA:
        return _of_nvidia(low)
    if vendor == AMD:
        return _of_amd(low)
    if vendor == HABANA or low.startswith(_ACCELERATOR_MAKERS) or _any(_ACCELERATORS, low):
        return ACCELERATOR
    if vendor == HUAWEI and ("ascend" in low or "davinci" in low):
        return ACCELERATOR
    if vendor == INTEL and "audio" not in low and (_any(_INTEL_CARDS, low) or _any(_INTEL_GRAPHICS, low)):
        return OTHER if "bridge" in low or " port" in low else GPU
    if vendor == INTEL and _any(_INTEL_ACCELERATORS, low) and "virtual" not in low:
        return ACCELERATOR
    if _any(_DRIVES, low):
        return OTHER if "endpoint" in low or "fabric" in low else STORAGE
    if _any(_NICS, low):
        return OTHER if _any(_NO_NICS, low) else NIC
    if vendor in _DRIVE_MAKERS:
        return STORAGE
    if says_nothing(low) or (vendor == HUAWEI and not _any(_HUAWEI_OTHERS, low)):
        return None
    return OTHER


def says_nothing(name: str) -> bool:
    """Whether this is no name, or "Vendor Device 1234" as lspci prints where its list has none."""
    words = name.lower().split()
    return len(words) < 2 or (words[-2] == "device" and len(words[-1]) in (4, 9) and _is_number(words[-1]))


def is_integrated(vendor: int | None, name: str) -> bool:
    """Whether a display of this name is inside a processor of AMD's ("... [AMD/ATI] Strix Halo [Radeon 8060S]")."""
    if vendor != AMD:
        return False
    low = name.lower()
    low = low.rpartition("[amd/ati] ")[2] if "[amd/ati] " in low else low.partition("amd ")[2] or low
    first = low.replace("/", " ").partition(" ")[0].rstrip("0123456789")
    return first in _AMD_PROCESSORS or low.startswith(_AMD_PAIRS)


def is_laptop_part(name: str) -> bool:
    """Whether a GPU of this name is built for laptops ("GP107M [GeForce GTX 1050 Mobile]", "Quadro RTX 3000 Max-Q"):
    who builds one in switches it off where it can."""
    low = name.lower()
    for mark in "[](),/":
        low = low.replace(mark, " ")
    words = low.split()
    if any(word in ("mobile", "max-q", "laptop", "mobility") for word in words):
        return True
    # NVIDIA's chips for laptops end in M: GP107M, GF119M, AD107GLM; so did AMD's and NVIDIA's models: GTX 970M, K2000M.
    chips = (word for word in words if word.endswith(("m", "glm")) and word[:2] in _CHIPS)
    return any(any(c.isdecimal() for c in word) for word in chips) or any(
        len(word) > 3 and word[-1] == "m" and word[-4:-1].isdecimal() for word in words
    )


def model_in(name: str) -> str:
    """The part in brackets of "AD102 [GeForce RTX 4090]"; the whole name where it does not end in brackets."""
    _, opened, model = name.removesuffix("]").rpartition("[")
    return model if opened and model and name.endswith("]") and "]" not in model else name


def _is_number(text: str) -> bool:
    return all(c in "0123456789abcdef:" for c in text)


def _of_nvidia(low: str) -> str | None:
    if "nvswitch" in low:
        return OTHER if "bridge" in low else NVSWITCH
    chip, _, model = low.removeprefix("nvidia corporation ").removeprefix("nvidia ").partition("[")
    if _has_word(_BESIDE, chip):
        return OTHER
    if _has_word(_BRANDS, model):
        return GPU
    if "nforce" in low or chip.startswith(("mcp", "ck8")):
        return OTHER  # parts of chipsets
    if chip.startswith(_CHIPS) and any(c.isdecimal() for c in chip):
        return GPU
    return NIC if _any(_NICS, low) else None


def _of_amd(low: str) -> str | None:
    """AMD's GPUs have the vendor id of ATI, its processors and chipsets their own."""
    if says_nothing(low):
        return None
    return OTHER if _has_word(_BESIDE, low) or " bus" in low else GPU


def _any(parts: tuple[str, ...], text: str) -> bool:
    return any(part in text for part in parts)


def _has_word(wanted: frozenset[str], text: str) -> bool:
    for mark in "[](),/-":
        text = text.replace(mark, " ")
    return not wanted.isdisjoint(text.split())
