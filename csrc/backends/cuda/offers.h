/* Descriptors of files that this process offers to others of its user.  A
 * thread sends each to every process that connects to a socket of its own,
 * until it is withdrawn.
 *
 * One rule: nothing is read from a process that takes a descriptor, so that
 * none can stall the thread or mislead it. */
#ifndef PYSTREAMS_CUDA_OFFERS_H
#define PYSTREAMS_CUDA_OFFERS_H

#include <stdint.h>

#include <pystreams/backend.h>

/* The name of a socket, in the network namespace of its process.  Another
 * socket may get the name when this one is closed. */
enum { CUDA_SOCKET_NAME = 8 };

/* Sent along with the descriptor. */
struct cuda_payload {
    uint64_t nonce[4];
    uint64_t nbytes;
};

struct cuda_offer;

/* Offer the file, which belongs to the offer from here on, after a failure
 * too.
 * Statuses: PS_ERROR_OUT_OF_MEMORY, also if the process has too many open
 * files; PS_ERROR_SHUTTING_DOWN. */
ps_status
cuda_offer_create(int file, const struct cuda_payload *payload,
                  char name[CUDA_SOCKET_NAME], struct cuda_offer **result);

/* Close the file, and free the offer.  Accepts NULL. */
void cuda_offer_withdraw(struct cuda_offer *offer);

/* Take the file that another process offers.  The name may be any bytes.
 * Statuses: PS_ERROR_INVALID_HANDLE if no process of this user offers it, or
 * if it does not answer within ten seconds; PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_offer_take(const char name[CUDA_SOCKET_NAME],
                          struct cuda_payload *payload, int *file);

/* End the thread, and offer nothing from here on. */
void cuda_offers_stop(void);

#endif
