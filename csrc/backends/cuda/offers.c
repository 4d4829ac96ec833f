/* The sockets of offers, and the thread that serves them; see offers.h. */
#include "offers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct cuda_offer {
    int file;
    int listener;
    struct cuda_payload payload;
    LIST_ENTRY(cuda_offer) neighbours;
};

/* Guards the variables below and the offers.  It is held during system calls,
 * but only during those that never block. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, cuda_offer) offers;
/* An epoll descriptor; the data of each entry is its offer. */
static int queue = -1;
static int stopping = -1; /* an eventfd in the queue, with NULL as its data */
static bool started, stopped;
static pthread_t thread;

/* Room for one descriptor in a control message, with the alignment that it
 * needs. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static bool
is_own_user(int peer)
{
    struct ucred user;
    socklen_t length = sizeof(user);
    return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &user, &length) == 0 &&
           user.uid == geteuid();
}

/* Returns whether the error of a system call means that the process or the
 * machine has no descriptors or memory left. */
static bool
is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM ||
           error == ENOBUFS || error == ETOOMANYREFS;
}

/* ---- The thread ---- */

static void
send_to(int peer, struct cuda_offer *offer)
{
    union control control = {.bytes = {0}};
    struct iovec payload = {&offer->payload, sizeof(offer->payload)};
    struct msghdr message = {
        .msg_iov = &payload,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &offer->file, sizeof(int));
    (void)sendmsg(peer, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Accept one process that has connected, and send it the file.  Returns false
 * if this process or the machine has no descriptors or memory left, so that no
 * process can be accepted now. */
static bool
accept_locked(struct cuda_offer *offer)
{
    int peer =
        accept4(offer->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (peer < 0) {
        return !is_shortage(errno);
    }
    if (is_own_user(peer)) {
        send_to(peer, offer);
    }
    close(peer);
    return true;
}

/* Returns the offer that an entry of the queue names; NULL if it was withdrawn
 * in the meantime. */
static struct cuda_offer *
find_locked(const void *wanted)
{
    struct cuda_offer *offer;
    LIST_FOREACH (offer, &offers, neighbours) {
        if (offer == wanted) {
            break;
        }
    }
    return offer;
}

static void *
serve(void *unused)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    bool over = false;
    while (!over) {
        struct epoll_event ready = {0};
        bool accepted = true;
        int count = epoll_wait(queue, &ready, 1, -1);
        pthread_mutex_lock(&lock);
        over = stopped;
        struct cuda_offer *offer =
            count == 1 ? find_locked(ready.data.ptr) : NULL;
        if (offer != NULL) {
            accepted = accept_locked(offer);
        }
        pthread_mutex_unlock(&lock);
        if (!accepted) {
            nanosleep(&pause, NULL);
        }
    }
    return unused;
}

/* ---- Forks ---- */

static void
before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void
after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* Close the offers, because they belong to the parent.  If the child kept them
 * open, it would keep their memory allocated, and other processes could
 * connect to sockets that no thread serves. */
static void
after_fork_in_child(void)
{
    struct cuda_offer *offer;
    LIST_FOREACH (offer, &offers, neighbours) {
        close(offer->listener);
        close(offer->file);
    }
    LIST_INIT(&offers);
    close(queue);
    close(stopping);
    queue = stopping = -1;
    started = false;
    pthread_mutex_unlock(&lock);
}

/* ---- Offering ---- */

static bool
listen_to(int number, void *offer)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = offer};
    return epoll_ctl(queue, EPOLL_CTL_ADD, number, &event) == 0;
}

/* Start the thread if it is not running. */
static ps_status
start_locked(void)
{
    static bool handles_forks;
    sigset_t all, before;
    if (stopped) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (started) {
        return PS_SUCCESS;
    }
    if (!handles_forks) {
        handles_forks =
            pthread_atfork(before_fork, after_fork, after_fork_in_child) == 0;
    }
    queue = epoll_create1(EPOLL_CLOEXEC);
    stopping = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (handles_forks && queue >= 0 && stopping >= 0 &&
        listen_to(stopping, NULL)) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        started = pthread_create(&thread, NULL, serve, NULL) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (!started) {
        close(queue);
        close(stopping);
        queue = stopping = -1;
        return PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_setname_np(thread, "ps-cuda-sharing");
    return PS_SUCCESS;
}

/* Bind the socket to a name that the kernel chooses, and listen for
 * connections.  The name consists of a zero byte and five more bytes.  `name`
 * receives these five bytes.  Returns false if that fails. */
static bool
bind_and_listen(int listener, char name[CUDA_SOCKET_NAME])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof(address.sun_family);
    memset(name, 0, CUDA_SOCKET_NAME);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 ||
        listen(listener, SOMAXCONN) != 0) {
        return false;
    }
    length = sizeof(address);
    if (getsockname(listener, (struct sockaddr *)&address, &length) != 0) {
        return false;
    }
    size_t named = length - offsetof(struct sockaddr_un, sun_path) - 1;
    memcpy(name, address.sun_path + 1,
           named < CUDA_SOCKET_NAME ? named : CUDA_SOCKET_NAME);
    return named < CUDA_SOCKET_NAME;
}

