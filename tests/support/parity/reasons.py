"""The intended differences from torch, each with the reason.

A row is a key, torch's text and ours; * stands for anything.  A difference
that no row matches is a fault, and so is a row that matches no difference.
"""

ABSENT = "absent"

# Members of torch that pystreams lacks; a name includes its submembers.
LEFT_OUT = {
    "torch's tensors, storages and kernels.": """
        torch.cuda.*Storage torch.cuda.*Tensor torch.cuda.amp
        torch.cuda.get_arch_list
        torch.cuda.get_gencode_flags torch.cuda.has_half torch.cuda.has_magma
        torch.cuda.is_bf16_supported torch.cuda.is_tf32_supported
        torch.cuda.jiterator torch.cuda.make_graphed_callables
        torch.cuda.sparse torch.cuda.tunable
        torch.accelerator.get_device_capability
    """,
    "The default device of new tensors; pystreams has no tensors.": """
        torch.get_default_device torch.get_device torch.set_default_device
        torch.device.__enter__ torch.device.__exit__
    """,
    "Random numbers.": """
        torch.cuda.default_generators torch.cuda.*rng_state
        torch.cuda.*rng_state_all torch.cuda.initial_seed
        torch.cuda.manual_seed torch.cuda.manual_seed_all torch.cuda.random
        torch.cuda.seed torch.cuda.seed_all
        torch.cuda.CUDAGraph.register_generator_state
    """,
    "Settings and statistics of torch's caching allocators; a Buffer's "
    "memory comes from a pool of the driver.": """
        torch.cuda.CUDAPluggableAllocator torch.cuda.MemPool
        torch.cuda.caching_allocator_* torch.cuda.change_current_allocator
        torch.cuda.get_allocator_backend
        torch.cuda.get_per_process_memory_fraction
        torch.cuda.max_memory_cached
        torch.cuda.host_memory_stats_as_nested_dict torch.cuda.memory_cached
        torch.cuda.memory_snapshot torch.cuda.memory_stats_as_nested_dict
        torch.cuda.memory_summary
        torch.cuda.reset_max_memory_*
        torch.cuda.set_per_process_memory_fraction torch.cuda.use_mem_pool
    """,
    "Readings of NVML; torch gets them from nvidia-ml-py, which any "
    "program can use.": """
        torch.cuda.clock_rate torch.cuda.device_memory_used
        torch.cuda.list_gpu_processes torch.cuda.memory_usage
        torch.cuda.power_draw torch.cuda.temperature torch.cuda.utilization
    """,
    "Other libraries: cuBLAS, cuFile, NCCL, NVTX and the profiler.": """
        torch.cuda.current_blas_handle torch.cuda.gds torch.cuda.nccl
        torch.cuda.nvtx torch.cuda.profiler
        torch.cuda._cudart.cudaProfiler* torch.cuda._cudart.cudaHost*
    """,
    "Modules in which torch happens to define its classes.": """
        torch.cuda.memory torch.cuda.streams torch.accelerator.memory
    """,
    "Types of TorchScript.": "torch.DeviceObjType torch.StreamObjType",
    "A module for each device type; the module accelerator serves all "
    "types.": ("torch.get_device_module"),
    "No call is deferred to the initialization, so none can fail there.": (
        "torch.cuda.DeferredCudaCallError"
    ),
    "Each capture has its own stream; torch's captures share one, on "
    "the device that was current at the first.": (
        "torch.cuda.graph.default_capture_stream"
    ),
    "pystreams.trace reports each synchronization as it is made.": (
        "torch.cuda.get_sync_debug_mode torch.cuda.set_sync_debug_mode"
    ),
}

