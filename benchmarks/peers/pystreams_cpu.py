"""pystreams on its CPU engine."""

import os
from types import SimpleNamespace

from benchmarks.peers import torch_api

PACKAGE = "pystreams"
START = (
    "import pystreams",
    "stream = pystreams.Stream('cpu')",
    "stream.record_event().synchronize()",
)


def calls():
    os.environ["PYSTREAMS_ACCELERATOR"] = "cpu"
    from pystreams import Event, Stream, accelerator

    rows, settle = torch_api.calls(
        SimpleNamespace(
            Stream=Stream,
            Event=lambda enable_timing=False: Event(
                enable_timing=enable_timing
            ),
            current_stream=accelerator.current_stream,
            synchronize=accelerator.synchronize,
            stream=accelerator.stream,
            device=accelerator.device_index,
        )
    )
    stream = Stream()
    rows["event"] = lambda: Event(enable_timing=False)
    rows["event_life"] = lambda: Event(enable_timing=False).record(stream)
    return rows, settle
