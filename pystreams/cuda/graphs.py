"""Graphs, and hooks for all graphs, under the names of torch.cuda.graphs."""

from ._graphs import (
    CUDAGraph,
    Handle,
    export_dot,
    export_graph_data,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    register_graph_capture_end_hook,
    register_graph_capture_start_hook,
    register_graph_destroy_hook,
    register_graph_instantiate_hook,
    register_graph_replay_end_hook,
    register_graph_replay_start_hook,
)

__all__ = [
    "CUDAGraph",
    "Handle",
    "export_dot",
    "export_graph_data",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "register_graph_capture_end_hook",
    "register_graph_capture_start_hook",
    "register_graph_destroy_hook",
    "register_graph_instantiate_hook",
    "register_graph_replay_end_hook",
    "register_graph_replay_start_hook",
]
