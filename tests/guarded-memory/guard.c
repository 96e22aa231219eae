/* Device memory that ends where memory that is mapped ends: a kernel that reads or writes behind it
 * stops with an illegal address.
 *
 * Preloaded into a process that loads libcuda at run time, it gives its own cuMemAlloc_v2 and
 * cuMemFree_v2 to whoever looks them up. Each allocation has physical memory of its own, in a
 * reserved range of addresses with a granule before and behind that nothing is mapped to; it lies
 * at the end of the mapped part, up to the 512 bytes that CUDA aligns allocations to.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef unsigned long long Pointer;
typedef unsigned long long Handle;

/* CUmemAllocationProp and CUmemAccessDesc of cuda.h. */
typedef struct {
  int type, handle_types;
  struct { int type, id; } location;
  void *meta;
  unsigned char flags[8];
} Properties;
typedef struct {
  struct { int type, id; } location;
  int flags;
} Access;

enum { PINNED = 1, DEVICE = 1, READ_WRITE = 3, OUT_OF_MEMORY = 2, ALIGNMENT = 512 };

typedef struct Allocation {
  Pointer pointer, base;
  size_t mapped, reserved;
  Handle handle;
  struct Allocation *next;
} Allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Allocation *allocations;
static unsigned long guarded;

static void *(*next_dlsym(void))(void *, const char *) {
  static void *(*found)(void *, const char *);
  if (!found) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (!found) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return found;
}

static void *driver(const char *name) {
  static void *library;
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
  void *function = library ? next_dlsym()(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "guard: the driver has no %s\n", name);
    abort();
  }
  return function;
}

static Result allocate(Pointer *pointer, size_t bytes) {
  Result (*device)(int *) = driver("cuCtxGetDevice");
  Result (*granularity)(size_t *, const Properties *, int) = driver("cuMemGetAllocationGranularity");
  Result (*reserve)(Pointer *, size_t, size_t, Pointer, unsigned long long) = driver("cuMemAddressReserve");
  Result (*create)(Handle *, size_t, const Properties *, unsigned long long) = driver("cuMemCreate");
  Result (*map)(Pointer, size_t, size_t, Handle, unsigned long long) = driver("cuMemMap");
  Result (*access)(Pointer, size_t, const Access *, size_t) = driver("cuMemSetAccess");

  int number = 0;
  size_t granule = 0;
  Result result = device(&number);
  Properties properties = {.type = PINNED, .location = {DEVICE, number}};
  Access readable = {.location = {DEVICE, number}, .flags = READ_WRITE};
  if (result || (result = granularity(&granule, &properties, 0))) return result;

  size_t aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  Allocation *new = calloc(1, sizeof *new);
  if (!new) return OUT_OF_MEMORY;
  new->mapped = (aligned + granule - 1) / granule * granule;
  new->reserved = new->mapped + 2 * granule;
  if ((result = create(&new->handle, new->mapped, &properties, 0))) return result;
  if ((result = reserve(&new->base, new->reserved, 0, 0, 0))) return result;
  if ((result = map(new->base + granule, new->mapped, 0, new->handle, 0))) return result;
  if ((result = access(new->base + granule, new->mapped, &readable, 1))) return result;
  *pointer = new->pointer = new->base + granule + new->mapped - aligned;
  pthread_mutex_lock(&lock);
  new->next = allocations;
  allocations = new;
  guarded += 1;
  pthread_mutex_unlock(&lock);
  return 0;
}

static Result release(Pointer pointer) {
  Result (*synchronize)(void) = driver("cuCtxSynchronize");
  Result (*unmap)(Pointer, size_t) = driver("cuMemUnmap");
  Result (*destroy)(Handle) = driver("cuMemRelease");
  Result (*reserved_again)(Pointer, size_t) = driver("cuMemAddressFree");
  Result (*theirs)(Pointer) = driver("cuMemFree_v2");

  pthread_mutex_lock(&lock);
  Allocation **place = &allocations;
  while (*place && (*place)->pointer != pointer) place = &(*place)->next;
  Allocation *old = *place;
  if (old) *place = old->next;
  pthread_mutex_unlock(&lock);
  if (!old) return theirs(pointer);

  Result result = synchronize();
  size_t granule = (old->reserved - old->mapped) / 2;
  if (!result) result = unmap(old->base + granule, old->mapped);
  if (!result) result = destroy(old->handle);
  if (!result) result = reserved_again(old->base, old->reserved);
  free(old);
  return result;
}

void *dlsym(void *handle, const char *name) {
  if (!strcmp(name, "cuMemAlloc_v2")) return allocate;
  if (!strcmp(name, "cuMemFree_v2")) return release;
  return next_dlsym()(handle, name);
}

__attribute__((destructor)) static void report(void) {
  if (getenv("GUARD_REPORT")) fprintf(stderr, "guard: %lu allocations\n", guarded);
}
