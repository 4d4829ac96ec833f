/* A CUDA of one device for machines with no GPU: what the backend calls of
 * libcuda and cudart, without graphs.  Work is done late: now and then some of
 * what the order of streams and events lets proceed, at random.
 *
 * One rule: a use of memory that its allocation is not ordered before, and a
 * free that a use is not ordered before, is told and counted.  What is ordered
 * is known by clocks, one of each stream and one of the host: a call comes
 * after what the host has seen to be done, and after nothing else of it. */
#ifndef LATE_CUDA_H
#define LATE_CUDA_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <stddef.h>
#include <stdint.h>

enum { MOST_STREAMS = 400 };

/* How much of each stream's work comes before. */
struct clock {
    unsigned of[MOST_STREAMS];
};

/* Of the latest record; no operation before the first. */
struct event {
    int operation;
    struct clock clock;
};

/* How many faults there were. */
int late_cuda_faults(void);

/* What follows is random by it. */
void late_cuda_seed(unsigned seed);

/* The library is preloaded, and these names are not for others. */
#pragma GCC visibility push(hidden)

/* Around each call.  What is below is for between the two. */
void begin(void);
void end(void);

/* Streams are told by their index; 0 is both default streams.  A new one's,
 * and -1 where there are too many. */
int add_stream(void);
void remove_stream(int stream);
cudaStream_t handle_of(int stream);
int index_of(const void *handle);

/* Queue an operation that waits for an event's record, that writes a word or
 * waits until it is not less, that lasts, that calls a function on a thread of
 * its own, or that copies or fills memory, which it uses. */
void queue_wait(int stream, const struct event *event);
void queue_word(int stream, uint32_t *word, uint32_t value, int writes);
void queue_sleep(int stream, uint64_t nanoseconds);
void queue_call(int stream, cudaHostFn_t function, void *argument);
void queue_copy(int stream, void *to, const void *from, size_t nbytes);
void queue_fill(int stream, void *to, int value, size_t nbytes);

/* Record the event on a stream, or on all of the device. */
void record(struct event *event, int stream);
void record_all(struct event *event);

/* Whether it is done, which the host has seen then. */
int is_idle(int stream);
int is_over(struct event *event);

/* Nanoseconds between the ends of two that are. */
int64_t between(const struct event *start, const struct event *stop);

/* Wait until all that the stream has is done. */
void drain(int stream);
void drain_all(void);

/* Memory of the device.  No address is given out twice, so that what was
 * freed is known for good. */
void *allocate(int stream, size_t nbytes);
void release(int stream, void *data);
int is_of_device(const void *address);

/* What all of it holds, and what was not freed of it. */
void count_memory(uint64_t *reserved, uint64_t *used);

#pragma GCC visibility pop

#endif
