/* Tests captures and graphs with calls that the Python package never makes,
 * such as calls with invalid handles. */
#include "check.h"
#include "tests.h"
#include "work.h"

static ps_handle
captured_count(ps_handle stream, int *counted)
{
    ps_handle graph = 0;
    size_t operations = 0;
    OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL));
    OK(cpu->host_function(cpu, 0, stream, count, counted));
    OK(cpu->capture_end(cpu, 0, stream, &graph, &operations));
    CHECK(operations == 1);
    return graph;
}

static void
launched(void *argument, ps_handle gate, ps_status status)
{
    (void)argument, (void)gate, (void)status;
}

void
test_graphs(void)
{
    ps_handle stream = stream_new(0), event = event_new(), executable = 0;
    int counted = 0;
    size_t operations;
    ps_handle graph = captured_count(stream, &counted);
    CHECK(counted == 0);
    CHECK_STATUS(cpu->graph_launch(cpu, 0, graph, stream),
                 PS_ERROR_INVALID_HANDLE);
    CHECK_STATUS(cpu->graph_instantiate(cpu, 0, event, &executable),
                 PS_ERROR_INVALID_HANDLE);
    OK(cpu->graph_instantiate(cpu, 0, graph, &executable));
    OK(cpu->graph_destroy(cpu, 0, graph));
    CHECK_STATUS(cpu->graph_destroy(cpu, 0, graph), PS_ERROR_INVALID_HANDLE);
    OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL));
    CHECK_STATUS(cpu->graph_launch(cpu, 0, executable, stream),
                 PS_ERROR_CAPTURE_UNSUPPORTED);
    OK(cpu->capture_end(cpu, 0, stream, &graph, &operations));
    OK(cpu->graph_destroy(cpu, 0, graph));
    for (int i = 0; i < 100; i++) {
        OK(cpu->graph_launch(cpu, 0, executable, i % 2 ? stream : 0));
    }
    OK(cpu->executable_destroy(cpu, 0, executable));
    OK(cpu->device_synchronize(cpu, 0, NULL));
    CHECK(counted == 100);
    OK(cpu->event_destroy(cpu, 0, event));
    stream_end(stream);
}

/* Capturing an empty graph in another graph adds nothing. */
void
test_empty_child(void)
{
    ps_handle stream = stream_new(0), child = 0, graph = 0, executable = 0;
    size_t operations;
    OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL));
    OK(cpu->capture_end(cpu, 0, stream, &child, &operations));
    OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL));
    OK(cpu->capture_graph(cpu, 0, stream, child));
    OK(cpu->capture_end(cpu, 0, stream, &graph, &operations));
    OK(cpu->graph_instantiate(cpu, 0, graph, &executable));
    OK(cpu->graph_launch(cpu, 0, executable, stream));
    OK(cpu->stream_synchronize(cpu, 0, stream, NULL));
    OK(cpu->executable_destroy(cpu, 0, executable));
    OK(cpu->graph_destroy(cpu, 0, graph));
    OK(cpu->graph_destroy(cpu, 0, child));
    stream_end(stream);
}

void
test_captures_refused(void)
{
    ps_handle stream = stream_new(0), side = stream_new(0);
    ps_handle event = event_new(), graph = 0;
    uint64_t number = 0;
    size_t operations;
    CHECK_STATUS(cpu->capture_begin(cpu, 0, 0, PS_CAPTURE_GLOBAL),
                 PS_ERROR_CAPTURE_UNSUPPORTED);
    CHECK_STATUS(cpu->capture_end(cpu, 0, stream, &graph, &operations),
                 PS_ERROR_INVALID_VALUE);
    CHECK_STATUS(cpu->event_record_external(cpu, 0, event, stream),
                 PS_ERROR_INVALID_VALUE);
    OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL));
    CHECK_STATUS(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_GLOBAL),
                 PS_ERROR_INVALID_VALUE);
    OK(cpu->stream_capture(cpu, 0, stream, &number));
    CHECK_STATUS(cpu->capture_gate(cpu, 0, stream, number - 1, launched, NULL),
                 PS_ERROR_INVALID_VALUE);
    CHECK_STATUS(cpu->capture_gate(cpu, 0, side, number, launched, NULL),
                 PS_ERROR_INVALID_VALUE);
    CHECK_STATUS(cpu->stream_query(cpu, 0, stream),
                 PS_ERROR_CAPTURE_UNSUPPORTED);
    OK(cpu->event_record(cpu, 0, event, stream));
    CHECK_STATUS(cpu->event_query(cpu, 0, event), PS_ERROR_CAPTURED_EVENT);
    OK(cpu->stream_wait_event(cpu, 0, side, event));
    CHECK_STATUS(cpu->capture_end(cpu, 0, side, &graph, &operations),
                 PS_ERROR_CAPTURE_UNMATCHED);
    OK(cpu->event_record(cpu, 0, event, side));
    OK(cpu->stream_wait_event(cpu, 0, stream, event));
    OK(cpu->capture_end(cpu, 0, stream, &graph, &operations));
    CHECK(operations == 0);
    CHECK_STATUS(cpu->stream_wait_event(cpu, 0, stream, event),
                 PS_ERROR_CAPTURE_ISOLATION);
    OK(cpu->graph_destroy(cpu, 0, graph));
    OK(cpu->event_destroy(cpu, 0, event));
    stream_end(side);
    stream_end(stream);
}

/* If a stream is destroyed, a capture that began on it ends, and a capture
 * that it has joined becomes invalid. */
void
test_captures_lost(void)
{
    ps_handle stream = stream_new(0), side = stream_new(0);
    ps_handle event = event_new(), graph = 0;
    size_t operations;
    int capturing = -1;
    for (int i = 0; i < 2; i++) {
        OK(cpu->capture_begin(cpu, 0, stream, PS_CAPTURE_RELAXED));
        OK(cpu->event_record(cpu, 0, event, stream));
        OK(cpu->stream_wait_event(cpu, 0, side, event));
        if (i == 0) {
            OK(cpu->stream_destroy(cpu, 0, side));
            CHECK_STATUS(cpu->capture_end(cpu, 0, stream, &graph, &operations),
                         PS_ERROR_CAPTURE_INVALIDATED);
            side = stream_new(0);
        }
    }
    OK(cpu->stream_destroy(cpu, 0, stream));
    OK(cpu->stream_capturing(cpu, 0, side, &capturing));
    CHECK(capturing == 0);
    OK(cpu->event_destroy(cpu, 0, event));
    stream_end(side);
}
