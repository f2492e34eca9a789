"""A sample of a trial's stored trajectories as MLflow traces: linked to their run, one span per turn.

Written after the fact, when the trial has ended. A trace's id is a hash of its run and its place, so that writing it
again writes nothing new.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import Span
    from mlflow.tracing.client import TracingClient

_TURN_NS = 1_000_000  # turns are not timed: spans stand in their order, one millisecond each
_PREVIEW = 200  # characters


def sample(stored: Sequence[Mapping[str, Any]], count: int) -> list[tuple[int, Mapping[str, Any]]]:
    """(place, trajectory) of ``count`` of the stored ones, spread from the first to the last; one is the last."""
    if count <= 0 or not stored:
        return []
    if count == 1:
        return [(len(stored) - 1, stored[-1])]
    last = len(stored) - 1
    places = sorted({round(last * k / (count - 1)) for k in range(count)})
    return [(place, stored[place]) for place in places]


def write_traces(
    uri: str, experiment: str, run_id: str, stored: Sequence[Mapping[str, Any]], times: Sequence[float], count: int
) -> None:
    """Make the traces of a run be exactly the sample. ``times``: seconds since 1970 of iteration 0, 1, 2, ..."""
    from mlflow.tracing.client import TracingClient

    client = TracingClient(uri)
    wanted = {_trace_id(run_id, place, entry): entry for place, entry in sample(stored, count)}
    held = _held(client, experiment, run_id)
    if gone := sorted(held - set(wanted)):
        client.delete_traces(experiment, trace_ids=gone)
    for trace_id, entry in wanted.items():
        if trace_id not in held:
            _write(client, experiment, run_id, trace_id, entry, round(times[entry["iteration"]] * 1e9))


def delete_traces(uri: str, experiment: str, run_id: str) -> None:
    """MLflow leaves the traces of a deleted run where they are."""
    write_traces(uri, experiment, run_id, (), (), 0)


def _held(client: TracingClient, experiment: str, run_id: str) -> set[str]:
    found: set[str] = set()
    token = None
    while True:
        page = client.search_traces(locations=[experiment], run_id=run_id, include_spans=False, page_token=token)
        found |= {trace.info.trace_id for trace in page}
        token = page.token
        if not token:
            return found


def _trace_id(run_id: str, place: int, entry: Mapping[str, Any]) -> str:
    key = f"{run_id} {place} {json.dumps(entry, sort_keys=True)}"
    return f"tr-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _write(
    client: TracingClient, experiment: str, run_id: str, trace_id: str, entry: Mapping[str, Any], start: int
) -> None:
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    turns = entry["turns"]
    # Spans first: a search by run finds a trace only once its head is there, and then it is whole.
    client.log_spans(experiment, _spans(trace_id, entry, start))
    client.start_trace(
        TraceInfo(
            trace_id=trace_id,
            trace_location=TraceLocation.from_experiment_id(experiment),
            request_time=start // 1_000_000,
            execution_duration=len(turns),
            state=TraceState.ERROR if entry.get("error") else TraceState.OK,
            request_preview=turns[0]["observation"][:_PREVIEW] if turns else None,
            response_preview=_outcome(entry),
            trace_metadata={"mlflow.sourceRun": run_id},
            tags={
                "mlflow.traceName": f"evaluation at iteration {entry['iteration']}",
                "iteration": str(entry["iteration"]),
                "stop": str(entry["stop"]),
                "reward": f"{entry['reward']:g}",
                "level_seed": str(entry["level_seed"]),
            },
        )
    )


def _outcome(entry: Mapping[str, Any]) -> str:
    actions = " ".join(" ".join(turn["actions"]) or "-" for turn in entry["turns"])
    return f"{entry['stop']}, reward {entry['reward']:g}: {actions}"[:_PREVIEW]


def _spans(trace_id: str, entry: Mapping[str, Any], start: int) -> list[Span]:
    turns = entry["turns"]
    root = _span_id(trace_id, 0)
    end = start + max(1, len(turns)) * _TURN_NS
    head = {"iteration": entry["iteration"], "level_seed": entry["level_seed"]}
    result = {"stop": entry["stop"], "reward": entry["reward"], "turns": len(turns), "error": entry.get("error")}
    error = str(entry.get("error") or "")
    spans = [_span(trace_id, root, "", "trajectory", "AGENT", (start, end), head, result, error)]
    for number, turn in enumerate(turns):
        begin = start + number * _TURN_NS
        said = {key: value for key, value in turn.items() if key != "observation"}
        spans.append(
            _span(
                trace_id,
                _span_id(trace_id, number + 1),
                root,
                f"turn {number + 1}",
                "LLM",
                (begin, begin + _TURN_NS),
                {"observation": turn["observation"]},
                said,
            )
        )
    return spans


def _span_id(trace_id: str, number: int) -> str:
    return hashlib.sha256(f"{trace_id} {number}".encode()).hexdigest()[:16]


def _span(
    trace_id: str,
    span_id: str,
    parent: str,
    name: str,
    kind: str,
    times: tuple[int, int],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    error: str = "",
) -> Span:
    from mlflow.entities import Span

    attributes = {
        "mlflow.traceRequestId": trace_id,
        "mlflow.spanType": kind,
        "mlflow.spanInputs": inputs,
        "mlflow.spanOutputs": outputs,
    }
    return Span.from_dict(
        {
            "trace_id": _base64(trace_id.removeprefix("tr-")),
            "span_id": _base64(span_id),
            "parent_span_id": _base64(parent),
            "name": name,
            "start_time_unix_nano": times[0],
            "end_time_unix_nano": times[1],
            "status": {"code": "STATUS_CODE_ERROR" if error else "STATUS_CODE_OK", "message": error},
            "attributes": {key: json.dumps(value) for key, value in attributes.items()},
            "events": [],
        }
    )


def _base64(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()