# Members that torch lacks.
ADDED = {
    "Stream-ordered memory, in place of tensors.": """
        torch.Buffer torch.pin
    """,
    "Whether the order of a program is right.": """
        torch.races torch.schedules torch.timeline
    """,
    "Streams of other libraries, on every device type.": """
        torch.ExternalStream torch.Stream.__cuda_stream__
        torch.Stream._as_parameter_
    """,
    "What work waits for.": "torch.explain",
    "Backends for other devices.": "torch.get_include torch.register_backend",
    "Callbacks for every device type.": "torch.trace",
    "Whether the order of the work is right.": "torch.races torch.schedules",
    "Waits for several objects with a timeout, and the release of a "
    "stream.": """
        torch.as_completed torch.wait torch.Stream.close
        torch.cuda.Stream.close torch.cuda.ExternalStream.close
    """,
    "Python callables in stream order.": """
        torch.Stream.submit torch.cuda.Stream.submit
        torch.cuda.ExternalStream.submit
    """,
    "Partitions of any device; cuda.GreenContext is one.": "torch.Partition",
    "Streams that serialize with the default stream.": """
        torch.Stream.is_non_blocking torch.cuda.Stream.is_non_blocking
        torch.cuda.ExternalStream.is_non_blocking
    """,
    "Names for people.": """
        torch.Stream.name torch.cuda.Stream.name
        torch.cuda.ExternalStream.name
    """,
    "Graphs in the form that newer versions of torch have.": """
        torch.accelerator.Graph torch.accelerator.generate_graph_pool_handle
        torch.cuda.export_* torch.cuda.CUDAGraph.get_graph_data
        torch.cuda.CUDAGraph.pools torch.cuda.CUDAGraph.register_*_hook
        torch.cuda.CUDAGraph.register_destroy_callback
        torch.cuda.CUDAGraph.retain_object
    """,
    "Graphs within graphs, and what prepares or changes their replays.": """
        torch.cuda.CUDAGraph.add_child torch.cuda.CUDAGraph.update
        torch.cuda.CUDAGraph.upload
    """,
    "Members of cuda.Stream, on every stream.": """
        torch.Stream.priority torch.Stream.priority_range
    """,
    "The constructor's arguments, as attributes.": """
        torch.Event.blocking torch.Event.enable_timing
        torch.Event.interprocess torch.cuda.Event.blocking
        torch.cuda.Event.enable_timing torch.cuda.Event.interprocess
    """,
    "A query of any stream; torch has it for the current stream only.": """
        torch.Stream.is_capturing torch.cuda.Stream.is_capturing
        torch.cuda.ExternalStream.is_capturing
    """,
    "Whether the CPU engine emulates CUDA.": "torch.cuda.is_emulated",
    "What the driver's pools can do.": """
        torch.cuda.set_peer_access torch.cuda.set_pool_threshold
        torch.cuda.trim_pool
    """,
    "A function; torch has it as a method of tensors.": "torch.pin",
    "What the driver knows of a device.": """
        torch.cuda.get_device_attributes torch.cuda.get_device_pci_bus_id
    """,
    "Later than the torch that was compared.": """
        torch.accelerator.empty_host_cache
    """,
    "Functions of torch.cuda, for the accelerator.": """
        torch.accelerator.default_stream torch.accelerator.stream
    """,
    "Slots of the class; torch stores them in each object's dictionary.": """
        torch.cuda.StreamContext.stream torch.cuda.device.idx
        torch.cuda.device.prev_idx torch.cuda.device_of.idx
        torch.cuda.device_of.prev_idx torch.accelerator.device_index.idx
        torch.accelerator.device_index.prev_idx
        torch.cuda.graph.stream torch.cuda.graph.stream_ctx
    """,
}

