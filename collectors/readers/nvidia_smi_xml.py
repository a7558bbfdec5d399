"""Reads `nvidia-smi -q -x`, the same answers as `-q` in XML. Nothing that the document type names is fetched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_topo.collectors.plain_text import clean
from gpu_topo.collectors.readers.nvidia_smi_gpu import add_answer, build, platform_of
from gpu_topo.collectors.readers.reader import Reader
from gpu_topo.model.facts import FAILED, OK, PARTIAL, Facts, SourceStatus
from gpu_topo.model.gpu import DriverState

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

KIND = "nvidia-smi -q -x"

_ROOT = "nvidia_smi_log"
_MAX_DEPTH = 32  # nvidia-smi nests seven deep
_END = f"</{_ROOT}>"
_DECLARATION = re.compile(r"<\?xml[^>]{0,200}\?>|<!DOCTYPE[^>\[]{0,300}>")
# Process names are printed as they are, ampersands included.
_AMPERSAND = re.compile(r"&(?!(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos);)")


def _begins(line: str) -> bool:
    text = line.lstrip()
    return text.startswith((f"<{_ROOT}", f"<!DOCTYPE {_ROOT}"))


def _answers(gpu: Element) -> tuple[dict[str, str], int]:
    """The answers of a <gpu> element and the number of its MIG devices, whose own answers are left out."""
    answers: dict[str, str] = {}
    partitions = 0
    pending = list(reversed([("", child) for child in gpu]))
    while pending:
        parent, element = pending.pop()
        if element.tag == "mig_devices":
            partitions = len(element.findall("mig_device"))
        elif len(element):
            pending.extend(reversed([(element.tag, child) for child in element]))
        elif element.tag != "process_info":
            # A character reference can bring back the control characters that a cleaned line no longer has.
            add_answer(answers, parent, element.tag, clean(element.text or "").strip())
    return answers, partitions


def _parse(text: str) -> tuple[list[Element], dict[str, str], str]:
    """The complete <gpu> elements, the answers above them, and what broke the document ("" where nothing did)."""
    from io import BytesIO
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    gpus: list[Element] = []
    head: dict[str, str] = {}
    depth = 0
    data = BytesIO(_AMPERSAND.sub("&amp;", _DECLARATION.sub("", text)).encode("utf-8", "replace"))
    try:
        for event, element in iterparse(data, events=("start", "end")):
            depth += 1 if event == "start" else -1
            if depth > _MAX_DEPTH:
                return gpus, head, "nested too deep"
            if event == "end" and depth == 1:
                if element.tag == "gpu":
                    gpus.append(element)
                else:
                    head[element.tag] = clean(element.text or "").strip()
    except (ParseError, DefusedXmlException, ValueError) as error:
        return gpus, head, str(error).splitlines()[0] if str(error) else type(error).__name__
    return gpus, head, ""


def _read_document(text: str, where: str) -> Facts:
    """One document is one sample; of a broken one, the GPUs that are complete."""
    elements, head, broken = _parse(text)
    attached = head.get("attached_gpus", "")
    complete = not broken and attached == str(len(elements))
    gpus = []
    for number, element in enumerate(elements):
        answers, partitions = _answers(element)
        gpus.append(build(element.get("id"), number if complete else None, answers, partitions))
    lost = sum(gpu.lost for gpu in gpus)
    detail = f"not well-formed: {broken}" if broken else f"{lost} of {len(gpus)} GPUs lost" if lost else ""
    status = OK if not detail else PARTIAL if gpus else FAILED
    return Facts(
        SourceStatus(f"{KIND} ({where})", status, detail),
        gpus=tuple(gpus),
        platform=platform_of(tuple(gpus)),
        driver=DriverState("nvml", "ok", detail, head.get("driver_version") or None, lists_all=complete),
    )


def read(lines: Sequence[str], where: str) -> list[Facts]:
    """Every document in the lines, oldest first."""
    documents = "\n".join(lines).split(_END)
    samples = [_read_document(document + _END, where) for document in documents[:-1]]
    if f"<{_ROOT}" in documents[-1]:  # cut off in the middle
        samples.append(_read_document(documents[-1], where))
    return samples


READER = Reader(KIND, _begins, read)