static int
new_socket(int flags)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
}

static ps_status
add(struct cuda_offer *offer)
{
    pthread_mutex_lock(&lock);
    ps_status status = start_locked();
    if (status == PS_SUCCESS && !listen_to(offer->listener, offer)) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    if (status == PS_SUCCESS) {
        LIST_INSERT_HEAD(&offers, offer, neighbours);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ps_status
cuda_offer_create(int file, const struct cuda_payload *payload,
                  char name[CUDA_SOCKET_NAME], struct cuda_offer **result)
{
    struct cuda_offer *offer = calloc(1, sizeof(*offer));
    int listener = new_socket(SOCK_NONBLOCK);
    ps_status status = PS_ERROR_OUT_OF_MEMORY;
    if (offer != NULL && listener >= 0 && bind_and_listen(listener, name)) {
        offer->file = file;
        offer->listener = listener;
        offer->payload = *payload;
        status = add(offer);
    }
    if (status == PS_SUCCESS) {
        *result = offer;
        return PS_SUCCESS;
    }
    close(file);
    close(listener);
    free(offer);
    return status;
}

void
cuda_offer_withdraw(struct cuda_offer *offer)
{
    if (offer == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    LIST_REMOVE(offer, neighbours);
    close(offer->listener);
    close(offer->file);
    pthread_mutex_unlock(&lock);
    free(offer);
}

void
cuda_offers_stop(void)
{
    const uint64_t one = 1;
    struct cuda_offer *offer;
    pthread_mutex_lock(&lock);
    bool joins = started && !stopped;
    stopped = true;
    if (joins) {
        (void)!write(stopping, &one, sizeof(one));
    }
    LIST_FOREACH (offer, &offers, neighbours) {
        shutdown(offer->listener, SHUT_RDWR);
    }
    pthread_mutex_unlock(&lock);
    if (joins) {
        pthread_join(thread, NULL);
    }
}

/* ---- Taking ---- */

static ps_status
failure(void)
{
    return is_shortage(errno) ? PS_ERROR_OUT_OF_MEMORY
                              : PS_ERROR_INVALID_HANDLE;
}

static bool
connect_to(int peer, const char name[CUDA_SOCKET_NAME])
{
    const struct timeval limit = {.tv_sec = 10};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strnlen(name, CUDA_SOCKET_NAME);
    memcpy(address.sun_path + 1, name, length);
    /* These timeouts also apply to connect and recvmsg. */
    return setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) ==
               0 &&
           setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) ==
               0 &&
           connect(peer, (struct sockaddr *)&address,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                               length)) == 0;
}

/* Returns the file descriptor in the message, which has at most one; -1 if
 * there is none. */
static int
file_of(struct msghdr *message)
{
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int file = -1;
    if (header != NULL && header->cmsg_level == SOL_SOCKET &&
        header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int))) {
        memcpy(&file, CMSG_DATA(header), sizeof(int));
    }
    return file;
}

static ps_status
receive(int peer, struct cuda_payload *payload, int *file)
{
    union control control;
    struct iovec part = {payload, sizeof(*payload)};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        /* CMSG_SPACE would include padding, which has room for a second
         * descriptor. */
        .msg_controllen = CMSG_LEN(sizeof(int)),
    };
    ssize_t length = recvmsg(peer, &message, MSG_CMSG_CLOEXEC);
    if (length < 0) {
        return failure();
    }
    int received = file_of(&message);
    if (length == (ssize_t)sizeof(*payload) && received >= 0 &&
        !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        *file = received;
        return PS_SUCCESS;
    }
    if (received >= 0) {
        close(received);
    }
    /* MSG_CTRUNC is also set if the process has too many open files to receive
     * the descriptor. */
    return received < 0 && (message.msg_flags & MSG_CTRUNC)
               ? PS_ERROR_OUT_OF_MEMORY
               : PS_ERROR_INVALID_HANDLE;
}

ps_status
cuda_offer_take(const char name[CUDA_SOCKET_NAME],
                struct cuda_payload *payload, int *file)
{
    sigset_t all, before;
    int peer = new_socket(0);
    if (peer < 0) {
        return failure();
    }
    sigfillset(&all);
    /* Block signals, because they would interrupt the system calls. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ps_status status = connect_to(peer, name)
                           ? is_own_user(peer) ? receive(peer, payload, file)
                                               : PS_ERROR_INVALID_HANDLE
                           : failure();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(peer);
    return status;
}