# Differences in members that both libraries have.
CHANGED = {
    "The exception has torch's type and another message.": (
        ("*", "TypeError: *", "TypeError: *"),
        ("*", "AttributeError: *", "AttributeError: *"),
        (
            '*torch.device("*")',
            "RuntimeError: Expected one of *",
            "RuntimeError: Expected one of *",
        ),
        (
            'torch.device("cuda:*")',
            "RuntimeError: Could not parse device index *",
            "RuntimeError: Invalid device string: *",
        ),
        (
            "*priority=-1).query()",
            "RuntimeError: Priority was *",
            "RuntimeError: an external stream has the priority *",
        ),
        (
            'torch.cuda.Event().record(torch.Stream("cpu"))',
            "RuntimeError: *",
            "RuntimeError: Event device type CUDA does not match *",
        ),
        (
            "no GPU: *",
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: No CUDA GPUs are available: *",
        ),
    ),
    "A device index above 127 keeps its value; torch wraps it around.": (
        ("torch.device(*128*)", "device(*65408)", "device(*128)"),
    ),
    "A Buffer has bytes, not elements of a data type.": (
        ("torch.empty", "*", "(nbytes, *)"),
        ("torch.from_dlpack", "(ext_tensor, *)", "(obj)"),
    ),
    "synchronize() has a timeout.": (
        ("torch.*synchronize", "(*)", "(*timeout=None)"),
    ),
    "Newer versions of torch than the compared one have it, too.": (
        (
            "torch.cuda.CUDAGraph.debug_dump",
            "(debug_path)",
            "(debug_path, *, verbose=True)",
        ),
        (
            "torch.cuda.CUDAGraph.capture_begin",
            "(pool=None, capture_error_mode='global')",
            "(pool=*, capture_error_mode=*, check_input_liveness=False)",
        ),
        ("torch.cuda.graph", "(*)", "(*, *, check_input_liveness=False)"),
    ),
    "A graph can be instantiated with fewer options.": (
        (
            "torch.cuda.CUDAGraph.instantiate",
            "()",
            "(*, auto_free_on_launch=True, use_node_priority=True)",
        ),
    ),
    "torch's docstring leaves the defaults out.": (
        ("torch.Stream", "(device, *, priority)", "(device=None, *, *)"),
        ("torch.Stream.record_event", "(event)", "(event=None)"),
    ),
    "Arguments without effect are not accepted.": (
        ("torch.cuda.Stream", "(*, **kwargs)", "(*)"),
        ("torch.cuda.ExternalStream", "(*, **kwargs)", "(*)"),
    ),
    "A with statement passes the three arguments by position.": (
        ("torch.cuda.*__exit__", "(type, value, traceback)", "(*exc_info)"),
    ),
    "The arguments have names.": (
        ("torch.cuda._cudart.cuda*", "(_, /)", "(*)"),
    ),
    "An Event is timed by default, also one that Stream.record_event() "
    "creates.": (
        ("torch.Event", "(*enable_timing=False*", "(*=True*"),
        (
            "torch.Event().elapsed_time(torch.Event())",
            "ValueError: *enable_timing=True'.",
            "ValueError: Both events must be recorded *",
        ),
        (
            "e = torch.Stream().record_event(); *elapsed_time(e)",
            "ValueError: *enable_timing=True'.",
            "0.0",
        ),
    ),
    "CUDA has no timed interprocess events: the constructor raises the "
    "error, not the first record.": (
        (
            "torch*Event(*).query()",
            "True",
            "ValueError: an interprocess event cannot be timed: *",
        ),
    ),
    "A device index out of range is an AcceleratorError, the same in "
    "every call.": (
        (
            'torch.Event("cuda:64").query()',
            "True",
            "AcceleratorError: CUDA error: invalid device ordinal",
        ),
        (
            "torch.*current_stream(64)",
            "*Error: *",
            "AcceleratorError: CUDA error: invalid device ordinal",
        ),
        (
            "torch.cuda.set_device(1000)",
            "*Error: *",
            "AcceleratorError: CUDA error: invalid device ordinal",
        ),
        (
            "torch.cuda.*(*64)",
            "AssertionError: Invalid *",
            "AcceleratorError: CUDA error: invalid device ordinal",
        ),
    ),
    "A negative index means the current device, in every call.": (
        (
            "*get_device_properties(-1)*",
            "AssertionError: Invalid device id",
            "'str'",
        ),
    ),
    "An argument of a wrong type is always a TypeError, and is never "
    "converted.": (
        ("*", "RuntimeError: expected *", "TypeError: *"),
        ("torch.cuda._sleep(*)", "RuntimeError: *", "TypeError: *"),
        ("torch.*set_device*(*)", "ValueError: *", "TypeError: *"),
        ("torch.cuda.set_stream(1)", "AttributeError: *", "TypeError: *"),
        ("torch.cuda.stream(1)*", "AttributeError: *", "TypeError: *"),
        ("*graph(*stream=1)*", "AttributeError: *", "TypeError: *"),
        ("*graph(1)*", "AttributeError: *", "TypeError: *"),
        ("torch.cuda.*(1.5)", "<*Stream *>", "TypeError: *"),
        ("! *", "undefined behaviour, not run", "TypeError: *"),
    ),
    "A stream of another device type is a ValueError that names both types.": (
        (
            'torch.cuda.set_stream(torch.Stream("cpu"))',
            "RuntimeError: *",
            "ValueError: Expected a cuda device, but got: cpu:0",
        ),
        (
            'torch.accelerator.set_stream(torch.Stream("cpu"))',
            "*Error: *",
            "ValueError: cpu doesn't match the current accelerator cuda.",
        ),
        (
            'torch.accelerator.device_index("cpu").__enter__()',
            "TypeError: *",
            "ValueError: cpu doesn't match the current accelerator cuda.",
        ),
    ),
    "An event's flags must be bools, because an int may be meant as a "
    "device.": (
        (
            "*torch.cuda.Event(1, 0, 0).query()",
            "(True, True)",
            "TypeError: Event() expects a bool for enable_timing, but got *",
        ),
    ),
    "An Event that is created with a device index belongs to that device.": (
        (
            'torch.Event*("cuda:*").device*',
            "*device(type='cuda')*",
            "*device(type='cuda', index=*)*",
        ),
        (
            'e = torch.Event("cuda:1"); e.record(*0*)*',
            "device(type='cuda', index=0)",
            "RuntimeError: Event device index 1 does not match *",
        ),
    ),
    "The ids of a stream are passed by keyword.": (
        ("torch.Stream(0, 0, 1).device", "device(*)", "TypeError: *"),
    ),
    "Streams have no order.": (
        (
            "torch.*Stream() < torch.*Stream()",
            "False",
            "TypeError: '<' not supported *",
        ),
    ),
    "A stream is unequal to None, and to any object that is not a stream.": (
        ("torch.Stream() != None", "False", "True"),
    ),
    "Two objects for one stream are equal, whatever their class.": (
        ("s = torch.cuda.Stream(); s == torch.Stream(*)", "False", "True"),
        ("s = torch.cuda.Stream(); *ExternalStream(*", "False", "True"),
        (
            "torch.cuda.current_stream() == torch.accelerator.*",
            "False",
            "True",
        ),
    ),
    "Handle 0 is the default stream, not a new one.": (
        ("torch.cuda.ExternalStream(0).cuda_stream", "*", "0"),
    ),
    "Events of both classes can be used together.": (
        (
            "torch.cuda.Event(True).elapsed_time(torch.Event(*))",
            "RuntimeError: expected other to be *",
            "ValueError: Both events must be recorded *",
        ),
    ),
    "Events of two devices are rejected without a call of the driver.": (
        (
            "a, b = torch.cuda.Event(True), *",
            "AcceleratorError: CUDA error: *",
            "RuntimeError: Event device index 0 does not match other's *",
        ),
    ),
    "Events of any class and device type can be interprocess.": (
        ("*torch.Event(*).ipc_handle()*", "NotImplementedError: *", "64"),
        (
            "torch.Event.from_ipc_handle(*)",
            "NotImplementedError: *",
            "ValueError: from_ipc_handle() *",
        ),
    ),
    "An impossible handle or device is a ValueError.": (
        (
            "torch.cuda.Event.from_ipc_handle(*)",
            "RuntimeError: *",
            "ValueError: *",
        ),
    ),
    "An event that cannot be shared is rejected without a call of the "
    "driver.": (
        (
            "torch.cuda.Event().ipc_handle()",
            "AcceleratorError: CUDA error: *",
            "RuntimeError: ipc_handle() needs an interprocess event: *",
        ),
        (
            "*from_ipc_handle(0, e.ipc_handle())",
            "*",
            "RuntimeError: from_ipc_handle: the event of this handle was *",
        ),
    ),
    "The message is complete; torch writes an index as the character "
    "with that code, so index 0 ends the message.": (
        (
            "e = torch.*Event(); e.record(*(*0*)); e.record(*(*1*))",
            "RuntimeError: Event device*",
            "RuntimeError: Event device index 0 does not match recording *",
        ),
    ),
    "The error says that the event was recorded in a capture, also "
    "after the capture's end.": (
        (
            "*inside(torch.cuda.graph(g), e.record); e.query()",
            "AcceleratorError: CUDA error: invalid argument",
            "AcceleratorError: CUDA error: operation not permitted on an *",
        ),
    ),
    "capture_end() without a capture is an error without a call of the "
    "driver.": (
        (
            "torch.cuda.CUDAGraph().capture_end()",
            "AcceleratorError: CUDA error: *",
            "RuntimeError: capture_end() called before capture_begin().",
        ),
    ),
    "A capture without a stream argument is on the current device.": (
        ("torch.cuda.set_device(1); inside(*graph(*", "(0, 1)", "(1, 1)"),
    ),
    "A repr names the class, the device and the handle.": (
        ("repr(torch.Stream(*))", "'torch.Stream *", "'<torch.Stream*"),
        ("repr(torch.Event())", "'torch.Event *", "'<torch.Event*"),
        ("*repr(e)", "'<torch.cuda.Event 0x*>'", "'<* cuda:0 0x*>'"),
        ("*repr(torch.cuda.ExternalStream(*", "*", "'<*External*"),
    ),
    "Every Stream() is reported as a creation; torch hands out streams "
    "of a pool.": (
        ('traced("stream_creation", *torch.cuda.Stream())', "[]", "[1]"),
    ),
    "Without a GPU, the accelerator is the CPU.": (
        ("no GPU: torch.accelerator.is_available(), *", "(False, 0)", "*"),
        ("no GPU: torch.accelerator.current_*", "None", "device(*'cpu')"),
    ),
    "Without a GPU, a call that needs one raises an error at once, with"
    " the reason.": (
        (
            "no GPU: *",
            "AcceleratorError: CUDA error: no CUDA-capable device *",
            "RuntimeError: No CUDA GPUs are available: *",
        ),
        (
            'no GPU: torch.Event("cuda").query()',
            "True",
            "RuntimeError: No CUDA GPUs are available: *",
        ),
        (
            "no GPU: torch.cuda.is_current_stream_capturing()",
            "AcceleratorError: *",
            "False",
        ),
    ),
    "In a forked child, every call reports the fork.": (
        (
            "forked: *",
            "AcceleratorError: CUDA error: initialization error",
            "RuntimeError: Cannot re-initialize CUDA in forked *",
        ),
    ),
}


