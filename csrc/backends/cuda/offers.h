/* Offers of file descriptors to other processes of the same user.  Each offer
 * has a socket.  A thread sends the descriptor to every process that connects
 * to it, until the offer is withdrawn.
 *
 * The rule: nothing is read from a process that takes a descriptor, so that it
 * can neither stall nor mislead the thread. */
#ifndef PYSTREAMS_CUDA_OFFERS_H
#define PYSTREAMS_CUDA_OFFERS_H

#include <stdint.h>

#include <pystreams/backend.h>

/* The size of a socket's name.  A name is valid in the network namespace of
 * its process.  Another socket may get the name when this one is closed. */
enum { CUDA_SOCKET_NAME = 8 };

/* The data that is sent with a descriptor. */
struct cuda_payload {
    uint64_t nonce[4];
    uint64_t nbytes;
};

struct cuda_offer;

/* Offer a file.  The offer takes over the file, also on failure.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY, also if the process has too many open files;
 * PS_ERROR_SHUTTING_DOWN. */
ps_status
cuda_offer_create(int file, const struct cuda_payload *payload,
                  char name[CUDA_SOCKET_NAME], struct cuda_offer **result);

/* Withdraw the offer: closes the file and frees the offer.  Accepts NULL. */
void cuda_offer_withdraw(struct cuda_offer *offer);

/* Take the file that another process offers under this name, which may be any
 * bytes.  Returns PS_ERROR_INVALID_HANDLE if no process of this user offers
 * it, or does not reply within ten seconds; PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_offer_take(const char name[CUDA_SOCKET_NAME],
                          struct cuda_payload *payload, int *file);

/* End the thread.  No file can be offered any more. */
void cuda_offers_stop(void);

#endif
