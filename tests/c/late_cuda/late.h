/* A fake CUDA with one device, for machines without a GPU: the functions of
 * libcuda and cudart that the backend calls, without graphs.  Work is delayed.
 * From time to time, some operations run.  They are chosen at random from the
 * operations that the order of streams and events allows to run.
 *
 * The library reports and counts each use of memory that is not ordered after
 * the memory's allocation, and each free that is not ordered after all uses of
 * the memory.  Each stream and the host have a vector clock, which represents
 * the order.  A call is ordered after the work that the host has seen to be
 * done, and after no other work. */
#ifndef LATE_CUDA_H
#define LATE_CUDA_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <stddef.h>
#include <stdint.h>

enum { MOST_STREAMS = 400 };

/* The vector clock of a stream or of the host.  For each stream, it has the
 * number of the stream's operations that are ordered before the owner's next
 * operation. */
struct clock {
    unsigned of[MOST_STREAMS];
};

/* An event's latest record.  `operation` is the index of the record's
 * operation, or 0 if the event was never recorded. */
struct event {
    int operation;
    struct clock clock;
};

/* The number of faults reported. */
int late_cuda_faults(void);

/* The number of copies to pageable memory that had to wait.  A real driver
 * holds its locks during such a wait. */
int late_cuda_waiting_copies(void);

/* Set the seed of the random choices. */
void late_cuda_seed(unsigned seed);

/* Make queries find an event done only when this many milliseconds have passed
 * since its latest record, as on a busy GPU.  Initially 0. */
void late_cuda_delay(int milliseconds);

/* A profiler's functions.  They are called with a lock held, as by a real
 * driver.  When a thread queues a copy, a fill or a sleep, or begins to wait,
 * called() is called on that thread.  It returns a number for this operation
 * or wait.  done() is called when the operation or wait with this number is
 * done. */
struct late_cuda_profiler {
    uint32_t (*called)(const char *function);
    void (*done)(uint32_t number, const char *function, int stream,
                 int64_t begin, int64_t end, size_t nbytes);
};
void late_cuda_profile(const struct late_cuda_profiler *profiler);
int late_cuda_stream(const void *handle);

/* Returns the index of the stream's context.  It is 0, except that with
 * LATE_CUPTI=contexts every second stream belongs to context 1. */
int late_cuda_context_of(int stream);
int late_cuda_context(const void *handle);

/* The library is preloaded, so these names are hidden from the program. */
#pragma GCC visibility push(hidden)

/* Call these at the beginning and the end of each CUDA function.  Call the
 * functions below only between the two. */
void begin(void);
void end(void);

/* Streams are identified by an index.  0 is the default stream, which
 * serializes with blocking streams, such as the default streams of threads.
 * add_stream returns the index of the new stream, or -1 if there are too many.
 */
int add_stream(int blocking);
int is_blocking(int stream);
void remove_stream(int stream);
cudaStream_t handle_of(int stream);

/* set_owner sets the green context to which a new stream belongs.  owned_by
 * returns the number of streams that belong to a green context. */
void set_owner(int stream, const void *owner);
int owned_by(const void *owner);

int index_of(const void *handle);

/* Queue an operation.  queue_word queues a write of the word or, if `writes`
 * is 0, a wait until the word is at least the value.  queue_call queues a call
 * to the function on a thread of its own. */
void queue_wait(int stream, const struct event *event);
void queue_word(int stream, uint32_t *word, uint32_t value, int writes);
void queue_sleep(int stream, uint64_t nanoseconds);
void queue_call(int stream, cudaHostFn_t function, void *argument);
void queue_copy(int stream, void *to, const void *from, size_t nbytes);
void queue_fill(int stream, void *to, int value, size_t nbytes);

/* Record the event on a stream, or on all streams of the device. */
void record(struct event *event, int stream);
void record_all(struct event *event);

/* Return whether the stream's work, or the event's latest record, is done.  If
 * it is done, later calls are ordered after that work. */
int is_idle(int stream);
int is_over(struct event *event);

/* A wait by the host, of which the profiler is told. */
struct waiting {
    const struct late_cuda_profiler *profiler;
    const char *function;
    uint32_t number;
    int64_t begun_ns;
};
struct waiting begin_waiting(const char *function);
void end_waiting(const struct waiting *waiting);

/* Returns the nanoseconds between two records that are done. */
int64_t between(const struct event *start, const struct event *stop);

/* Wait until all work of the stream is done. */
void drain(int stream);
void drain_all(void);

/* Device memory.  No address is allocated twice, so freed memory is always
 * recognized. */
void *allocate(int stream, size_t nbytes);
void release(int stream, void *data);
int is_of_device(const void *address);

/* Device memory that is mapped instead of allocated.  Its address may be
 * mapped again after it was unmapped. */
void add_mapping(void *data, size_t nbytes);
void remove_mapping(void *data);

/* Store the total size of all allocations in *reserved, and that of the
 * allocations that are not freed in *used. */
void count_memory(uint64_t *reserved, uint64_t *used);

#pragma GCC visibility pop

#endif
