"""The capture file: a recording as sorted text, one JSON object a line, safe to read from a stranger.

The first line names the format; every other one holds a path with what was asked of it, or a line of a transcript:

    {"format": "gpu-topo/capture/1", "version": "0.1.0", "redacted": true}
    {"path": "/proc/version", "read": "Linux version 6.8.0 ..."}
    {"path": "/sys/bus/pci/devices", "list": ["0000:00:00.0"], "dir": true}
    {"path": "/sys/kernel/debug", "list": {"refused": "denied", "error": "EACCES"}}
    {"transcript": "nvml", "line": "..."}

Bytes that are no UTF-8 text are {"base64": "..."}. Nothing in it is executed and no path is followed.
"""

from __future__ import annotations

import io
import json
from typing import Any

from gpu_topo.model.reading import DENIED, FAILED
from gpu_topo.source.base import ABSENT, Refusal
from gpu_topo.source.recording import AT, DIR, LINK, LIST, READ, REAL, Recording, Replay, Reply

FORMAT = "gpu-topo/capture/1"
FAMILY = "gpu-topo/capture/"
MAX_BYTES = 64 << 20  # the capture of a machine with 5,000 functions has a fifth of that
_MAX_LINE = 8 << 20
_MAX_PATH = 4096
_WHYS = frozenset({ABSENT, DENIED, FAILED})


class BadCapture(Exception):
    """A file that is no capture, or none that this version reads; the message says why."""


def save(recording: Recording | Replay, version: str = "", redacted: bool = False, packed: bool = False) -> bytes:
    """The capture file of a recording; packed: gzipped, without time stamp, so that equal recordings are equal."""
    lines = [json.dumps({"format": FORMAT, "version": version, "redacted": redacted})]
    for path in sorted(recording.answers):
        asked = recording.answers[path]
        lines.append(json.dumps({"path": path, **{question: _encode(asked[question]) for question in sorted(asked)}}))
    for name in sorted(recording.transcripts):
        heard = recording.transcripts[name]
        lines.append(json.dumps({"transcript": name}))
        lines.extend(json.dumps({"transcript": name, "line": line}) for line in heard)
    data = "\n".join(lines).encode() + b"\n"
    if not packed:
        return data
    import gzip

    return gzip.compress(data, mtime=0)


def _encode(reply: Reply) -> object:
    if isinstance(reply, Refusal):
        return {"refused": reply.why, "error": reply.error}
    if not isinstance(reply, bytes):
        return reply
    try:
        text = reply.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return text
    import base64

    return {"base64": base64.b64encode(reply).decode()}


def is_capture(head: bytes) -> bool:
    """Whether a file begins like a capture, of this format or another."""
    return head.lstrip().startswith(b"{") and b'"format"' in head[:256] and FAMILY.encode() in head[:256]


def load(data: bytes, strict: bool = True) -> Replay:
    """The replay in a capture file, gzipped or not; raises BadCapture. strict as in Replay."""
    if data.startswith(b"\x1f\x8b"):
        data = _gunzip(data)
    if len(data) > MAX_BYTES:
        raise BadCapture(f"is a capture of more than {MAX_BYTES >> 20} MiB")
    header: dict[str, Any] | None = None
    answers: dict[str, dict[str, Reply]] = {}
    transcripts: dict[str, list[str]] = {}
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.strip():
            continue
        record = _object(line, number)
        if header is None:
            header = record
            _check_format(record)
        elif isinstance(path := record.pop("path", None), str) and path.startswith("/") and len(path) <= _MAX_PATH:
            answers[path] = {question: _decode(question, value, number) for question, value in record.items()}
        elif isinstance(name := record.get("transcript"), str) and isinstance(heard := record.get("line", ""), str):
            kept = transcripts.setdefault(name, [])
            if "line" in record:
                kept.append(heard)
        else:
            raise BadCapture(f"is a damaged capture: line {number} is neither a path nor a transcript")
    if header is None:
        raise BadCapture("is an empty capture")
    return Replay(answers, {name: tuple(kept) for name, kept in transcripts.items()}, strict)


def _gunzip(data: bytes) -> bytes:
    import zlib

    engine = zlib.decompressobj(wbits=31)
    try:
        text = engine.decompress(data, MAX_BYTES + 1)
    except zlib.error as error:
        raise BadCapture(f"is a damaged gzip file ({error})") from error
    if not engine.eof and len(text) <= MAX_BYTES:
        raise BadCapture("is cut off: its gzip data ends early")
    return text


def _check_format(header: dict[str, Any]) -> None:
    form = header.get("format")
    if form != FORMAT:
        shown = form[:60] if isinstance(form, str) and form.isprintable() else "none"
        raise BadCapture(f"is a capture of format {shown}, and this version reads {FORMAT}")


def _object(line: bytes, number: int) -> dict[str, Any]:
    if len(line) > _MAX_LINE:
        raise BadCapture(f"is a damaged capture: line {number} is longer than {_MAX_LINE >> 20} MiB")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadCapture(f"is a damaged or cut off capture: line {number} is no JSON") from error
    if not isinstance(record, dict):
        raise BadCapture(f"is a damaged capture: line {number} is no JSON object")
    return record


def _decode(question: str, value: object, number: int) -> Reply:
    """One answer as the question promises it; raises BadCapture for anything else."""
    if isinstance(value, dict):
        why, error, packed = value.get("refused"), value.get("error", ""), value.get("base64")
        if why in _WHYS and isinstance(error, str) and len(error) <= 32:
            return Refusal(why, error)
        if isinstance(packed, str) and question.startswith((READ, AT)):
            import base64

            try:
                return base64.b64decode(packed, validate=True)
            except ValueError:
                pass
    elif isinstance(value, str) and (question == READ or question.startswith(AT)):
        return value.encode("utf-8", "surrogatepass")
    elif isinstance(value, str) and question in (LINK, REAL):
        return value
    elif isinstance(value, list) and question == LIST and all(isinstance(name, str) for name in value):
        return tuple(value)
    elif value is True and question == DIR:
        return True
    raise BadCapture(f"is a damaged capture: line {number} answers {question[:20]!r} with something else")
