/* Offers of file descriptors to other processes of the same user.  Each offer
 * has a listening socket.  A thread sends the descriptor to every process that
 * connects to the socket, until the offer is withdrawn.
 *
 * The rule: the thread reads nothing from the processes that connect, so that
 * they can neither stall nor mislead it. */
#ifndef PYSTREAMS_CUDA_OFFERS_H
#define PYSTREAMS_CUDA_OFFERS_H

#include <stdint.h>

#include <pystreams/backend.h>

/* The size of a socket's name.  A name is valid only in the network namespace
 * of the process that has the socket.  When the socket is closed, another
 * socket may get the same name. */
enum { CUDA_SOCKET_NAME = 8 };

/* The data that is sent with a descriptor. */
struct cuda_payload {
    uint64_t nonce[4];
    uint64_t nbytes;
};

struct cuda_offer;

/* Offer a file, and get the name under which other processes can take it.
 * `file` is a descriptor.  This call takes it over, and closes it after a
 * failure.  Statuses: PS_ERROR_OUT_OF_MEMORY, also if the process has too many
 * open files; PS_ERROR_SHUTTING_DOWN. */
ps_status
cuda_offer_create(int file, const struct cuda_payload *payload,
                  char name[CUDA_SOCKET_NAME], struct cuda_offer **result);

/* Withdraw the offer: closes the file and frees the offer.  Accepts NULL. */
void cuda_offer_withdraw(struct cuda_offer *offer);

/* Take the file that another process offers under this name, as a new
 * descriptor.  The name may be any bytes.  Returns PS_ERROR_INVALID_HANDLE if
 * no process of this user offers a file under the name, or if connecting to
 * the process or receiving its reply takes ten seconds.  Other statuses:
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_offer_take(const char name[CUDA_SOCKET_NAME],
                          struct cuda_payload *payload, int *file);

/* End the thread that serves the offers.  Afterwards no file can be offered
 * any more. */
void cuda_offers_stop(void);

#endif