def left_out_or_added(groups, torch, ours):
    return {
        why: tuple((name, torch, ours) for name in names.split())
        for why, names in groups.items()
    }


REASONS = (
    left_out_or_added(LEFT_OUT, "*", ABSENT)
    | left_out_or_added(ADDED, ABSENT, "*")
    | CHANGED
)

# torch 2.15 was compared without a GPU.  These are its differences that the
# torch that was compared on GPUs does not have.
WITHOUT_A_GPU = (
    REASONS
    | left_out_or_added(
        {
            "Conditional nodes of graphs.": """
                torch.cuda.CUDAGraph.begin_capture_to_*_node
                torch.cuda.CUDAGraph.end_capture_to_conditional_node
                torch.cuda.CUDAGraph.set_conditional_handle_for_current_node
            """,
            "A hook for the end of a capture, and pystreams.timeline, do what "
            "these do.": """
                torch.cuda.CUDAGraph.capture_end_pre
                torch.cuda.CUDAGraph.capture_end_post
                torch.cuda.graph_annotations
            """,
            "Stream.is_capturing() tells whether there is a capture.": (
                "torch.cuda.CUDAGraph.get_currently_capturing_graph"
            ),
            "The handle of cuSOLVER.": "torch.cuda.current_solver_handle",
            "Modules for torch's own use.": (
                "torch.accelerator.graphs torch.accelerator.random"
            ),
        },
        "*",
        ABSENT,
    )
    | {
        "Arguments may also be passed by position.": (
            (
                "torch.cuda.GreenContext",
                "(*, num_sms=None, *)",
                "(num_sms=None, device_id=None, *)",
            ),
        ),
        "Without a GPU, an index is that of a CPU.": (
            ("torch.device(0), *", "(*cuda', index=0*", "(*cpu', index=0*"),
        ),
    }
)
