/* Notices of what CUDA streams have done, from threads that ask.
 *
 * A host function would tell unasked.  But one that is queued behind a wait
 * for an event occupies one of the few channels to the device, so that seven
 * of them hold up the work of other streams, and a stream takes no more than
 * some fifty before it blocks whoever queues the next.  Records of events do
 * neither.  What must come even while another thread sits on the driver's
 * locks, in a copy behind it, is a number that the device writes.
 *
 * One rule: who is told calls nothing of CUDA's. */
#ifndef PYSTREAMS_CUDA_WATCH_H
#define PYSTREAMS_CUDA_WATCH_H

#include <stdatomic.h>

#include <pystreams/backend.h>

/* A stream on which nobody else sends notices until it is left.  Entering
 * blocks while another thread is there. */
struct cuda_post {
    struct cuda_line *events;
    struct cuda_line *words;
};

ps_status
cuda_post_enter(struct cuda_post *post, int device, ps_handle stream);
void cuda_post_leave(struct cuda_post *post);

/* A notice that reached(argument, status) is called once what the stream has
 * now is done or has failed; the device's context is current. */
struct cuda_notice;
ps_status cuda_notice_create(struct cuda_post *post, ps_notification reached,
                             void *argument, struct cuda_notice **notice);

/* One of no less than the number in the word, a multiple of 2^31 apart at
 * most.  It says nothing of failures. */
ps_status cuda_word_notice_create(_Atomic uint32_t *word, uint32_t number,
                                  ps_notification reached, void *argument,
                                  struct cuda_notice **notice);

/* A notice is sent, once, or destroyed.  Those of one stream and kind are sent
 * in the order in which they come true. */
void cuda_notice_send(struct cuda_post *post, struct cuda_notice *notice);
void cuda_notice_destroy(struct cuda_notice *notice);

/* Call before what makes the driver wait for the stream, whose context is
 * current: it would keep other threads out meanwhile, those that the stream
 * waits for, too.  May block; does nothing to a capture. */
ps_status cuda_stream_drain(int device, ps_handle stream);

/* Two members of the table. */
ps_status
cuda_device_synchronize_for(const struct ps_backend *backend, int device,
                            const struct ps_limit *limit);
ps_status cuda_shutdown(const struct ps_backend *backend, int64_t timeout_ns);

#endif
