/* Clients are shared out among threads: each takes the next client that is left. A thread that comes too late, on a busy
 * machine, is not waited for: it finds no client left and releases the shared memory. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    void *job;
    void (*begin)(void *job, void *room);             /* once for each thread that has a client; may be 0 */
    void (*client)(void *job, void *room, int64_t c);
    int64_t clients, next, done, rooms, holders;
    size_t size;                                      /* of a thread's room */
    char *room;
    pthread_mutex_t lock;
    pthread_cond_t over;
} Crew;

static int64_t count_up(int64_t *number) { return __atomic_fetch_add(number, 1, __ATOMIC_ACQ_REL); }

static void *take_part(void *given) {
    Crew *crew = given;
    char *room = 0;
    for (int64_t c; (c = count_up(&crew->next)) < crew->clients;) {
        if (!room) {
            room = crew->room + count_up(&crew->rooms) * crew->size;
            if (crew->begin) crew->begin(crew->job, room);
        }
        crew->client(crew->job, room, c);
        if (count_up(&crew->done) + 1 < crew->clients) continue;
        pthread_mutex_lock(&crew->lock);
        pthread_cond_signal(&crew->over);
        pthread_mutex_unlock(&crew->lock);
    }
    if (__atomic_sub_fetch(&crew->holders, 1, __ATOMIC_ACQ_REL)) return 0;
    pthread_mutex_destroy(&crew->lock), pthread_cond_destroy(&crew->over);
    free(crew);
    return 0;
}

/* Do all clients, on so many threads with this one among them, each with `size` bytes of room, zero at first, that begin
 * at a multiple of 64; on fewer if there is not enough memory for so many. Returns whether there is not enough for one. */
static int share_out(void *job, int64_t clients, int64_t threads, size_t size, void (*begin)(void *, void *),
                     void (*client)(void *, void *, int64_t)) {
    if (clients < 1) return 0;
    threads = threads < 1 ? 1 : threads > clients ? clients : threads;
    size = (size + 63) / 64 * 64;
    Crew *crew;
    pthread_t other;
    while (!(crew = calloc(1, sizeof(Crew) + threads * size + 64)) && threads > 1) threads /= 2;
    if (!crew) return 1;
    *crew = (Crew){.job = job, .begin = begin, .client = client, .clients = clients, .holders = threads + 1, .size = size};
    crew->room = (char *)(((uintptr_t)(crew + 1) + 63) / 64 * 64);
    pthread_mutex_init(&crew->lock, 0), pthread_cond_init(&crew->over, 0);
    for (int64_t k = 1; k < threads; k++)
        if (pthread_create(&other, 0, take_part, crew)) __atomic_sub_fetch(&crew->holders, 1, __ATOMIC_ACQ_REL);
        else pthread_detach(other);
    take_part(crew);
    for (int k = 0; k < 4096 && __atomic_load_n(&crew->done, __ATOMIC_ACQUIRE) < clients; k++) __asm__ volatile("" ::: "memory");
    pthread_mutex_lock(&crew->lock); /* the last thread signals inside it, so it is out when this one continues */
    while (__atomic_load_n(&crew->done, __ATOMIC_ACQUIRE) < clients) pthread_cond_wait(&crew->over, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
    if (!__atomic_sub_fetch(&crew->holders, 1, __ATOMIC_ACQ_REL)) {
        pthread_mutex_destroy(&crew->lock), pthread_cond_destroy(&crew->over);
        free(crew);
    }
    return 0;
}
